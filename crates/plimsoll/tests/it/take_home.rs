//! Trained models for other programs: merges over quantised bases, exports of any model, run directories as models.

use crate::common::{check_refused, every_nth, is_full, plimsoll, text};
use crate::made::{MIXED, coded_gguf};
use crate::run::{FIRST, Run, SMALL, json as printed, number};
use serde_json::{Value, json};
use std::fs;

const LORA: &str = "[lora]\nrank = 4\n";
const F32: &str = "model_options.dtype=f32";
const BF16: &str = "model_options.dtype=bf16";

/// Returns greedy responses: tokens, text and log-probabilities.
fn generated(model: &str, set: &str) -> Vec<Value> {
    let of = |prompt: &&str| {
        let args =
            ["generate", "--model", model, "--raw", "--prompt", prompt, "--json", "--quiet", "--set", set];
        let found = printed(&[&args[..], &["--max-new-tokens", "8"]].concat());
        json!([found["tokens"], found["text"], found["logprobs"], found["prompt_tokens"]])
    };
    ["12+34=", "9+ 9=", "1", "0"].iter().map(of).collect()
}

/// Returns all log-probabilities of responses.
fn logprobs(responses: &[Value]) -> Vec<f64> {
    let all = responses.iter().flat_map(|of| of[2].as_array().expect("a list").clone());
    all.map(|value| value.as_f64().expect("a number")).collect()
}

fn furthest(one: &[Value], other: &[Value]) -> f64 {
    logprobs(one).iter().zip(logprobs(other)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn export(args: &[&str]) -> Value {
    printed(&[&["checkpoint", "export", "--json", "--quiet"], args].concat())
}

/// A folder with a quantised model, and a run of an adapter on it.
fn over_codes(sets: &[&str]) -> (Run, String) {
    let folder = Run::new(&[SMALL, LORA].concat());
    let base = folder.write_bytes("base.gguf", coded_gguf(&MIXED));
    let model = format!("model={base}");
    folder.train("out", &[&[&*model, "train.steps=4", "train.learning_rate=1e-2"], sets].concat());
    (folder, base)
}

#[test]
fn an_adapter_on_a_decoded_base_is_merged_in_the_dtype_of_its_run() {
    let (folder, base) = over_codes(&[F32]);
    let [run, merged, file] = ["out", "merged", "merged.gguf"].map(|name| folder.text_path(name));
    let found = export(&[&run, "--merge", "--to", &merged]);
    assert_eq!((&found["dtype"], &found["merged"]["decoded"]), (&json!("f32"), &json!("f32")), "{found}");
    assert_eq!(number(&found["merged"], "undone"), 0.0, "{found}");
    export(&[&run, "--merge", "--format", "gguf", "--to", &file]);
    // One policy in three forms, and not the base's.
    let [adapter, merged, file, base] = [&run, &merged, &file, &base].map(|model| generated(model, F32));
    assert_eq!(merged, file);
    let (same, moved) = (furthest(&adapter, &merged), furthest(&adapter, &base));
    assert!(same < 1e-4 && moved > 100.0 * same, "{same} from the adapter, {moved} from the base");
}

#[test]
fn what_an_adapter_leaves_is_what_the_run_decoded() {
    let (folder, base) = over_codes(&[]);
    let [run, merged, whole, plain] = ["out", "merged", "whole", "plain"].map(|name| folder.text_path(name));
    let said = text(&plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]).stdout);
    assert!(said.contains("base.gguf, whose blocks are decoded to bf16, as the run had them\n"), "{said}");
    assert!(said.contains("largest rounding error "), "{said}");
    // In f32 the same base, rounded to bf16 as the run read it, and a sum that keeps all of the adapter.
    let found = export(&[&run, "--merge", "--dtype", "f32", "--to", &whole]);
    assert_eq!((&found["dtype"], &found["merged"]["decoded"]), (&json!("f32"), &json!("bf16")), "{found}");
    let [adapter, whole] = [generated(&run, BF16), generated(&whole, F32)];
    let base_f32 = generated(&base, F32);
    assert!(furthest(&adapter, &whole) < furthest(&adapter, &base_f32), "not the adapter's policy");
    // The base alone: bit for bit what a run reads.
    let found = export(&[&base, "--to", &plain]);
    assert_eq!((&found["dtype"], &found["merged"]), (&json!("bf16"), &Value::Null), "{found}");
    assert_eq!(generated(&base, BF16), generated(&plain, BF16));
    // A base that has gone is named, with the adapter.
    fs::rename(folder.path("base.gguf"), folder.path("elsewhere.gguf")).expect("moved");
    let to = folder.text_path("never");
    let said = ["error[model-file-missing]: ", "base.gguf", "it is the base of the adapter", "--base MODEL"];
    check_refused(&["checkpoint", "export", &run, "--merge", "--to", &to], 1, &said);
    assert!(!folder.path("never").exists());
    let (there, again) = (folder.text_path("elsewhere.gguf"), folder.text_path("again"));
    export(&[&run, "--merge", "--base", &there, "--to", &again]);
    assert!(folder.read("again/model.safetensors") == folder.read("merged/model.safetensors"));
    let other = ["checkpoint", "export", &run, "--merge", "--base", "builtin:nano", "--to", &to];
    check_refused(&other, 1, &["error[adapter-other-base]: "]);
}

