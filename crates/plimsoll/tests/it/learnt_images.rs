//! Answers to prompts with images that are learnt from data: supervised rows, pairs and labels.

use crate::ranks::left;
use crate::run::{Run, number, region};
use crate::sees::{image, write};
use std::path::PathBuf;

/// A row is learnt after images that a task draws.
const DRAWN: &str = r#"
method = "sft"
model = "random:tiny-vl"
[data]
prompts = "builtin:digits"
image_pixels_min = 1024
[rollout]
prompts_per_step = 6
[train]
steps = 3
learning_rate = 1e-3
micro_batch_tokens = 128
cut_multiple = 4
optimizer_dtype = "f32"
[eval]
prompts_max = 4
[run]
device = "cpu"
"#;

#[test]
fn bits_do_not_depend_on_threads_ranks_or_the_tower_s_passes() {
    let folder = Run::new(DRAWN);
    let sft = ["method=sft", "data.eval=none"];
    for (name, sets, ways) in [
        ("sft", &sft[..], &["run.threads=1", "--ranks=2"]),
        (
            "sft-tower",
            &["method=sft", "data.eval=none", "model_options.tower=train"],
            &["run.threads=1", "run.threads=2"],
        ),
        ("dpo", &["method=dpo"], &["run.threads=1", "--ranks=2"]),
        ("dpo-adapters", &["method=dpo", "lora.rank=4"], &["run.threads=2", "--ranks=2"]),
        ("kto", &["method=kto"], &["run.threads=1", "--ranks=2"]),
        ("simpo-tower", &["method=simpo", "model_options.tower=train"], &["run.threads=1", "run.threads=2"]),
    ] {
        let mut one = None;
        for way in ways {
            let dir = format!("{name}-{}", way.replace(['=', '.', '-'], "_"));
            folder.train(&dir, &[sets, &[way]].concat());
            let metrics = folder.metrics(&dir);
            assert!(metrics.iter().all(|step| number(step, "time/images") > 0.0), "{dir}");
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
        }
    }
    // Two vectors a prompt, of six prompts, 64 numbers each.
    let plan = folder.plan(&sft);
    let vectors = region(&plan, "images.vectors").expect("a row");
    assert_eq!(number(vectors, "bytes"), f64::from(2 * 6 * 64 * 4));
}

/// A run over rows of a file and a tiny model of characters.
fn run_over(method: &str, rows: &str) -> Run {
    let run = Run::new("");
    let model = PathBuf::from(run.text_path("vl"));
    write(&model);
    for name in ["rgb.png", "turned.png"] {
        std::fs::copy(image(name), run.path(name)).expect("a file of the repository");
    }
    let rows = run.write("rows.jsonl", rows);
    let model = model.display();
    run.write(
        "x.toml",
        &format!(
            r#"method = "{method}"
model = "{model}"
[model_options]
dtype = "f32"
[data]
prompts = "{rows}"
images = "images"
shuffle = false
eval = "none"
[rollout]
prompts_per_step = 3
[train]
steps = 3
learning_rate = 1e-3
optimizer_dtype = "f32"
[run]
device = "cpu"
"#
        ),
    );
    run
}

fn check_steps(run: &Run, dir: &str, sets: &[&str], expect: [[f64; 2]; 3]) {
    run.train(dir, sets);
    for (step, [loss, norm]) in run.metrics(dir).iter().zip(expect) {
        let found = [number(step, "loss"), number(step, "grad_norm")];
        assert!((found[0] - loss).abs() < 1e-4, "{dir}: {found:?}, {loss}");
        assert!((found[1] - norm).abs() < 1e-3 * norm, "{dir}: {found:?}, {norm}");
    }
}

/// The loss and the norm of the gradient of each step.
const SFT: [[f64; 2]; 3] = [[4.835_041, 7.670_183], [4.328_285, 5.778_855], [3.947_04, 4.900_935]];
const SFT_TOWER: [[f64; 2]; 3] = [[4.835_041, 9.009_019], [4.154_567, 5.690_283], [3.726_162, 5.416_173]];
const DPO: [[f64; 2]; 3] =
    [[std::f64::consts::LN_2, 0.953_008], [0.627_382, 0.742_34], [0.578_842, 0.634_765]];
const DPO_TOWER: [[f64; 2]; 3] =
    [[std::f64::consts::LN_2, 1.139_226], [0.605_276, 0.752_811], [0.553_67, 0.619_951]];

/// `model/tests/golden/make_images_steps.py` prints these: losses and norms of gradients by transformers and torch,
/// where placeholders have no probability.
#[test]
fn steps_over_images_are_those_of_transformers() {
    let sft = r#"{"prompt": "<image>what", "images": ["rgb.png"], "completion": "ab"}
{"prompt": "<image>is<image>", "images": ["rgb.png", "turned.png"], "completion": "yes"}
{"prompt": "text", "completion": "c"}
"#;
    let run = run_over("sft", sft);
    check_steps(&run, "frozen", &[], SFT);
    check_steps(&run, "trained", &["model_options.tower=train"], SFT_TOWER);
    let dpo = r#"{"prompt": "<image>what", "images": ["rgb.png"], "chosen": "ab", "rejected": "ba"}
{"prompt": "<image>is<image>", "images": ["rgb.png", "turned.png"], "chosen": "yes", "rejected": "no"}
{"prompt": "text", "chosen": "c", "rejected": "d"}
"#;
    let run = run_over("dpo", dpo);
    check_steps(&run, "frozen", &[], DPO);
    check_steps(&run, "trained", &["model_options.tower=train"], DPO_TOWER);
}

