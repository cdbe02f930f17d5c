//! Training on prompts with images, from outside: what a run computes does not depend on how it is computed, and the
//! tower learns where it is to.

use crate::carry::as_after;
use crate::common::{every_nth, in_turn};
use crate::ranks::left;
use crate::run::{Run, export, json, number, region};
use crate::sees::image;
use serde_json::Value;

/// The shard of a whole model's tower.
const TOWER: &str = "model-00002-of-00002.safetensors";
const DRAWN: &str = r#"
method = "grpo"
model = "random:tiny-vl"
[data]
prompts = "builtin:digits"
image_pixels_min = 1024
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 6
[[reward]]
kind = "regex"
pattern = "[A-Za-z].*[0-9]|[0-9].*[A-Z]"
[train]
steps = 4
learning_rate = 1e-3
micro_batch_tokens = 256
cut_multiple = 4
optimizer_dtype = "f32"
[eval]
prompts_max = 4
[run]
device = "cpu"
"#;

#[test]
fn bits_do_not_depend_on_threads_ranks_or_blocks() {
    let folder = Run::new(DRAWN);
    let ways = ["run.threads=1", "run.threads=2", "--ranks=2", "rollout.kv_blocks=24"];
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("frozen", &[][..]),
            ("trained", &["model_options.tower=train"]),
            ("carried", &["async.partial_rollouts=4"]),
            ("adapters", &["lora.rank=4", "loss.kl_coef=0.01"]),
        ],
    ) {
        let mut one = None;
        for &way in &in_turn(index, &ways) {
            let way: &str = way;
            if (name, way) == ("trained", "--ranks=2") {
                continue; // Refused, see below.
            }
            let dir = format!("{name}-{}", way.replace(['=', '.', '-'], "_"));
            folder.train(&dir, &[sets, &[way]].concat());
            let metrics = folder.metrics(&dir);
            assert!(metrics.iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0), "{dir}");
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
        }
    }
}

#[test]
fn a_run_with_a_trained_tower_goes_on_with_its_bits() {
    let folder = Run::new(DRAWN);
    let sets = ["model_options.tower=train", "train.steps=6", "checkpoint.every=1", "checkpoint.keep=6"];
    folder.train("whole", &sets);
    let tower = |dir: &str| {
        let file = folder.path(dir).join("checkpoints/latest").join(TOWER);
        std::fs::read(file).expect("the weights of the tower")
    };
    let dir = as_after(&folder, "whole", 2);
    let before = tower(&dir);
    folder.train(&dir, &[&sets[..], &["--resume"]].concat());
    assert_eq!(left(&folder, &dir), left(&folder, "whole"));
    assert!(tower(&dir) == tower("whole") && tower(&dir) != before, "the tower learns, and goes on");
}

#[test]
fn a_checkpoint_and_what_is_exported_from_it_see() {
    let folder = Run::new(DRAWN);
    let picture = image("rgb.png");
    let seen = |model: &str| {
        let asked = ["--prompt", "What?", "--max-new-tokens", "8", "--json", "--set", "run.device=cpu"];
        let answer = json(&[&["generate", "--model", model, "--image", &picture][..], &asked].concat());
        [answer["tokens"].clone(), answer["logprobs"].clone()]
    };
    // A frozen tower is in the folder too.
    for (dir, tower) in [("frozen", "frozen"), ("trained", "train")] {
        folder.train(dir, &[&format!("model_options.tower={tower}"), "train.steps=2"]);
        let [from, to] = [
            folder.text_path(&format!("{dir}/checkpoints/latest")),
            folder.text_path(&format!("{dir}.whole")),
        ];
        export(&folder, dir, &to);
        assert_eq!(seen(&to), seen(&from), "{dir}");
    }
    // What is trained with adapters is next to them.
    folder.train("adapted", &["model_options.tower=train", "train.steps=2", "lora.rank=4"]);
    assert!(folder.saved("adapted", "tower.safetensors") != folder.saved("frozen", TOWER));
}

#[test]
fn samples_and_the_plan_have_the_images() {
    let folder = Run::new(DRAWN);
    folder.train("run", &[]);
    let first = folder.read_lines("run/samples/step-000001.jsonl").swap_remove(0);
    let image = &first["images"][0];
    assert_eq!(["width", "height", "tokens"].map(|key| image[key].clone()), [64, 32, 2].map(Value::from));
    let copy = folder.path("run/samples").join(image["file"].as_str().expect("a small copy"));
    assert!(std::fs::read(copy).expect("a file").starts_with(b"\x89PNG"));
    let plan = folder.plan(&[]);
    // Two vectors a prompt, of four prompts, 64 numbers each.
    let vectors = region(&plan, "images.vectors").expect("a row");
    assert_eq!(number(vectors, "bytes"), f64::from(2 * 4 * 64 * 4));
    assert!(region(&plan, "tower.adam_m").is_none());
    let trained = folder.plan(&["model_options.tower=train"]);
    assert!(region(&trained, "tower.adam_m").is_some() && region(&trained, "images.d_vectors").is_some());
}

#[test]
fn what_does_not_see_is_named() {
    let folder = Run::new(DRAWN);
    for (sets, words) in [
        (&["model_options.tower=train", "loss.kl_coef=0.1"][..], &["images-not-built", "reference"][..]),
        (&["model_options.tower=train", "--ranks=2"], &["images-not-built", "one rank"]),
        (&["model=random:nano"], &["model-takes-no-images"]),
        (
            &["data.prompts=builtin:addition", "model_options.tower=train"],
            &["contradictory-keys", "model_options.tower"],
        ),
    ] {
        folder.train_fails("no", sets, 2, words);
    }
}
