//! `[lora]`, good and bad.

use super::*;
use plimsoll_arch::{LoraTarget, LoraTargets};
use std::path::Path;

fn spec(sets: &[&str]) -> LoraSpec {
    let sets: Vec<&str> = ["lora={}"].iter().chain(sets).copied().collect();
    RunSpec::new(&load_text(GOOD, &sets, &[]).unwrap().run).lora.clone().expect("[lora] is set")
}

#[test]
fn an_empty_section_trains_adapters_of_rank_16_in_all_linear_layers() {
    assert_eq!(RunSpec::new(&load_text(GOOD, &[], &[]).unwrap().run).lora, None);
    let lora = spec(&[]);
    assert_eq!((lora.rank, lora.alpha, lora.rslora, lora.scale()), (16, 32.0, false, 2.0));
    assert_eq!((lora.targets, lora.adapter), (LoraTargets::ALL, None));
    let in_file = load_text(&format!("{GOOD}[lora]\nrank = 8\n"), &[], &[]).unwrap();
    assert_eq!(in_file.run.lora.as_ref().map(|lora| (lora.rank, lora.alpha)), Some((8, Some(16.0))));
    assert_eq!(in_file.provenance.describe("lora.alpha"), "auto: 2 x lora.rank");
    assert!(in_file.notes.is_empty(), "{:?}", in_file.notes);
}

#[test]
fn the_scale_is_alpha_over_the_rank_or_over_its_root() {
    assert_eq!(spec(&["lora.rank=4", "lora.alpha=2"]).scale(), 0.5);
    assert_eq!(spec(&["lora.rank=4", "lora.alpha=2", "lora.rslora=true"]).scale(), 1.0);
    assert_eq!(spec(&["lora.rank=256"]).scale(), 2.0);
}

#[test]
fn names_of_peft_are_taken() {
    let lora = spec(&[
        "lora.r=8",
        "lora.lora_alpha=24",
        "lora.use_rslora=true",
        "lora.lora_dropout=0.0",
        "lora.bias=none",
        "lora.init_lora_weights=true",
        "lora.use_dora=false",
        "lora.modules_to_save=[]",
        "lora.adapter=runs/a",
    ]);
    assert_eq!((lora.rank, lora.alpha, lora.rslora), (8, 24.0, true));
    assert_eq!(lora.adapter.as_deref(), Some(Path::new("runs/a")));
}

#[test]
fn targets_are_matched_as_in_peft() {
    use LoraTarget::{Down, Gate, Q, V};
    let all: Vec<LoraTarget> = LoraTargets::ALL.iter().collect();
    for (text, expect) in [
        ("all-linear", &all[..]),
        ("[\"all-linear\"]", &all),
        ("q_proj", &[Q]),
        ("[\"v_proj\", \"q_proj\", \"q_proj\"]", &[Q, V]),
        ("[\"self_attn.q_proj\", \"mlp.down_proj\", \"gate_proj\"]", &[Q, Gate, Down]),
        (".*_proj", &all),
        ("[\"in_proj_qkv\", \"linear_attn.out_proj\"]", &[LoraTarget::DeltaQkv, LoraTarget::DeltaOut]),
        (".*linear_attn.in_proj_ba", &[LoraTarget::DeltaBa]),
        ("shared_expert.up_proj", &[LoraTarget::SharedUp]),
        ("[\"q_b_proj\", \"shared_experts.up_proj\"]", &[LoraTarget::QueryUp, LoraTarget::SharedUps]),
        ("mlp.shared_experts.gate_proj.weight", &[LoraTarget::SharedGates]),
        ("model\\.layers\\.\\d+\\.self_attn\\.(q|v)_proj", &[Q, V]),
        (".*(gate|down)_proj$", &[Gate, Down]),
    ] {
        let found = spec(&[&format!("lora.target_modules={text}")]).targets;
        assert_eq!(found.iter().collect::<Vec<_>>(), expect, "{text}");
    }
}

