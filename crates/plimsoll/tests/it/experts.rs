//! Models with experts from outside: runs on any number of ranks, from where they stopped, with adapters of attention, with weights in
//! codes and elsewhere; and what is refused.

use crate::ranks::left;
use crate::run::{Run, number, object, region};
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
    folder.write("moe.toml", &tiny::RUN.replace("MODEL", &folder.text_path("moe")));
    folder.file("moe.toml")
}

const ATTENTION: [&str; 2] = ["lora.rank=4", "lora.targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]"];

#[test]
fn the_number_of_ranks_changes_no_bit_of_experts() {
    let folder = run_of_experts();
    for (name, sets) in [
        ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
        ("balance", &["loss.balance_coef=0.1", "train.mini_batch=4"]),
        ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
        ("attention", &[ATTENTION[0], ATTENTION[1], "loss.kl_coef=0.05"]),
    ] {
        tiny::check_ranks(&folder, name, sets);
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
fn adapters_of_attention_leave_experts_alone_and_those_of_experts_are_refused() {
    let folder = run_of_experts();
    let refused = [
        "error[lora-unsupported]: gate_proj, up_proj, down_proj of a qwen3_moe model are matrices of experts",
        "hint: set lora.targets = [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]",
    ];
    folder.train_refused("all", &["lora.rank=4"], 2, &refused);
    // The frozen base may be in 4 bits, experts included.
    for more in ["lora.rank=4", "lora.quantize=nf4"] {
        folder.train(more, &[ATTENTION[0], ATTENTION[1], more, "train.steps=2"]);
        for step in folder.metrics(more) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{more}: {step}");
            assert!(number(&step, "grad_norm") > 0.0, "{more}: {step}");
        }
    }
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
    let adapters = |set: &&str| {
        set.contains("lora.rank=") && set.contains(r#"lora.targets=["q_proj","k_proj","v_proj","o_proj"]"#)
    };
    assert!(hints.iter().any(adapters), "{hints:?}");
    for hint in hints {
        assert!(!hint.contains("lora.rank=") || adapters(&hint), "{hint}");
        let sets: Vec<&str> = hint.split(" --set ").collect();
        let (code, plan) = plan(&sets);
        assert_eq!((code, &plan["fits"]), (0, &true.into()), "{hint}: {}", plan["hints"]);
        assert!(!adapters(&hint) || headers(&plan).is_none(), "{hint}: adapters are few");
    }
}
