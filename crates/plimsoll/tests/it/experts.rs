//! Experts from outside: any number of ranks, resuming, adapters, quantised or streamed weights; what is refused.

use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, export, json as json_of, number, object, region};
use crate::tiny;
use serde_json::{Value, json};

/// A run of a tiny model: a dense layer, two with 6 experts of which a token has 2, and the tokenizer of nano.
fn run_of_experts() -> Run {
    let folder = Run::new("");
    tiny::write(
        &folder.path("moe"),
        &json!({
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3,
            "intermediate_size": 128, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "norm_topk_prob": true, "mlp_only_layers": [0],
        }),
    );
    folder.write("moe.toml", &tiny::run_of(&folder.text_path("moe")));
    folder.file("moe.toml")
}

const ATTENTION: [&str; 2] = ["lora.rank=4", "lora.targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]"];

#[test]
fn the_number_of_ranks_changes_no_bit_of_experts() {
    let folder = run_of_experts();
    for (index, (name, sets)) in every_nth(
        3,
        [
            ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
            ("balance", &["loss.balance_coef=0.1", "train.mini_batch=4"]),
            ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
            ("muon", &["train.optimizer=muon", "run.zero_stage=3"]),
            ("attention", &[ATTENTION[0], ATTENTION[1], "loss.kl_coef=0.05"]),
            ("adapters", &["lora.rank=4", "loss.kl_coef=0.05", "train.mini_batch=4"]),
            ("merged", &["lora.rank=3", "lora.merge=true", "run.zero_stage=2", "train.recompute=layer"]),
        ],
    ) {
        tiny::check_ranks(&folder, index, name, sets);
    }
}

#[test]
fn a_run_of_experts_goes_on_and_its_weights_may_be_elsewhere() {
    let folder = run_of_experts();
    folder.train("whole", &[]);
    folder.train("cut", &["train.steps=2"]);
    folder.train("cut", &["train.steps=3", "--resume"]);
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    folder.train("away", &["memory.offload=[\"optimizer\"]"]);
    assert_eq!(folder.weights("whole"), folder.weights("away"));
    // A reference in the host's memory passes through the arena, whose slots the layers with experts fill.
    folder.train("near", &["loss.kl_coef=0.05"]);
    folder.train("far", &["loss.kl_coef=0.05", "memory.offload=[\"reference\"]"]);
    assert_eq!(left(&folder, "near"), left(&folder, "far"));
    // What was saved is a model that opens, with the tensors of each expert.
    let again = format!("model={}", folder.text_path("whole/checkpoints/latest"));
    folder.train("again", &[&again, "train.steps=1"]);
}

#[test]
fn adapters_of_all_linear_layers_are_trained_in_every_form() {
    let folder = run_of_experts();
    // The frozen base may be in 4 bits, experts included.
    for (name, sets) in [
        ("attention", &ATTENTION[..]),
        ("attention in codes", &[ATTENTION[0], ATTENTION[1], "lora.quantize=nf4"]),
        ("all", &["lora.rank=4"]),
        ("merged", &["lora.rank=4", "lora.merge=true"]),
        ("in codes", &["lora.rank=4", "lora.quantize=nf4"]),
        ("experts in bf16", &["lora.rank=4", "lora.targets=[\"down_proj\"]", "model_options.dtype=bf16"]),
    ] {
        folder.train(name, &[sets, &["train.steps=2"]].concat());
        for step in folder.metrics(name) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{name}: {step}");
            assert!(number(&step, "grad_norm") > 0.0, "{name}: {step}");
        }
    }
}

