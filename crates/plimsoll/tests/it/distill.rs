//! Distillation from outside: a student follows its teacher, resumes bit for bit, is the same on any number of ranks,
//! and every part of its teacher is in the plan.

use crate::made;
use crate::ranks::left;
use crate::run::{Run, export, number, region, regions};
use crate::taught::{NEWEST, RUN, taught};
use plimsoll_arch::expected_tensors;
use plimsoll_files::spec_from_config;
use serde_json::{Value, json};
use std::fs;

fn teacher_of(folder: &str) -> String {
    format!("distill.teacher={folder}")
}

/// Writes a model of half the width and two layers, with the tokenizer of another; its folder.
pub fn smaller(folder: &Run, of: &str) -> String {
    let to = folder.path("small");
    fs::create_dir(&to).expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(format!("{of}/{name}"), to.join(name)).expect("a file");
    }
    let read = fs::read(format!("{of}/config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&read).expect("JSON");
    for (key, value) in [
        ("hidden_size", 64),
        ("intermediate_size", 128),
        ("num_hidden_layers", 2),
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
    ] {
        config[key] = json!(value);
    }
    fs::write(to.join("config.json"), config.to_string()).expect("a file");
    let spec = spec_from_config(&config, "config.json").expect("a shape");
    let (header, data) = made::header_and_data(&expected_tensors(&spec));
    let file = made::safetensors(&Value::Object(header).to_string(), &data);
    fs::write(to.join("model.safetensors"), file).expect("a file");
    to.to_str().expect("UTF-8").to_string()
}

/// Writes a model whose embedding, which is its head too, has three rows more than the tokenizer has tokens, each its
/// row of a likely token once more; its folder.
pub fn padded(folder: &Run, of: &str) -> String {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let to = folder.path("padded");
    fs::create_dir(&to).expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(format!("{of}/{name}"), to.join(name)).expect("a file");
    }
    let read = fs::read(format!("{of}/config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&read).expect("JSON");
    assert_eq!((&config["vocab_size"], &config["tie_word_embeddings"]), (&json!(15), &json!(true)));
    config["vocab_size"] = json!(18);
    fs::write(to.join("config.json"), config.to_string()).expect("a file");
    let file = fs::read(format!("{of}/model.safetensors")).expect("a file");
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).expect("JSON");
    let (mut all, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, mut tensor) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let at = |i: usize| 8 + length + tensor["data_offsets"][i].as_u64().expect("an offset") as usize;
        let (start, bytes) = (data.len(), &file[at(0)..at(1)]);
        data.extend_from_slice(bytes);
        if name == EMBEDDING {
            let row = bytes.len() / 15;
            // The end of a response and two digits: no position without a likely one.
            for id in [1, 3, 4] {
                data.extend_from_slice(&bytes[id * row..][..row]);
            }
            tensor["shape"][0] = json!(18);
        }
        tensor["data_offsets"] = json!([start, data.len()]);
        all.insert(name, tensor);
    }
    let file = made::safetensors(&Value::Object(all).to_string(), &data);
    fs::write(to.join("model.safetensors"), file).expect("a file");
    to.to_str().expect("UTF-8").to_string()
}

#[test]
fn a_teacher_with_more_rows_than_the_student_teaches_the_students_tokens() {
    let folder = taught();
    let padded =
        format!("distill.teacher={}", padded(&folder, &folder.text_path("teacher/checkpoints/latest")));
    for (i, how) in [
        &["distill.divergence=forward", "distill.top_k=4"][..],
        &["distill.divergence=reverse", "distill.top_k=1"],
        &["distill.divergence=jsd", "distill.top_k=15", "--ranks=2"],
        &["distill.divergence=forward"],
    ]
    .into_iter()
    .enumerate()
    {
        // The rows that are more are cut off, and so is what they had of the sum: the same teacher, to the bit.
        let left = |dir: &str, sets: &[&str]| {
            folder.train(dir, &[how, &["train.steps=2"], sets].concat());
            let metrics = folder.metrics(dir);
            let of = |name: &str| metrics.iter().map(|step| number(step, name)).collect::<Vec<_>>();
            (of("distill/divergence"), of("distill/reverse_kl"), folder.weights(dir))
        };
        let (plain, more) = (left(&format!("plain-{i}"), &[]), left(&format!("more-{i}"), &[&padded]));
        assert!(plain.0[0] > 0.0, "{how:?}: {:?}", plain.0);
        assert_eq!((&plain.0, &plain.1), (&more.0, &more.1), "{how:?}");
        assert!(plain.2 == more.2, "{how:?}: other weights");
    }
    // One number of each sampled token: of all rows of the teacher.
    folder.train("plain", &["train.steps=1"]);
    folder.train("more", &["train.steps=1", &padded]);
    let kl = |dir: &str| number(&folder.metrics(dir)[0], "distill/reverse_kl");
    assert!(kl("more") > kl("plain"), "{} {}", kl("more"), kl("plain"));
}

