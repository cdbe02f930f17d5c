//! Training on prompts with images, from outside: what a run computes does not depend on how it is computed, and the
//! tower learns where it is to.

use crate::carry::as_after;
use crate::common::{every_nth, in_turn};
use crate::ranks::left;
use crate::run::{Run, export, has_python, number, region};
use crate::sees::image;
use plimsoll_images::PLACEHOLDER;
use plimsoll_text::DrawnTask;
use safetensors::SafeTensors;
use serde_json::{Value, json};

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
        let answer =
            crate::run::json(&[&["generate", "--model", model, "--image", &picture][..], &asked].concat());
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
    crate::run::json(&[
        "checkpoint",
        "export",
        &folder.text_path("trained"),
        "--to",
        &base,
        "--dtype",
        "f32",
        "--json",
    ]);
    let on = [&*format!("model={base}"), "model_options.dtype=f32", "train.steps=4", "lora.rank=4"];
    folder.train("tower", &[&on[..], &["model_options.tower=adapters", "train.learning_rate=1e-2"]].concat());
    let [adapter, merged] = [folder.text_path("tower/checkpoints/latest"), folder.text_path("merged")];
    let run = folder.text_path("tower");
    crate::run::json(&["checkpoint", "export", &run, "--to", &merged, "--merge", "--json"]);
    let f32s = |model: &str| -> Vec<f64> {
        let set = ["--set", "model_options.dtype=f32", "--set", "rollout.temperature=0"];
        let asked = ["--prompt", "What?", "--max-new-tokens", "3", "--json", "--set", "run.device=cpu"];
        let answer = crate::run::json(
            &[&["generate", "--model", model, "--image", &picture][..], &asked, &set].concat(),
        );
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

/// Rows of files with the images of a task that draws: half of them within the row, and names of files for the others.
fn write_rows(folder: &Run, count: u64) {
    let task = DrawnTask::find("builtin:digits").expect("a task");
    let row = |i: u64| {
        let drawn = task.train_row(1, i, PLACEHOLDER);
        let Some(Ok(plimsoll_text::ImageSource::Bytes(bytes))) = drawn.images.into_iter().next() else {
            panic!("it is drawn in memory")
        };
        let image = if i.is_multiple_of(2) {
            std::fs::write(folder.path(&format!("{i}.png")), &bytes).expect("it can be written");
            json!(format!("{i}.png"))
        } else {
            let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &bytes);
            json!(format!("data:image/png;base64,{base64}"))
        };
        json!({ "prompt": format!("<image>{i}"), "images": [image], "answer": i.to_string() })
    };
    let lines: String = (0..count).map(|i| format!("{}\n", row(i))).collect();
    folder.write("rows.jsonl", &lines);
}

/// A class whose methods are tools, which looks at the images of its row.
const LOOKS: &str = r#"
class Looks:
    def reset(self, prompt, images, answer, **row):
        (one,) = images
        data = one["bytes"] or open(one["path"], "rb").read()
        assert data.startswith(b"\x89PNG") and (one["path"] is None) == (int(answer) % 2 == 1), one["path"]
        assert prompt.count("<|image_pad|>") == 1, prompt
        self.said = 0

    def look(self, x: int) -> int:
        """Looks.

        Args:
            x: Where.
        """
        self.said += 1
        return x

    def get_reward(self):
        return float(self.said)
"#;

const TEMPLATE: &str = "{% if tools is defined %}{% set form = '<tool_call>' %}{% endif %}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

