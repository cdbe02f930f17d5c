//! The forms of `[lora]` from outside: weights with the adapters in them, and frozen 4-bit weights. Each is exact,
//! resumes and is dealt to ranks as plain adapters are, and has its own properties.

use crate::common::{plimsoll, text};
use crate::ranks::left;
use crate::run::{Run, json as printed, number, region};
use serde_json::Value;
use std::fs;

const FIRST_LORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-lora.toml");
const MERGE: &str = "lora.merge=true";
const CODES: &str = "lora.quantize=nf4";
const WEIGHTS: &str = "adapter_model.safetensors";

fn recipe() -> Run {
    Run::new(&fs::read_to_string(FIRST_LORA).expect("a recipe"))
}

/// A few small steps.
const SHORT: [&str; 6] = [
    "train.steps=4",
    "train.schedule=constant",
    "rollout.prompts_per_step=4",
    "rollout.group_size=2",
    "eval.prompts_max=30",
    "checkpoint.every=1",
];

fn result(folder: &Run, dir: &str) -> [Vec<u8>; 2] {
    [WEIGHTS, "state/optimizer.safetensors"].map(|file| folder.saved(dir, file))
}

#[test]
fn each_form_is_exact_and_within_its_plan() {
    let folder = recipe();
    let few = ["train.steps=4", "eval.prompts_max=8", "rollout.prompts_per_step=8", "loss.kl_coef=0.001"];
    for form in [MERGE, CODES] {
        let sets = [&few[..], &[form]].concat();
        let summary = folder.summary(form, &sets);
        assert_eq!(summary["logprob_mismatch_max"], 0.0, "{form}");
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"], "{form}");
        // The reference is the base, in the form in which it is stored: the first step is not away from it.
        let kls: Vec<f64> = folder.metrics(form).iter().map(|step| number(step, "kl")).collect();
        if form == CODES {
            assert_eq!(kls[0], 0.0, "{kls:?}");
        }
        assert!(kls.iter().skip(2).all(|kl| *kl > 0.0), "{form}: {kls:?}");
        let plan = folder.plan(&sets);
        let has = |name: &str| region(&plan, name).is_some();
        assert_eq!((has("actor.merged"), has("actor.codes")), (form == MERGE, form == CODES));
        assert!(!has("reference.weights"), "{form}: a second model");
    }
}

/// Shows that a run over weights in 4 bits is exact and within its plan in every family.
#[test]
fn adapters_over_codes_are_exact_and_within_their_plan_in_every_family() {
    let folder = recipe();
    let few = [
        "train.steps=2",
        "eval.prompts_max=8",
        "rollout.prompts_per_step=4",
        "rollout.group_size=2",
        "lora.rank=4",
        CODES,
    ];
    for (index, preset) in
        ["qwen3.5-moe", "qwen3-next", "ministral-3", "glm-4.5", "deepseek-v2", "gemma-4"].iter().enumerate()
    {
        let model = format!("model=random:nano-{preset}");
        let targets = match *preset {
            "qwen3-next" => "[\"q_proj\", \"in_proj_qkvz\", \"experts.gate_up_proj\"]",
            "glm-4.5" => "[\"q_proj\", \"experts.down_proj\", \"shared_experts.up_proj\"]",
            "deepseek-v2" => {
                "[\"q_proj\", \"kv_a_proj_with_mqa\", \"kv_b_proj\", \"shared_experts.down_proj\"]"
            }
            _ => "\"all-linear\"",
        };
        let dtype = ["model_options.dtype=f32", "model_options.dtype=bf16"][index % 2];
        let targets = format!("lora.targets={targets}");
        let summary = folder.summary(preset, &[&few[..], &[&*model, &*targets, dtype]].concat());
        assert_eq!(summary["logprob_mismatch_max"], 0.0, "{preset}");
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"], "{preset}");
        let [peak, planned] = ["rss_peak_bytes", "rss_planned_bytes"].map(|of| summary[of].as_u64());
        assert!(peak.expect("bytes") <= planned.expect("bytes"), "{preset}: {summary}");
    }
}