#[test]
fn a_student_follows_its_teacher_without_a_reward() {
    let folder = taught();
    folder.train("out", &["train.steps=2", "checkpoint.every=100"]);
    let metrics = folder.metrics("out");
    for step in &metrics {
        assert!(number(step, "distill/reverse_kl") > 0.0 && number(step, "grad_norm") > 0.0, "{step}");
        assert_eq!(number(step, "rollout/logprob_mismatch_max"), 0.0, "{step}");
        assert!(step.get("reward").is_none(), "nothing scores: {step}");
    }
    // The teacher itself has nothing to learn from itself: every ratio is exactly 1.
    let of_itself = [&*format!("model={}", folder.text_path("teacher/checkpoints/latest")), "train.steps=3"];
    let said = folder.train("same", &of_itself);
    assert!(said.contains("warning[no-advantage]") && said.contains("as its teacher does"), "{said}");
    let metrics = folder.metrics("same");
    assert_eq!(number(&metrics[0], "distill/reverse_kl"), 0.0, "one engine: the same bits");
    assert_eq!(number(&metrics[0], "grad_norm"), 0.0);
}

#[test]
fn rewards_are_reported_and_count_by_their_coefficient() {
    let folder = taught();
    let weights = |dir: &str, sets: &[&str]| {
        folder.train(dir, &[sets, &["train.steps=2"]].concat());
        folder.weights(dir)
    };
    let without = weights("without", &[]);
    let reported = weights("reported", &["reward.0.kind=hash"]);
    assert!(without == reported, "a reward that does not count changes weights");
    assert!(number(&folder.metrics("reported")[0], "reward").is_finite());
    for (dir, sets) in [
        ("counted", &["reward.0.kind=hash", "distill.reward_coef=0.5"][..]),
        ("coef", &["distill.coef=0.5", "train.grad_clip=0"]),
        ("whiten", &["loss.whiten=full"]),
        ("kl", &["loss.kl_coef=1.0"]),
    ] {
        assert!(weights(dir, sets) != without, "{sets:?} changes nothing");
    }
    // Samples of a rollout that serves several steps and several updates.
    folder.train("many", &["async.reuse=1", "train.mini_batch=4", "train.epochs_per_rollout=2"]);
    assert!(folder.metrics("many").iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0));
}

#[test]
fn a_distillation_resumes_bit_for_bit_with_the_teacher_that_it_began_with() {
    let folder = taught();
    let sets = ["reward.0.kind=hash", "distill.reward_coef=0.5", "train.mini_batch=4"];
    folder.train("long", &sets);
    folder.train("short", &[&sets[..], &["train.steps=2"]].concat());
    folder.train("moved", &[&sets[..], &["train.steps=2"]].concat());
    let said = folder.train("short", &[&sets[..], &["--resume"]].concat());
    assert!(said.starts_with("resumes after step 2 from "), "{said}");
    assert!(folder.result("long") == folder.result("short"), "other bits");
    // Another teacher, under the same name.
    folder.file("teacher.toml").train("other", &["train.steps=1"]);
    let teacher = folder.path("teacher/checkpoints").join(NEWEST);
    fs::remove_dir_all(&teacher).expect("a folder");
    fs::rename(folder.path("other/checkpoints/step-000001"), teacher).expect("a checkpoint");
    let differs = ["error[resume-differs]", "the weights of `distill.teacher` are not those"];
    folder.train_fails("moved", &[&sets[..], &["--resume"]].concat(), 1, &differs);
}