/// A second turn has an image of its own, between two answers that are learnt.
#[test]
fn a_turn_after_another_image_is_learnt_as_a_row_that_ends_with_it() {
    let user = r#"{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what"}]}"#;
    let own = |text: &str| format!(r#"{{"role": "assistant", "content": "{text}"}}"#);
    let (first, second) = (own("ab"), own("cd"));
    let one = format!(r#"{{"messages": [{user}, {first}], "images": ["rgb.png"]}}"#);
    let both = format!(
        r#"{{"messages": [{user}, {first}, {user}, {second}], "images": ["rgb.png", "turned.png"]}}"#
    );
    let template = "data.chat_template={% for m in messages %}{{ m.content }}{% endfor %}";
    let loss = |rows: &str, sets: &[&str]| {
        let run = run_over("sft", rows);
        run.train("run", &[&[template, "train.steps=1"], sets].concat());
        number(&run.metrics("run")[0], "loss")
    };
    let every = loss(&both, &["data.train_on=assistant", "rollout.prompts_per_step=1"]);
    let last = loss(&format!("{one}\n{both}"), &["rollout.prompts_per_step=2"]);
    assert!((every - last).abs() < 1e-6, "{every}, {last}");
}

#[test]
fn rows_that_cannot_be_learnt_are_named() {
    let part = |role: &str| format!(r#"{{"role": "{role}", "content": [{{"type": "image"}}]}}"#);
    let text = |role: &str| format!(r#"{{"role": "{role}", "content": "ab"}}"#);
    let answered =
        format!(r#"{{"messages": [{}, {}], "images": ["rgb.png"]}}"#, text("user"), part("assistant"));
    let pair = r#""prompt": "<image>a", "images": ["rgb.png"], "chosen": "b", "rejected""#;
    let good = r#"{"prompt": "<image>a", "images": ["rgb.png"], "completion": "b"}"#;
    let raw = ["data.chat_template=none"];
    let template = ["data.chat_template={% for m in messages %}{{ m.content }}{% endfor %}"];
    for (method, row, sets, words) in [
        (
            "sft",
            r#"{"prompt": "a<|vision_start|><|image_pad|><|vision_end|>", "images": [], "completion": "b"}"#,
            &raw[..],
            &["image-count"][..],
        ),
        (
            "sft",
            r#"{"prompt": "<image>a<image>", "images": ["rgb.png"], "completion": "b"}"#,
            &raw,
            &["image-count", "2 places"],
        ),
        (
            "sft",
            r#"{"prompt": "<image>a", "images": ["no.png"], "completion": "b"}"#,
            &raw,
            &["image-missing", "no.png"],
        ),
        ("sft", &answered, &template, &["image-in-answer", "rows.jsonl:1"]),
        (
            "sft",
            r#"{"prompt": "a", "images": [], "completion": "<|image_pad|>"}"#,
            &raw,
            &["image-in-answer"],
        ),
        ("dpo", &format!("{{{pair}: \"<image>\"}}"), &raw, &["image-in-answer"]),
        (
            "dpo",
            &format!("{{{pair}: \"c\", \"rejected_images\": [\"turned.png\"]}}"),
            &raw,
            &["image-count", "other images"],
        ),
        ("reward_model", &format!("{{{pair}: \"c\"}}"), &raw, &["images-not-built", "reward model"]),
        ("sft", good, &["model=builtin:nano"], &["model-takes-no-images", "1 of 1 rows"]),
    ] {
        let code = if words[0] == "images-not-built" { 2 } else { 1 };
        run_over(method, row).train_fails("no", sets, code, words);
    }
    // Rows that plainly have images are not learnt without them.
    let run = run_over("sft", good);
    let file = String::from_utf8(run.read("x.toml")).expect("text").replace("images = \"images\"\n", "");
    run.write("x.toml", &file);
    run.train_fails("no", &["model=builtin:nano"], 1, &["model-takes-no-images", "1 of 1 rows"]);
}

/// A teacher of the run's own model, read a second time with its tower, has the bits of the weights that it began with.
#[test]
fn a_teacher_sees_by_its_own_tower() {
    let rows = r#"{"prompt": "<image>what", "images": ["rgb.png"], "hint": "ab"}
{"prompt": "<image>is<image>", "images": ["rgb.png", "turned.png"], "hint": "yes"}
{"prompt": "text", "hint": "c"}
"#;
    let run = run_over("distill", rows);
    let model = format!("distill.teacher={}", run.text_path("vl"));
    // The teacher knows the answer, so there is something to learn.
    let sets = ["rollout.group_size=2", "rollout.max_new_tokens=5", "distill.prompt={hint}{prompt}"];
    let found = ["distill.teacher=initial", &model].map(|teacher| {
        let dir = if teacher == model { "model" } else { "initial" };
        run.train(dir, &[&sets[..], &[teacher]].concat());
        assert!(number(&run.metrics(dir)[0], "grad_norm") > 0.0);
        left(&run, dir)
    });
    assert_eq!(found[0], found[1]);
    let plan = run.plan(&[&sets[..], &[&model]].concat());
    for name in ["teacher.tower.weights", "teacher.images.vectors"] {
        assert!(region(&plan, name).is_some(), "{name}");
    }
    let no_tower = [&sets[..], &["distill.teacher=random:smollm2-135m"]].concat();
    run.train_fails("no", &no_tower, 2, &["model-takes-no-images", "distill.teacher"]);
    let other = [&sets[..], &[&model, "distill.align=text"]].concat();
    run.train_fails("no", &other, 2, &["images-not-built", "another tokenizer"]);
}