#[test]
fn each_form_goes_on_with_its_bits_and_on_any_number_of_ranks() {
    let folder = recipe();
    for (name, form) in [("merged", MERGE), ("codes", CODES)] {
        let sets = [&SHORT[..], &[form, "train.cut_multiple=4"]].concat();
        let mut one = None;
        for ranks in [1, 2] {
            let (dir, flag) = (format!("{name}-{ranks}"), format!("--ranks={ranks}"));
            folder.train(&dir, &[&sets[..], &[&*flag]].concat());
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{name} on {ranks} ranks");
        }
        let dir = format!("{name}-less");
        folder.train(&dir, &[&sets[..], &["train.steps=2", "--ranks=2"]].concat());
        folder.train(&dir, &[&sets[..], &["--resume"]].concat());
        assert!(result(&folder, &dir) == result(&folder, &format!("{name}-1")), "{name}: other bits");
    }
    // Another form is another run.
    let sets = [&SHORT[..], &["train.cut_multiple=4", "--resume"]].concat();
    let changed = "error[run-file-changed]: ";
    folder.train_refused(
        "codes-1",
        &sets,
        2,
        &[changed, "lora.quantize is absent, the run began with \"nf4\""],
    );
    folder.train_refused("merged-1", &sets, 2, &[changed, "lora.merge is false, the run began with true"]);
    // Each computes something of its own.
    folder.train("plain", &[&SHORT[..], &["train.cut_multiple=4"]].concat());
    let of = |dir: &str| result(&folder, dir);
    assert!(of("plain") != of("merged-1") && of("plain") != of("codes-1"));
}

#[test]
fn an_adapter_over_codes_is_sampled_with_and_merged_as_it_was_trained() {
    let folder = recipe();
    let summary = folder.summary("out", &["train.steps=10", "eval.prompts_max=30", "eval.every=10", CODES]);
    let config = folder.read_json("out/checkpoints/latest/adapter_config.json");
    assert_eq!(config["base_quantization"], "nf4");
    let score = |model: &str| {
        let output = folder.text_path("responses.jsonl");
        let _ = fs::remove_file(&output);
        let args = ["eval", "--model", model, "--data", "builtin:addition", "--prompts-max", "30"];
        let found = printed(&[&args[..], &["--max-new-tokens", "5", "--output", &output, "--json"]].concat());
        (number(&found, "score"), folder.read_lines("responses.jsonl"))
    };
    let (of_adapter, responses) = score(&folder.text_path("out/checkpoints/latest"));
    assert_eq!(of_adapter, number(&summary, "eval_after"));
    let own = folder.read_lines("out/samples/eval-000010.jsonl");
    for (here, there) in responses.iter().zip(&own) {
        assert_eq!((&here["response"], &here["logprobs"]), (&there["response"], &there["logprobs"]));
    }
    let (run, merged) = (folder.text_path("out"), folder.text_path("merged"));
    let output = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
    let said = text(&output.stdout);
    assert!(said.contains("whose linear layers are what nf4 makes of them"), "{said}");
    let alone = plimsoll(&["checkpoint", "export", &run, "--to", &folder.text_path("alone")]);
    let said = text(&alone.stderr);
    assert!(said.contains("belongs to weights in nf4"), "{said}");
    let (of_merged, _) = score(&merged);
    assert!((of_merged - of_adapter).abs() <= 0.1, "{of_merged} merged, {of_adapter} as an adapter");
}

#[test]
fn what_has_no_form_is_refused_by_name() {
    let folder = recipe();
    let golden = concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/qwen2");
    let phi = concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/phi3");
    for (sets, slug, words) in [
        (&[MERGE, CODES][..], "contradictory-keys", "remove lora.merge or lora.quantize"),
        (&["lora.quantize=int4"], "bad-value", "nf4"),
        (&["lora.load_in_8bit=true"], "lora-unsupported", "8 bits"),
        (&[phi, "lora.rank=4"], "lora-unsupported", "set lora.targets = [\"o_proj\", \"down_proj\"]"),
        (&[CODES, golden, "lora.rank=4"], "lora-unsupported", "multiples of 64"),
    ] {
        folder.plan_refused(sets, 2, &[&format!("error[{slug}]: "), words]);
    }
}