#[test]
fn the_number_of_ranks_changes_no_bit_of_a_distillation() {
    let folder = taught();
    let mut one = None;
    for (ranks, stage) in [(1, 2), (2, 2), (3, 3)] {
        let (dir, flag) = (format!("out-{ranks}"), format!("--ranks={ranks}"));
        let stage = format!("run.zero_stage={stage}");
        folder.train(&dir, &[&*flag, &stage, "train.cut_multiple=4", "train.steps=3"]);
        let left = left(&folder, &dir);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "on {ranks} ranks at {stage}");
    }
}

#[test]
fn a_teacher_of_any_shape_has_rows_of_its_own() {
    let folder = taught();
    let plan = folder.plan(&[]);
    let names = regions(&plan);
    for name in ["teacher.weights", "teacher.head.tile", "teacher.resid"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(
        !names.iter().any(|name| name.starts_with("score.") || name.starts_with("reference.")),
        "{names:?}"
    );
    let bytes = |plan: &Value, name: &str| region(plan, name).map(|row| row["bytes"].as_u64());
    assert_eq!(bytes(&plan, "teacher.weights"), bytes(&plan, "actor.weights"));
    // A smaller teacher, with a reference of the student's shape next to it.
    let small = smaller(&folder, &folder.text_path("teacher/checkpoints/latest"));
    let sets = [&*teacher_of(&small), "loss.kl_coef=0.1"];
    let plan = folder.plan(&sets);
    assert!(bytes(&plan, "teacher.weights") < bytes(&plan, "actor.weights"));
    assert!(regions(&plan).contains(&"score.head.tile"));
    folder.train("of-small", &[&sets[..], &["train.steps=2"]].concat());
    assert!(number(&folder.metrics("of-small")[1], "distill/reverse_kl") > 0.0);
    // Adapters learn from it as all weights do.
    folder.train("lora", &["lora.rank=4", "train.steps=2"]);
    let adapter = folder.text_path("lora/checkpoints/latest");
    folder.plan_refused(
        &[&teacher_of(&adapter)],
        1,
        &["error[role-is-adapter]", "distill.teacher = ", "--merge"],
    );
    let critic = format!("critic.model={adapter}");
    let ppo = folder.file("ppo.toml");
    ppo.write(
        "ppo.toml",
        &RUN.replace("\"distill\"", "\"ppo\"").replace("[distill]\nteacher", "[[reward]]\nkind"),
    );
    ppo.plan_refused(&[&critic, "reward.0.kind=hash"], 1, &["error[role-is-adapter]", "critic.model = "]);
    // One that is to come has the student's shape in a plan, and does not train.
    let plan = folder.plan(&[&teacher_of("runs/out/to-come/checkpoints/latest")]);
    assert!(plan["assumed"].to_string().contains("to-come/checkpoints/latest is not there"), "{plan}");
    folder.train_refused("none", &[&teacher_of("no/such/folder")], 1, &["no/such/folder"]);
}

#[test]
fn a_teacher_of_other_tokens_is_refused() {
    let folder = taught();
    let model = folder.text_path("model");
    export(&folder, "teacher", &model);
    let teacher = teacher_of(&model);
    folder.plan(&[&teacher]);
    // Two tokens change places.
    let path = format!("{model}/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).expect("a tokenizer")).expect("JSON");
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let (three, seven) = (vocab["3"].clone(), vocab["7"].clone());
    (vocab["3"], vocab["7"]) = (seven, three);
    fs::write(&path, tokenizer.to_string()).expect("a file in it");
    folder.plan_refused(&[&teacher], 1, &["teacher-tokenizer-mismatch", "they differ in token `3`"]);
}

#[test]
fn a_teacher_in_4_bits_teaches_with_its_bits_wherever_the_run_goes_on() {
    let folder = taught();
    let codes = "distill.quantize=nf4";
    let plan = folder.plan(&[codes]);
    let bytes = |plan: &Value, name: &str| region(plan, name).and_then(|row| row["bytes"].as_u64());
    assert!(bytes(&plan, "teacher.codes").is_some() && bytes(&plan, "actor.codes").is_none());
    assert!(bytes(&plan, "teacher.weights") < bytes(&folder.plan(&[]), "teacher.weights"));
    folder.train("long", &[codes]);
    folder.train("short", &[codes, "train.steps=2"]);
    folder.train("short", &[codes, "--resume", "--ranks=2"]);
    folder.train("plain", &[]);
    assert!(folder.weights("long") == folder.weights("short"), "other bits after a resume on two ranks");
    assert!(folder.weights("long") != folder.weights("plain"), "the codes take part");
    let kls = |dir: &str| -> Vec<f64> {
        folder.metrics(dir).iter().map(|step| number(step, "distill/reverse_kl")).collect()
    };
    // Rounded, it still is the same teacher: the first step's distance from it is nearly that from the whole one.
    let (rounded, whole) = (kls("long")[0], kls("plain")[0]);
    assert!((rounded - whole).abs() < 0.3 * whole.abs().max(0.1), "{rounded} in codes, {whole} in full");
}

/// The run with the student as its own teacher, which reads `prompt`.
fn by_itself(prompt: &str) -> [String; 2] {
    ["distill.teacher=self".into(), format!("distill.prompt=\"{prompt}\"")]
}

#[test]
fn a_student_that_teaches_itself_needs_no_second_model() {
    let folder = Run::named("x.toml", RUN);
    let [teacher, hinted] = by_itself("{ground_truth} {prompt}");
    let plan = folder.plan(&[&teacher, &hinted]);
    assert!(regions(&plan).iter().all(|name| !name.starts_with("teacher.")), "{:?}", regions(&plan));
    folder.train("one", &[&teacher, &hinted]);
    assert!(folder.metrics("one").iter().all(|step| number(step, "distill/reverse_kl") != 0.0));
    folder.train("two", &[&teacher, &hinted, "--ranks=2"]);
    assert_eq!(folder.result("two"), folder.result("one"));
    folder.train("part", &[&teacher, &hinted, "train.steps=2"]);
    folder.train("part", &[&teacher, &hinted, "--resume"]);
    assert_eq!(folder.result("part"), folder.result("one"));
    // With its first weights, which a run that resumes still has.
    let first = "distill.teacher=initial";
    folder.train("initial", &[first, &hinted]);
    folder.train("half", &[first, &hinted, "train.steps=2"]);
    folder.train("half", &[first, &hinted, "--resume", "--ranks=2"]);
    assert_eq!(folder.result("half"), folder.result("initial"));
    assert_ne!(folder.result("initial"), folder.result("one"));
    // With its own prompt it has nothing to say: the KL is 0, to the last bit.
    let [teacher, same] = by_itself("{prompt}");
    folder.train("same", &[&teacher, &same]);
    assert!(folder.metrics("same").iter().all(|step| number(step, "distill/reverse_kl") == 0.0));
}

#[test]
fn what_a_teacher_that_is_the_student_cannot_have_is_named() {
    let folder = Run::named("x.toml", RUN);
    let [teacher, prompt] = by_itself("{hint} {prompt}");
    folder.train_fails(
        "out",
        &[&teacher, &prompt],
        1,
        &["error[data-column-missing]", "{hint}", "ground_truth"],
    );
    folder.plan_refused(&[&teacher], 2, &["error[contradictory-keys]", "distill.prompt"]);
    folder.plan_refused(&[&teacher, &prompt, "distill.quantize=nf4"], 2, &["distill.quantize"]);
    let [_, long] = by_itself("{prompt}{prompt}{prompt}");
    folder.train_fails(
        "out",
        &[&teacher, &long, "data.prompt_tokens_max=9"],
        1,
        &["error[prompt-too-long]", "data.prompt_tokens_max is 9"],
    );
}