#[test]
fn a_merge_that_rounds_the_adapter_away_says_so() {
    let folder = Run::new(&[SMALL, LORA].concat());
    folder.train("out", &["train.steps=1", "train.learning_rate=1e-7"]);
    let export = |more: &[&str]| {
        text(
            &plimsoll(&[&["checkpoint", "export", &folder.text_path("out"), "--merge"], more].concat())
                .stdout,
        )
    };
    let said = export(&["--to", &folder.text_path("bf16")]);
    let advice = "rounding to bf16 took most of the adapter away: keep the adapter as it is (leave out --merge), write \
                  the sum with --dtype f32, or train more steps\n";
    assert!(said.contains("% of their elements are the base's again") && said.ends_with(advice), "{said}");
    let exact = export(&["--dtype", "f32", "--to", &folder.text_path("f32")]);
    assert!(exact.contains("largest rounding error ") && !exact.contains("took most"), "{exact}");
    let name = folder.text_path("f32");
    assert!(furthest(&generated(&name, F32), &generated(&folder.text_path("out"), F32)) < 1e-4);
}

#[test]
fn any_model_becomes_a_folder_and_a_file() {
    let folder = Run::new(SMALL);
    let base = folder.write_bytes("base.gguf", coded_gguf(&MIXED));
    let hf = folder.text_path("hf");
    export(&["builtin:nano", "--to", &hf]);
    for (index, model) in every_nth(2, ["builtin:nano", "random:nano", &base, &hf]) {
        let [to, file] = ["to", "file.gguf"].map(|end| folder.text_path(&format!("{index}-{end}")));
        let exact = folder.text_path(&format!("{index}-f32"));
        export(&[model, "--to", &to]);
        export(&[model, "--format", "gguf", "--to", &file]);
        export(&[model, "--dtype", "f32", "--to", &exact]);
        let own = generated(model, BF16);
        assert_eq!(own, generated(&to, BF16), "{model}");
        assert_eq!(own, generated(&file, BF16), "{model}");
        assert_eq!(generated(model, F32), generated(&exact, F32), "{model}");
    }
    // Another seed is another model.
    let seeded = folder.text_path("seeded");
    export(&["random:nano", "--seed", "7", "--to", &seeded]);
    assert_ne!(generated(&seeded, BF16), generated("random:nano", BF16));
    if !is_full("a model of 135M that is exported twice") {
        return;
    }
    // One token is one byte where no tokenizer is known.
    let [small, file] = ["small", "small.gguf"].map(|name| folder.text_path(name));
    export(&["random:smollm2-135m", "--to", &small]);
    export(&["random:smollm2-135m", "--format", "gguf", "--to", &file]);
    let one = |model: &str| {
        let args =
            ["generate", "--model", model, "--raw", "--prompt", "1", "--json", "--max-new-tokens", "2"];
        printed(&args)["logprobs"].clone()
    };
    assert_eq!(one("random:smollm2-135m"), one(&small));
    assert_eq!(one("random:smollm2-135m"), one(&file));
}