#[test]
fn a_plan_offers_what_fits() {
    let small = "device=20GiB,host=64GiB,disk=1TiB";
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/qwen2.5-7b-lora-24gb.toml");
    let plan = |more: &[&str]| -> Value {
        let args =
            [&["plan", recipe, "--json", "--limit", small, "--set", "memory.device=20GiB"], more].concat();
        serde_json::from_slice(&plimsoll(&args).stdout).expect("an object")
    };
    let offers = |plan: &Value, what: &str| {
        plan["hints"].as_array().is_some_and(|hints| hints.iter().any(|hint| hint.to_string().contains(what)))
    };
    let tight = plan(&["--set", "train.micro_batch_tokens=4096", "--set", "rollout.sequences_max=64"]);
    assert_eq!(tight["fits"], false, "{tight}");
    assert!(offers(&tight, CODES), "{}", tight["hints"]);
    let merged = plan(&["--set", MERGE]);
    assert!(offers(&merged, "lora.merge=false") || offers(&merged, "memory.device"), "{}", merged["hints"]);
}

/// The planner merges where that is predicted to be faster and fits, and a run keeps what was chosen.
#[test]
fn merge_is_left_to_the_planner_and_kept() {
    const AUTO: &str = "lora.merge=auto";
    let folder = recipe();
    let fixed = ["train.micro_batch_tokens=2048", "train.recompute=none", "rollout.sequences_max=256"];
    let few = ["train.steps=4", "train.schedule=constant", "eval.prompts_max=30", "checkpoint.every=1"];
    let sets = |more: &[&'static str]| [&few[..], &fixed, &["memory.staging=1MiB"], more].concat();
    let peak = |plan: &Value| number(&plan["pools"]["host"], "peak_bytes");
    let [merged, alone, auto] = [MERGE, "lora.merge=false", AUTO].map(|set| folder.plan(&sets(&[set])));
    assert!(peak(&merged) > peak(&alone) + 5e5, "{} and {}", peak(&merged), peak(&alone));
    assert_eq!((peak(&auto), &auto["resolved"]["merge"]), (peak(&merged), &Value::Bool(true)), "{auto}");
    assert!(region(&auto, "actor.merged").is_some() && merged["resolved"]["merge"].is_null());
    assert!(auto["auto"]["runner_up"]["merge"] == false, "{}", auto["auto"]);
    let words = text(&plimsoll(&["plan", &folder.text_path("x.toml"), "--set", AUTO]).stdout);
    assert!(words.contains("merge true"), "{words}");
    // Where it does not fit.
    let tight = format!("memory.host={}", ((peak(&merged) + peak(&alone)) / 2.0) as u64);
    let small = folder.plan(&[&sets(&[AUTO])[..], &[&tight]].concat());
    assert_eq!((peak(&small), &small["resolved"]["merge"]), (peak(&alone), &Value::Bool(false)), "{small}");
    let coded = folder.plan(&sets(&[AUTO, CODES]));
    assert_eq!(coded["resolved"]["merge"], false, "{}", coded["resolved"]);
    // The bits are those of the choice, also of a run that goes on where another one would be made.
    let said = folder.train("auto", &sets(&[AUTO]));
    assert!(said.contains(", adapters merged (auto), "), "{said}");
    assert!(String::from_utf8_lossy(&folder.read("auto/run.toml")).contains("merge = true"));
    folder.train("merged", &sets(&[MERGE]));
    assert!(result(&folder, "auto") == result(&folder, "merged"), "other bits");
    let said = folder.train("alone", &[&sets(&[AUTO, "train.steps=2"])[..], &[&tight]].concat());
    assert!(said.contains(", adapters alone (auto), "), "{said}");
    folder.train("alone", &[&sets(&[AUTO])[..], &["--resume", "--replan"]].concat());
    folder.train("explicit", &sets(&["lora.merge=false"]));
    assert!(result(&folder, "alone") == result(&folder, "explicit"), "a resumed run chose again");
}