#[test]
fn what_peft_has_and_this_build_has_not_is_refused_by_name() {
    for (set, slug, contains) in [
        ("lora.merge=yes", "bad-type", "lora.merge"),
        ("lora.quantize=fp4", "bad-value", "nf4"),
        ("lora.load_in_8bit=true", "lora-unsupported", "a base model of 8 bits is not built"),
        ("lora.load_in_4bit=4", "bad-type", "true or false"),
        ("lora={merge = true, quantize = \"nf4\"}", "contradictory-keys", "a copy in full"),
        ("lora.use_dora=true", "lora-unsupported", "DoRA"),
        ("lora.modules_to_save=[\"lm_head\"]", "lora-unsupported", "trained in full"),
        ("lora.bias=all", "lora-unsupported", "remove `lora.bias`"),
        ("lora.init_lora_weights=pissa", "lora-unsupported", "initialisation"),
        ("lora.init_lora_weights=false", "lora-unsupported", "initialisation"),
        ("lora.layers_to_transform=[0, 1]", "lora-unsupported", "some of the layers"),
        ("lora.rank_pattern={q_proj=8}", "lora-unsupported", "a rank of its own"),
        ("lora.alpha_pattern={q_proj=8}", "lora-unsupported", "an alpha of its own"),
        ("lora.dropout=0.05", "lora-unsupported", "another one than the policy that sampled"),
        ("lora.dropout=-1", "bad-value", "lora.dropout"),
        ("lora.dropout=nan", "bad-value", "lora.dropout"),
        ("lora.targets=[\"lm_head\"]", "lora-unsupported", "embeddings and head"),
        ("lora.targets=model.embed_tokens", "lora-unsupported", "embeddings and head"),
        ("lora.targets=.*[qv]_proj(", "bad-value", "is not a regular expression"),
        ("lora.targets=.*_projection", "bad-value", "model.layers.0.self_attn.q_proj"),
        ("lora.targets=.*\\.[0-9]\\.mlp.*", "lora-unsupported", "in some layers only"),
        ("lora.targets=[\"(q|v)_proj\"]", "lora-unsupported", "not in a list"),
        ("lora.targets=[\"layers.3.self_attn.q_proj\"]", "lora-unsupported", "lora.targets = [\"q_proj\"]"),
        ("lora.targets=[\"qproj\"]", "bad-value", "did you mean \"q_proj\"?"),
        ("lora.targets=[\"query_key_value\"]", "bad-value", "there are q_proj, k_proj, v_proj, o_proj"),
        ("lora.targets=[\"attn.q_proj\"]", "bad-value", "matches no linear layer"),
        ("lora.targets=[\"\"]", "bad-value", "matches no linear layer"),
        ("lora.targets=[]", "bad-value", "at least one target"),
        ("lora.targets=3", "bad-type", "a whole number"),
        ("lora.targets=[3]", "bad-type", "a whole number"),
        ("lora.rank=0", "bad-value", "a number from 1 to 256"),
        ("lora.rank=257", "bad-value", "257"),
        ("lora.rank=8.0", "bad-type", "lora.rank"),
        ("lora.alpha=0", "bad-value", "above 0"),
        ("lora.alpha=1e300", "bad-value", "finite"),
        ("lora.adapter=", "bad-value", "adapter_config.json"),
        ("lora.critic=adapter", "contradictory-keys", "method = \"grpo\", which has no critic"),
        ("lora.critic=frozen", "bad-value", "lora.critic"),
        ("lora.ranks=8", "unknown-key", "did you mean `lora.rank`?"),
        ("lora=8", "bad-type", "a table"),
        ("train.lora_rank=8", "unknown-key", "`lora_rank` belongs in [lora]"),
        ("model_options.use_peft=true", "unknown-key", "write a section [lora]"),
    ] {
        let error = load_text(GOOD, &[set], &[]).expect_err(set);
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{set}: {error}");
        assert!(error.to_string().contains(contains), "{set} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{set}: {error}");
    }
}

#[test]
fn a_refused_key_shows_its_line() {
    let error = load_text(&format!("{GOOD}[lora]\nuse_dora = true\n"), &[], &[]).unwrap_err();
    assert!(error.to_string().contains("x.toml:18:1: `lora.use_dora`: DoRA is not built"), "{error}");
    assert!(error.to_string().contains("18 | use_dora = true"), "{error}");
}

#[test]
fn gradients_and_states_of_adapters_are_f32() {
    for (set, contains) in [
        ("train.grad_dtype=bf16", "set it to \"f32\""),
        ("train.optimizer_dtype=bf16", "remove train.optimizer_dtype"),
        ("train.optimizer_dtype=int8", "adapters are f32"),
    ] {
        let error = load_text(GOOD, &["lora={}", set], &[]).expect_err(set);
        assert_eq!(error.slug, "contradictory-keys", "{error}");
        assert!(error.to_string().contains(contains), "{set} lacks {contains}: {error}");
    }
    spec(&["train.grad_dtype=f32", "train.optimizer_dtype=f32"]);
}