#[test]
fn what_is_no_model_is_named_before_anything_is_made() {
    let folder = Run::new(&[SMALL, LORA].concat());
    folder.train("out", &["train.steps=1"]);
    let [run, peft, to] = ["out", "peft", "never"].map(|name| folder.text_path(name));
    export(&[&run, "--to", &peft]);
    for (model, more, code, said) in [
        ("no/such/folder", &[][..], 1, &["error[checkpoint-missing]: ", "hint: or a model: "][..]),
        ("no-such.gguf", &[], 1, &["error[model-file-missing]: ", "no-such.gguf"]),
        ("builtin:micro", &[], 2, &["error[model-source-invalid]: "]),
        ("random:nana", &[], 2, &["error[unknown-preset]: ", "random:nano"]),
        ("builtin:nano", &["--merge"], 2, &["error[merge-refused]: ", "leave out --merge"]),
        (&peft, &[], 2, &["error[merge-refused]: ", "hint: add --merge"]),
        (&run, &["--dtype", "f32"], 2, &["error[merge-refused]: ", "hint: add --merge"]),
    ] {
        check_refused(&[&["checkpoint", "export", model, "--to", &to], more].concat(), code, said);
        assert!(!folder.path("never").exists(), "{model}");
    }
}

#[test]
fn the_directory_of_a_run_is_its_newest_checkpoint() {
    let folder = Run::new(SMALL);
    folder.train("out", &["train.steps=1"]);
    let [run, latest, adapters] =
        ["out", "out/checkpoints/latest", "adapters"].map(|name| folder.text_path(name));
    assert_eq!(generated(&run, BF16), generated(&latest, BF16));
    let eval = |model: &str| {
        let args = ["eval", "--model", model, "--data", "builtin:addition", "--prompts-max", "20", "--json"];
        printed(&args)["score"].clone()
    };
    assert_eq!(eval(&run), eval(&latest));
    // It is what a run begins with, of which the adapter remembers the step.
    let lora = folder.file("lora.toml");
    folder.write("lora.toml", &[SMALL, LORA].concat());
    lora.train("adapters", &[&format!("model={run}"), "train.steps=1", "train.learning_rate=1e-2"]);
    let config = folder.read_json("adapters/checkpoints/latest/adapter_config.json");
    let base = config["base_model_name_or_path"].as_str().expect("a name");
    assert!(base.ends_with("out/checkpoints/step-000001"), "{base}");
    assert_ne!(generated(&adapters, BF16), generated(&run, BF16));
    // And what an adapter is taken from.
    lora.train("on", &[&format!("model={run}"), &format!("lora.adapter={adapters}"), "train.steps=1"]);
    // One that has saved nothing, and one that trained no language model.
    fs::remove_dir_all(folder.path("out/checkpoints")).expect("removed");
    let generate = |model: &str| ["generate", "--model", model, "--prompt", "1"].map(str::to_string);
    let refused = |model: &str, said: &[&str]| {
        let args = generate(model);
        check_refused(&args.each_ref().map(String::as_str), 1, said);
    };
    refused(&run, &["error[checkpoint-missing]: ", "the directory of a run that has no checkpoint"]);
    let policy = Run::named("policy.toml", &fs::read_to_string(CARTPOLE).expect("a recipe"));
    policy.train("policy", &["environment.total_frames=4096"]);
    refused(&policy.text_path("policy"), &["error[model-unsupported]: ", "a policy for an environment"]);
}

/// A recipe that trains no language model.
const CARTPOLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/cartpole-ppo.toml");

#[test]
fn the_first_run_goes_home_from_its_directory() {
    // The commands of the docs on the first recipe, shortened.
    let folder = Run::new(&fs::read_to_string(FIRST).expect("a recipe"));
    folder.train("out", &["train.steps=1", "data.eval=none"]);
    let [run, copy, exact] = ["out", "copy", "exact"].map(|name| folder.text_path(name));
    export(&[&run, "--to", &copy]);
    export(&[&run, "--dtype", "f32", "--to", &exact]);
    let config = folder.read_json("exact/config.json");
    assert_eq!(config["dtype"].as_str().or(config["torch_dtype"].as_str()), Some("float32"), "{config}");
    assert_eq!(generated(&copy, F32), generated(&exact, F32));
}