#[test]
fn adapters_of_experts_go_on_and_are_exported_and_merged() {
    let folder = run_of_experts();
    let sets = |more: &[&'static str]| [&["lora.rank=4", "train.learning_rate=1e-2"], more].concat();
    folder.train("whole", &sets(&[]));
    folder.train("cut", &sets(&["train.steps=2"]));
    folder.train("cut", &sets(&["train.steps=3", "--resume"]));
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    let [adapter, merged] = ["adapter", "whole model"].map(|name| folder.text_path(name));
    export(&folder, "whole", &adapter);
    // Two layers of 6 experts and a dense one, three linear layers each, plus four of attention: an A and a B each.
    let bytes = folder.read("adapter/adapter_model.safetensors");
    let names = String::from_utf8_lossy(&bytes);
    let name = "base_model.model.model.layers.2.mlp.experts.5.down_proj.lora_B.weight";
    assert!(names.contains(name) && names.matches(".lora_").count() == 2 * (2 * 6 * 3 + 3 + 3 * 4));
    // It is trained on as it is, and a whole model of it opens.
    folder.train("on", &sets(&[&*format!("lora.adapter={adapter}").leak(), "train.steps=1"]));
    let run = folder.text_path("whole");
    let found = json_of(&["checkpoint", "export", &run, "--merge", "--to", &merged, "--json"]);
    assert!(number(&found["merged"], "change_max") > 0.0, "{found}");
    folder.train("merged", &[&*format!("model={merged}"), "train.steps=1"]);
}

#[test]
fn a_loss_of_balance_loads_experts_equally() {
    let folder = run_of_experts();
    let sets = ["train.steps=12", "train.learning_rate=3e-3", "train.schedule=constant"];
    let last = |dir: &str, sets: &[&str]| {
        folder.train(dir, sets);
        let metrics = folder.metrics(dir);
        // Two of six experts a token: the loss is 2 where all get as much.
        for step in &metrics {
            assert!(
                number(step, "experts/load_max") >= 1.0 && number(step, "experts/idle") <= 10.0,
                "{step}"
            );
            assert!((1.0..6.0).contains(&number(step, "experts/balance")), "{step}");
        }
        number(metrics.last().expect("steps"), "experts/balance")
    };
    let (without, with) =
        (last("without", &sets), last("with", &[&sets[..], &["loss.balance_coef=1.0"]].concat()));
    assert!(with < without - 0.5, "{with} with the loss, {without} without it");
    let refused =
        ["error[contradictory-keys]: loss.balance_coef = 1 keeps experts equally loaded, and ", "hint: "];
    for sets in [&["model=builtin:nano"][..], &ATTENTION] {
        folder.train_refused("no", &[sets, &["loss.balance_coef=1.0"]].concat(), 2, &refused);
    }
    let said = ["error[bad-value]: ", "loss.balance_coef", "finite in f32"];
    folder.train_refused("huge", &["loss.balance_coef=1e300"], 2, &said);
    folder.train_refused("nan", &["loss.balance_coef=nan"], 2, &["error[bad-value]: ", "loss.balance_coef"]);
}

#[test]
fn a_30b_model_with_experts_is_planned() {
    let folder = run_of_experts();
    let sets = ["model=random:qwen3-30b-a3b", "--limit=host=2TiB,disk=8TiB"];
    let weights = |plan: &Value| region(plan, "actor.weights").expect("a row").clone();
    let plan = folder.plan(&sets);
    // 30,532,122,624 parameters of 2 bytes, and what aligns 2 norms of 128 in each of 48 layers to 256.
    assert_eq!(
        number(&weights(&plan), "bytes"),
        2.0 * (30_532_122_624.0 + 48.0 * 256.0),
        "{}",
        weights(&plan)
    );
    let adapters = folder.plan(&[&sets[..], &ATTENTION].concat());
    assert_eq!(weights(&adapters), weights(&plan));
    let bytes = |plan: &Value, name: &str| number(region(plan, name).expect("a row"), "bytes");
    assert!(bytes(&adapters, "actor.grads") < 1e-3 * bytes(&plan, "actor.grads"), "experts are frozen");
    assert!(bytes(&adapters, "update.experts.out") > 0.0);
    // 48 layers x 32 x (2 (2048 + 4096) + 2 (2048 + 512) + 128 x 3 (2048 + 768)), which whole blocks of 256 hold.
    let all = folder.plan(&[&sets[..], &["lora.rank=32"]].concat());
    let trained = 48.0 * 32.0 * (2.0 * 6144.0 + 2.0 * 2560.0 + 128.0 * 3.0 * 2816.0);
    assert_eq!(bytes(&all, "actor.grads"), 4.0 * trained);
    assert!(bytes(&all, "files.headers") > bytes(&plan, "files.headers"));
    assert!(bytes(&all, "rollout.adapt.u") > 0.0 && bytes(&all, "update.adapt.d_u") > 0.0);
}

#[test]
fn adapters_of_more_experts_than_a_file_has_room_for_are_refused() {
    let folder = run_of_experts();
    let refused =
        ["error[lora-unsupported]: adapters of all-linear have 72944 tensors", "hint: name fewer of"];
    let model = "model=random:qwen3-235b-a22b";
    folder.train_refused("many", &[model, "lora.rank=4"], 2, &refused);
}

#[test]
fn hints_of_a_refused_plan_hold_for_a_model_with_experts() {
    let folder = run_of_experts();
    let limits = ["--limit", "device=80GiB,host=256GiB,disk=8TiB"];
    let plan = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let file = folder.text_path("moe.toml");
        object(
            &[&["plan", &*file, "--json", "--set", "model=random:qwen3-30b-a3b"], &limits[..], &sets]
                .concat(),
        )
    };
    let (code, refused) = plan(&[]);
    assert_eq!(code, 3, "{}", refused["pools"]);
    // 18,867 tensors in each of three sets: the header of a checkpoint is no longer small.
    let headers = |plan: &Value| {
        let mut rows = plan["regions"].as_array().expect("a list").iter();
        rows.find(|row| row["name"] == "files.headers").map(|row| row["bytes"].as_u64().expect("bytes"))
    };
    assert!(headers(&refused).expect("a row") > 3 * 18_867 * 1_270, "{:?}", headers(&refused));
    // Those without a key name a limit that the machine would have to have.
    let hints = refused["hints"].as_array().expect("a list").iter();
    let hints: Vec<&str> = hints.filter_map(|hint| hint["set"].as_str()).collect();
    let adapters = |set: &&str| set.contains("lora.rank=") && !set.contains("lora.targets=");
    assert!(hints.iter().any(adapters), "{hints:?}");
    for hint in hints {
        assert!(!hint.contains("lora.rank=") || adapters(&hint), "{hint}");
        let sets: Vec<&str> = hint.split(" --set ").collect();
        let (code, plan) = plan(&sets);
        assert_eq!((code, &plan["fits"]), (0, &true.into()), "{hint}: {}", plan["hints"]);
        // 48 layers with an A and a B of 3 targets of 128 experts.
        let of_adapters = headers(&plan).filter(|bytes| *bytes > 3 * 48 * 2 * 3 * 128 * 1_270);
        assert!(!adapters(&hint) || of_adapters.is_some(), "{hint}: {:?}", headers(&plan));
    }
}
