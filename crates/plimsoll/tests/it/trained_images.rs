//! Training on prompts with images, from outside: what a run computes does not depend on how it is computed, and the
//! tower learns where it is to.

use crate::carry::as_after;
use crate::common::{every_nth, in_turn};
use crate::ranks::left;
use crate::run::{Run, export, json, number, region};
use crate::sees::image;
use safetensors::SafeTensors;
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
            ("trained", &["model_options.tower=train", "loss.kl_coef=0.01"]),
            ("carried", &["async.partial_rollouts=4"]),
            ("critic", &["method=ppo", "model_options.tower=train"]),
            ("adapters", &["lora.rank=4", "loss.kl_coef=0.01"]),
            ("both", &["lora.rank=4", "model_options.tower=adapters", "loss.kl_coef=0.01"]),
        ],
    ) {
        let mut one = None;
        for &way in &in_turn(index, &ways) {
            let way: &str = way;
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
    let ways = [
        ("train", TOWER, &["model_options.tower=train", "loss.kl_coef=0.01"][..]),
        ("adapters", "adapter_model.safetensors", &["model_options.tower=adapters", "lora.rank=4"]),
    ];
    for (way, file, tower) in ways {
        let steps = ["train.steps=6", "checkpoint.every=1", "checkpoint.keep=6"];
        let sets = [tower, &steps].concat();
        let whole = format!("whole-{way}");
        folder.train(&whole, &sets);
        let learnt = |dir: &str| {
            let path = folder.path(dir).join("checkpoints/latest").join(file);
            let bytes = std::fs::read(path).expect("the weights of the tower");
            let tensors = SafeTensors::deserialize(&bytes).expect("a file of tensors");
            let of_tower = tensors.tensors().into_iter().filter(|(name, _)| name.contains("model.visual."));
            // A has gradients once B is not zero.
            let all = of_tower.map(|(name, tensor)| (name, tensor.data().to_vec()));
            all.collect::<std::collections::BTreeMap<_, _>>()
        };
        let dir = as_after(&folder, &whole, 2);
        let before = learnt(&dir);
        assert!(before.len() > 4, "{before:?}");
        folder.train(&dir, &[&sets[..], &["--resume"]].concat());
        assert_eq!(left(&folder, &dir), left(&folder, &whole), "{way}");
        let after = learnt(&dir);
        assert!(after == learnt(&whole), "{way} goes on");
        let same = before.iter().filter(|(name, values)| after[*name] == **values);
        // Learned positions that no patch is near stay in some rows alone.
        assert_eq!(same.map(|(name, _)| name).collect::<Vec<_>>(), Vec::<&String>::new(), "{way} learns");
    }
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
    // Adapters of text and tower become a whole model of both, up to the order of sums in f32.
    let base = folder.text_path("base");
    json(&["checkpoint", "export", &folder.text_path("trained"), "--to", &base, "--dtype", "f32", "--json"]);
    let on = [&*format!("model={base}"), "model_options.dtype=f32", "train.steps=4", "lora.rank=4"];
    folder.train("tower", &[&on[..], &["model_options.tower=adapters", "train.learning_rate=1e-2"]].concat());
    let [adapter, merged] = [folder.text_path("tower/checkpoints/latest"), folder.text_path("merged")];
    json(&["checkpoint", "export", &adapter, "--to", &merged, "--merge", "--json"]);
    let f32s = |model: &str| -> Vec<f64> {
        let set = ["--set", "model_options.dtype=f32", "--set", "rollout.temperature=0"];
        let asked = ["--prompt", "What?", "--max-new-tokens", "3", "--json", "--set", "run.device=cpu"];
        let answer = json(&[&["generate", "--model", model, "--image", &picture][..], &asked, &set].concat());
        answer["logprobs"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect()
    };
    let [own, whole, before] = [&adapter, &merged, &base].map(|model| f32s(model));
    let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart(&own, &whole) < 1e-4 && apart(&own, &before) > 1e-3, "{own:?} {whole:?} {before:?}");
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
    // A reference sees by the tower as it was: by a copy, or by the weights without their adapters.
    let has = |plan: &Value, names: [&str; 3]| names.map(|name| region(plan, name).is_some());
    let names = ["reference.images", "reference.tower", "tower.adam_m"];
    assert_eq!(has(&trained, names), [false, false, true]);
    let kl = folder.plan(&["model_options.tower=train", "loss.kl_coef=0.01"]);
    assert_eq!(has(&kl, names), [true, true, true]);
    let adapters = folder.plan(&["model_options.tower=adapters", "lora.rank=4", "loss.kl_coef=0.01"]);
    assert_eq!(has(&adapters, names), [true, false, false]);
    let bytes = |plan: &Value| number(region(plan, "actor.adapters").expect("a row"), "bytes");
    assert!(bytes(&adapters) > 1.2 * bytes(&folder.plan(&["lora.rank=4"])), "those of the tower, too");
}

#[test]
fn what_does_not_see_is_named() {
    let folder = Run::new(DRAWN);
    for (sets, words) in [
        (
            &["model_options.tower=train", "--ranks=2", "async.rollout_ranks=1", "async.staleness=1"][..],
            &["images-not-built", "only sample"][..],
        ),
        (&["model=random:nano"], &["model-takes-no-images"]),
        (&["model_options.tower=adapters"], &["contradictory-keys", "[lora]"]),
        (
            &["data.prompts=builtin:addition", "model_options.tower=train"],
            &["contradictory-keys", "model_options.tower"],
        ),
    ] {
        folder.train_fails("no", sets, 2, words);
    }
}