#[test]
fn environment_policies_and_collectors_have_no_adapters() {
    let policy = "method = \"ppo\"\nmodel = \"mlp:8x8\"\n[environment]\nenv = \"CartPole-v1\"\ntotal_frames = 4096\n[train]\nlearning_rate = 1e-3\n";
    load_text(policy, &[], &[]).unwrap();
    let error = load_text(policy, &["lora.rank=4"], &[]).unwrap_err();
    assert_eq!(error.slug, "contradictory-keys", "{error}");
    assert!(error.message.contains("trained in full"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("collect.toml");
    std::fs::write(&path, "env = \"CartPole-v1\"\nnum_envs = 8\nframes_per_batch = 64\n[lora]\nrank = 4\n")
        .unwrap();
    let error = load_env(&path, &[], std::iter::empty()).unwrap_err();
    assert_eq!(error.slug, "unknown-key", "{error}");
    assert!(error.to_string().contains("hint: remove `lora`"), "{error}");
}

#[test]
fn a_learning_rate_of_full_fine_tuning_has_a_note() {
    let notes = |sets: &[&str]| load_text(GOOD, sets, &[]).unwrap().notes;
    let low = notes(&["lora={}", "train.learning_rate=1e-6"]);
    assert!(low.len() == 1 && low[0].contains("train.learning_rate = 1e-6"), "{low:?}");
    assert!(notes(&["lora={}", "train.learning_rate=1e-5"]).is_empty());
    assert!(notes(&["lora={}", "train.learning_rate=0"]).is_empty());
    assert!(notes(&["train.learning_rate=1e-6"]).is_empty());
}

#[test]
fn a_move_to_host_memory_that_moves_nothing_has_a_note() {
    let notes = |sets: &[&str]| {
        let sets: Vec<&str> = ["train.learning_rate=1e-5"].iter().chain(sets).copied().collect();
        load_text(GOOD, &sets, &[]).unwrap().notes
    };
    let both = "memory.offload=[\"optimizer\", \"reference\"]";
    assert!(notes(&[both]).is_empty() && notes(&["lora={}", "memory.offload=[]"]).is_empty());
    let idle = notes(&["lora={}", both]);
    assert!(idle.len() == 2 && idle[0].contains("the model without its adapter"), "{idle:?}");
    assert!(idle[1].contains("states of adapters stay"), "{idle:?}");
    let states = "memory.offload=[\"optimizer\"]";
    let critic = notes(&["lora={}", "method=ppo", states]);
    assert!(critic.len() == 1 && critic[0].contains("moves the critic's states"), "{critic:?}");
    let adapted = notes(&["lora.critic=adapter", "method=ppo", states]);
    assert!(adapted.len() == 1 && adapted[0].contains("states of adapters stay"), "{adapted:?}");
}

#[test]
fn whether_adapters_are_merged_may_be_left_to_the_planner() {
    let run = |sets: &[&str]| RunSpec::new(&load_text(GOOD, sets, &[]).unwrap().run).merge();
    assert_eq!(run(&[]), Auto::Value(false));
    assert_eq!(run(&["lora={}"]), Auto::Value(false));
    assert_eq!(run(&["lora.merge=true"]), Auto::Value(true));
    assert_eq!(run(&["lora.merge=auto"]), Auto::Auto);
    assert_eq!(run(&["lora.merge=auto", "lora.quantize=nf4"]), Auto::Auto);
    assert!(load_text(GOOD, &["lora={}"], &[]).unwrap().run.to_toml().contains("merge = false"));
}

#[test]
fn a_critic_learns_all_its_weights_unless_the_section_says_otherwise() {
    let run = |sets: &[&str]| RunSpec::new(&load_text(GOOD, sets, &[]).unwrap().run);
    let of = |sets: &[&str]| {
        let run = run(&[&["method=ppo"], sets].concat());
        (run.adapts_critic(), run.critic_is_of_actor())
    };
    assert_eq!(of(&["lora={}"]), (false, true));
    assert_eq!(of(&["lora.critic=full"]), (false, true));
    assert_eq!(of(&["lora.critic=adapter"]), (true, true));
    let own = run(&[]).model.clone();
    assert_eq!(of(&["lora.critic=adapter", &format!("critic.model={own}")]), (true, true));
    assert_eq!(of(&["lora.critic=adapter", "critic.model=random:nano"]), (true, false));
}

#[test]
fn the_resolved_section_reads_back_as_itself() {
    for sets in [&["lora={}"][..], &["lora.targets=[\"q_proj\"]", "lora.rslora=true", "lora.adapter=a"]] {
        let run = load_text(GOOD, sets, &[]).unwrap().run;
        assert_eq!(toml::from_str::<RunFile>(&run.to_toml()).unwrap(), run);
        assert_eq!(load_text(&run.to_toml(), &[], &[]).unwrap().run.lora, run.lora);
    }
    let keys = keys();
    let run = load_text(GOOD, &["lora={}"], &[]).unwrap().run;
    assert!(!run.to_toml().contains("critic"), "{}", run.to_toml());
    for key in [
        "lora.rank",
        "lora.critic",
        "lora.alpha",
        "lora.targets",
        "lora.rslora",
        "lora.dropout",
        "lora.adapter",
    ] {
        assert!(keys.iter().any(|known| known == key), "{key} in {keys:?}");
    }
}