#[test]
fn episodes_whose_rows_have_images_see_them_on_any_ranks_and_carried() {
    if !has_python() {
        return;
    }
    let folder = Run::new(&DRAWN.replace("prompts = \"builtin:digits\"\n", ""));
    write_rows(&folder, 6);
    folder.write("looks.py", LOOKS);
    folder.write("template.jinja", TEMPLATE);
    let file = |name: &str| folder.text_path(name);
    let sets = [
        format!("environment.env=python:{}:Looks", file("looks.py")),
        format!("environment.rows={}", file("rows.jsonl")),
        "environment.turns_max=2".into(),
        "environment.turn_tokens_max=48".into(),
        "data.images=images".into(),
        format!("data.chat_template={}", file("template.jinja")),
        "data.prompt_tokens_max=96".into(),
        "reward=[]".into(),
        "train.steps=3".into(),
    ];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let carried = ["async.partial_rollouts=4", "environment.replay=true"];
    for (name, more) in [("whole", &[][..]), ("carried", &carried)] {
        let mut one = None;
        for way in ["run.threads=2", "--ranks=2"] {
            let dir = format!("{name}-{}", way.len());
            folder.train(&dir, &[&sets[..], more, &[way]].concat());
            let metrics = folder.metrics(&dir);
            assert!(metrics.iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0), "{dir}");
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
            let sample: Value = folder.read_lines(&format!("{dir}/samples/step-000001.jsonl")).swap_remove(0);
            assert_eq!(sample["images"][0]["width"], 64, "{sample}");
        }
    }
}

/// Classes that answer the first turn with an image, or with what is none.
const SHOWS: &str = r#"
class Shows:
    def reset(self, seed):
        self.seed, self.turns = seed, 0
        return f"look {seed % 7}"

    def step(self, response):
        self.turns += 1
        if self.turns == 2:
            return None, float(len(response) % 5), True
        image = open(f"FOLDER/{2 * (self.seed % 2)}.png", "rb").read()
        return self.said(image), 0.0, False

    def said(self, image):
        return {"role": "tool", "content": [{"type": "image", "image": image}, {"type": "text", "text": "and?"}]}

class Damaged(Shows):
    def said(self, image):
        return super().said(image[: len(image) // 2])

class Many(Shows):
    def said(self, image):
        return [super(Many, self).said(image)] * 2

class Odd(Shows):
    def said(self, image):
        return super().said("a.png")
"#;

#[test]
fn images_that_an_environment_answers_with_are_seen_where_they_stand() {
    if !has_python() {
        return;
    }
    let folder = Run::new(&DRAWN.replace("prompts = \"builtin:digits\"\n", ""));
    write_rows(&folder, 3);
    folder.write("shows.py", &SHOWS.replace("FOLDER", &folder.text_path("")));
    folder.write("template.jinja", TEMPLATE);
    let of = |class: &str| format!("environment.env=python:{}:{class}", folder.text_path("shows.py"));
    let template = format!("data.chat_template={}", folder.text_path("template.jinja"));
    let sets = [
        "environment.turns_max=2",
        "environment.turn_tokens_max=40",
        "environment.images_max=1",
        "data.prompt_tokens_max=32",
        "reward=[]",
        "train.steps=3",
        "loss.kl_coef=0.01",
        &template,
    ];
    let mut one = None;
    for way in ["run.threads=1", "run.threads=2", "rollout.kv_blocks=20"] {
        let dir = way.replace(['=', '.'], "_");
        folder.train(&dir, &[&sets[..], &[&of("Shows"), way]].concat());
        let metrics = folder.metrics(&dir);
        assert!(metrics.iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0), "{dir}");
        assert!(metrics.iter().all(|step| number(step, "time/images") > 0.0), "{dir}");
        let left = left(&folder, &dir);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
    }
    let seen = folder.read_lines("run_threads_1/samples/step-000001.jsonl").swap_remove(0);
    // Between the marks of an image are two placeholders.
    let tokens: Vec<u64> = serde_json::from_value(seen["tokens"].clone()).expect("a list");
    let marks = [259, 261].map(|mark| tokens.iter().position(|id| *id == mark).expect("a mark"));
    assert_eq!(tokens[marks[0] + 1..marks[1]], [260, 260], "{seen}");
    for (class, slug) in
        [("Damaged", "image-damaged"), ("Many", "2 images in an answer"), ("Odd", "is no image")]
    {
        let class_of = of(class);
        let sets = [&sets[..], &[&class_of, "environment.restarts_max=1"]].concat();
        folder.train_fails(class, &sets, 1, &["text-environment-failing", slug]);
    }
    let refused = |more: &[&str], words: &str| {
        let of = of("Shows");
        folder.train_fails("no", &[&sets[..], &[&of], more].concat(), 2, &["images-not-built", words]);
    };
    refused(&["--ranks=2"], "one rank");
    refused(&["async.partial_rollouts=4", "environment.replay=true"], "outlive");
}
