//! Rows of plans of other frameworks' runs, computed by hand: which rules hold in which version, and who holds what.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_stacks::{
    Item, Known, Limits, Per, Phase, Pool, RunPlan, Setting, Stack, find, plan, preset_of,
};
use std::path::Path;

/// Parameters of Qwen2.5-7B, and of a critic with its body: less 152 064 x 3584, plus 3584.
const P: u128 = 7_615_616_512;
const CRITIC: u128 = P - 152_064 * 3584 + 3584;

fn settings(text: &str) -> Vec<Setting> {
    let one = |(index, word): (usize, &str)| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        Setting::new(key, value, index + 1)
    };
    text.split_whitespace().enumerate().map(one).collect()
}

fn limits() -> Limits {
    fn known<T>(value: T) -> Option<Known<T>> {
        Some(Known { value, source: "test".into(), by_hand: true })
    }
    Limits {
        gpus: known(8),
        gpu_bytes: known(Bytes(80 << 30)),
        host_bytes: known(Bytes(1 << 40)),
        shm_bytes: known(Bytes(64 << 30)),
        kernel: known((6, 8)),
        variables: Vec::new(),
    }
}

/// Plans a run on one node of eight cards of 80 GiB.
pub fn plan_of(stack: &'static Stack, settings: Vec<Setting>, version: Option<&str>) -> Result<RunPlan> {
    let models = |name: &str| {
        preset_of(name)
            .map(|(_, spec)| spec)
            .ok_or_else(|| Error::usage("run-model-unknown", name.to_string()))
    };
    plan(stack, settings, version, &limits(), &models)
}

fn planned(stack: &str, version: &str, text: &str) -> Result<RunPlan> {
    plan_of(find(stack).expect("a stack"), settings(text), Some(version))
}

fn row<'a>(plan: &'a RunPlan, role: &str, name: &str, pool: Pool) -> Option<&'a Item> {
    plan.items().iter().find(|item| item.role == role && item.name == name && item.pool == pool)
}

fn bytes(plan: &RunPlan, role: &str, name: &str, pool: Pool) -> u128 {
    row(plan, role, name, pool).map_or(0, |item| item.bytes)
}

const PPO: &str = "pretrain=Qwen/Qwen2.5-7B actor_num_gpus_per_node=8 critic_num_gpus_per_node=8 ref_num_gpus_per_node=8 \
                   colocate_all_models vllm_num_engines=8 gradient_checkpointing vllm_gpu_memory_utilization=0.5";

#[test]
fn openrlhf_saves_by_the_rule_of_its_version() {
    let two = |version: &str| planned("openrlhf", version, &format!("{PPO} zero_stage=2")).expect("a plan");
    for (version, name, bytes, per) in [
        ("0.1.4", "shard that is written", 5_000_000_000, Per::First),
        ("0.2.0", "copy of the model", 2 * P, Per::First),
        ("0.7.4", "copy of the model", 2 * P, Per::First),
        ("0.7.5", "copy of the model", 2 * P, Per::Rank),
        ("0.11.2", "copy of the model", 2 * P, Per::Rank),
    ] {
        let found = two(version);
        let item = row(&found, "actor", name, Pool::Host).unwrap_or_else(|| panic!("{version}: {name}"));
        assert_eq!((item.bytes, item.per, item.phases), (bytes, per, &[Phase::Save][..]), "{version}");
    }
    let three = planned("openrlhf", "0.11.2", &format!("{PPO} zero_stage=3")).expect("a plan");
    let item = row(&three, "actor", "gathered model", Pool::Host).expect("a gathered model");
    assert_eq!((item.bytes, item.per), (2 * P, Per::First));
}

#[test]
fn openrlhf_gradients_and_pins_by_version() {
    let at =
        |version: &str, more: &str| planned("openrlhf", version, &format!("{PPO} {more}")).expect("a plan");
    let grads = |plan: &RunPlan| bytes(plan, "actor", "gradients", Pool::Device);
    assert_eq!(grads(&at("0.5.3", "zero_stage=3")), 4 * P / 8);
    assert_eq!(grads(&at("0.5.4", "zero_stage=3")), 2 * P / 8);
    assert_eq!(grads(&at("0.5.3", "zero_stage=3 grad_accum_dtype=bf16")), 2 * P / 8);
    // 3.55 GiB a rank, pinned as 4.
    let shard = P / 8;
    for (version, grads, master) in
        [("0.1.4", 4 * shard, 4 * shard), ("0.1.5", 4 << 30, 4 * shard), ("0.2.6", 4 << 30, 4 << 30)]
    {
        let plan = at(version, "zero_stage=2 adam_offload");
        assert_eq!(bytes(&plan, "actor", "f32 gradients", Pool::Host), grads, "{version}");
        assert_eq!(bytes(&plan, "actor", "master weights", Pool::Host), master, "{version}");
        assert_eq!(bytes(&plan, "actor", "Adam m and v", Pool::Host), 8 * shard, "{version}");
        assert_eq!(bytes(&plan, "actor", "master weights and Adam", Pool::Device), 0, "{version}");
    }
}

#[test]
fn openrlhf_roles_logits_and_sleep() {
    let text = format!(
        "{PPO} zero_stage=3 vllm_enable_sleep deepspeed_enable_sleep max_len=4096 micro_train_batch_size=2"
    );
    let plan = planned("openrlhf", "0.11.2", &text).expect("a plan");
    // 2 x 4096 tokens x 152 064 words x 10 B; the critic has no head.
    assert_eq!(bytes(&plan, "actor", "logits", Pool::Device), 8192 * 152_064 * 10);
    assert_eq!(bytes(&plan, "critic", "logits", Pool::Device), 0);
    assert_eq!(bytes(&plan, "critic", "weights", Pool::Device), 2 * CRITIC.div_ceil(8));
    assert_eq!(bytes(&plan, "reference", "weights", Pool::Device), 2 * P / 8);
    assert_eq!(bytes(&plan, "engine", "share of the card", Pool::Device), 40 << 30);
    // 28 layers of 32 + 32 + 512 + 256 MiB and two ends of 2 GiB.
    assert_eq!(bytes(&plan, "engine", "sleep copy of the weights", Pool::Host), (28 * 832 + 4096) << 20);
    // The engine's weights wake first, so that a sync holds no cache.
    assert_eq!(bytes(&plan, "engine", "weights, awake", Pool::Device), 2 * P);
    let states = row(&plan, "actor", "master weights and Adam", Pool::Device).expect("states");
    assert_eq!((states.bytes, states.phases), (12 * P / 8, &[Phase::Update][..]));
    assert_eq!(bytes(&plan, "actor", "states asleep (pinned)", Pool::Host), 14 << 30);
    let groups =
        planned("openrlhf", "0.11.2", &format!("{PPO} advantage_estimator=group_norm")).expect("a plan");
    assert!(row(&groups, "critic", "weights", Pool::Device).is_none());
    let no_reference = planned("openrlhf", "0.11.2", &format!("{PPO} init_kl_coef=0")).expect("a plan");
    assert!(row(&no_reference, "reference", "weights", Pool::Device).is_none());
}

#[test]
fn both_spellings_of_openrlhf_are_one_run() {
    let dotted = "actor.model_name_or_path=Qwen/Qwen2.5-7B actor.num_gpus_per_node=8 critic.num_gpus_per_node=8 \
                  ref.num_gpus_per_node=8 train.colocate_all vllm.num_engines=8 actor.gradient_checkpointing_enable \
                  vllm.gpu_memory_utilization=0.5";
    let (old, new) = (planned("openrlhf", "0.11.2", PPO), planned("openrlhf", "0.11.2", dotted));
    assert_eq!(old.expect("a plan").items(), new.expect("a plan").items());
    let more = planned("openrlhf", "0.11.2", &format!("{dotted} actor.adam.lr=1e-6 actor.frobnicate=1"))
        .expect("a plan");
    assert_eq!(more.to_json()["unknown_options"], serde_json::json!(["actor.frobnicate (line 10)"]));
}

const GRPO: &str = "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 \
                    data.max_prompt_length=1024 data.max_response_length=1024 data.train_batch_size=128 \
                    actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.use_kl_loss=True \
                    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4";

#[test]
fn verl_shards_in_f32_and_saves_what_it_shards() {
    let plan = planned("verl", "0.7.0", GRPO).expect("a plan");
    let shard = P / 8;
    for (name, pool, expect) in [
        ("weights", Pool::Device, 4 * shard),
        ("gradients", Pool::Device, 4 * shard),
        ("Adam m and v", Pool::Device, 8 * shard),
        ("sharded state", Pool::Host, 12 * shard),
        // One sequence of full length is certain.
        ("logits", Pool::Device, 2048 * 152_064 * 9),
        ("weight bucket", Pool::Device, 2 << 30),
    ] {
        assert_eq!(bytes(&plan, "actor", name, pool), expect, "{name}");
    }
    assert_eq!(bytes(&plan, "reference", "weights, offloaded", Pool::Host), 4 * shard);
    // 1024 rows x (2048 x 24 + 1024 x 8 + 1024 x 28).
    assert_eq!(bytes(&plan, "Ray", "rollout batch", Pool::Shm), 1024 * (2048 * 24 + 1024 * 36));
    let more = |text: &str| planned("verl", "0.7.0", &format!("{GRPO} {text}")).expect("a plan");
    let padded = more("actor_rollout_ref.model.use_remove_padding=False");
    assert_eq!(bytes(&padded, "actor", "logits", Pool::Device), 4 * 2048 * 152_064 * 9);
    let dynamic = more("actor_rollout_ref.actor.use_dynamic_bsz=True");
    assert_eq!(bytes(&dynamic, "actor", "logits", Pool::Device), 16_384 * 152_064 * 9);
    let fused = more("actor_rollout_ref.model.use_fused_kernels=True");
    assert_eq!(bytes(&fused, "actor", "logits", Pool::Device), 0);
    let offloaded = more(
        "actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    );
    assert_eq!(bytes(&offloaded, "actor", "weights, offloaded", Pool::Host), 4 * shard);
    assert_eq!(bytes(&offloaded, "actor", "Adam m and v, offloaded", Pool::Host), 8 * shard);
    let states = row(&offloaded, "actor", "Adam m and v", Pool::Device).expect("states");
    assert_eq!(states.phases, [Phase::Update]);
}

#[test]
fn the_fork_of_verl_gathers_the_whole_model_and_frees_swap() {
    let fork = format!(
        "{GRPO} actor_rollout_ref.rollout.swap_space=4 actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.model.enable_gradient_checkpointing=True"
    );
    let plan = planned("verl", "0.2", &fork).expect("a plan");
    assert_eq!(bytes(&plan, "actor", "gathered model", Pool::Host), 4 * P);
    // 4 GiB a card, 146 MiB a layer in 256.
    assert_eq!(bytes(&plan, "engine", "CPU swap", Pool::Host), 7 << 30);
    assert!(plan.has_problem());
    let kept = planned("verl", "0.2", &format!("{fork} actor_rollout_ref.rollout.free_cache_engine=False"));
    assert!(!kept.expect("a plan").has_problem());
    let graphs = planned("verl", "0.2", &format!("{fork} actor_rollout_ref.rollout.enforce_eager=False"));
    assert_eq!(graphs.unwrap_err().slug, "run-settings-contradict");
}

#[test]
fn trl_by_its_sharding() {
    let base = "model_name_or_path=Qwen/Qwen2.5-7B num_processes=8 per_device_train_batch_size=4 max_completion_length=1023";
    let more = |text: &str| planned("trl", "1.10.0", &format!("{base} {text}")).expect("a plan");
    for (text, weights, gradients, states) in [
        ("", 4 * P, 4 * P, 8 * P),
        ("dtype=bfloat16", 2 * P, 2 * P, 4 * P),
        ("fsdp=full_shard", 4 * P / 8, 4 * P / 8, 8 * P / 8),
    ] {
        let plan = more(text);
        let of = |name| bytes(&plan, "trainer", name, Pool::Device);
        assert_eq!(
            (of("weights"), of("gradients"), of("Adam m and v")),
            (weights, gradients, states),
            "{text}"
        );
    }
    for (text, weights, gradients) in
        [("accelerate_config=zero2", 2 * P, 2 * P / 8), ("accelerate_config=zero3", 2 * P / 8, 2 * P / 8)]
    {
        let plan = more(text);
        let of = |name| bytes(&plan, "trainer", name, Pool::Device);
        assert_eq!(
            (of("weights"), of("gradients"), of("master weights and Adam")),
            (weights, gradients, 12 * P / 8),
            "{text}"
        );
    }
    assert_eq!(bytes(&more(""), "trainer", "logits", Pool::Device), 4 * 1024 * 152_064 * 10);
    // An adapter that a script makes is one that a flag asks for.
    for adapter in ["use_peft=True", "peft_config=LoraConfig"] {
        let plan = more(adapter);
        assert_eq!(bytes(&plan, "trainer", "gradients", Pool::Device), 0, "{adapter}");
        assert_eq!(plan.items(), more("use_peft=True").items(), "{adapter}");
    }
    assert_eq!(bytes(&more("use_liger_loss=true"), "trainer", "logits", Pool::Device), 0);
    let both = planned("trl", "1.10.0", &format!("{base} generation_batch_size=8 steps_per_generation=2"));
    assert_eq!(both.unwrap_err().slug, "run-settings-contradict");
}

#[test]
fn orz_wakes_its_engine_while_states_are_on_the_card() {
    let text = "pretrain=Qwen/Qwen2.5-7B actor_num_gpus_per_node=8 vllm_num_engines=8 gpu_memory_utilization=0.5 packing_max_len=8192";
    let plan = planned("orz", "3fdd9a0", text).expect("a plan");
    let states = row(&plan, "actor", "master weights and Adam", Pool::Device).expect("states");
    assert_eq!((states.bytes, states.phases), (12 * P / 8, &[Phase::Update, Phase::Sync][..]));
    // Unset, gradients are f32.
    assert_eq!(bytes(&plan, "actor", "gradients", Pool::Device), 4 * P / 8);
    let share = row(&plan, "engine", "share of the card", Pool::Device).expect("a share");
    assert!(share.is_in(Phase::Sync) && share.bytes == 40 << 30);
    // 1.77 GiB of the reference model's bf16 weights, pinned as 2.
    assert_eq!(bytes(&plan, "reference", "weights", Pool::Host), 2 << 30);
    let two = planned("orz", "3fdd9a0", &format!("{text} zero_stage=2"));
    assert_eq!(two.unwrap_err().slug, "run-settings-contradict");
}

#[test]
fn a_model_that_no_file_names_is_asked_for() {
    for (stack, text) in [
        ("openrlhf", "zero_stage=3"),
        ("orz", "use_grpo=True"),
        ("verl", "trainer.nnodes=1"),
        ("trl", "beta=0"),
    ] {
        assert_eq!(planned(stack, "1.0", text).unwrap_err().slug, "run-model-unknown", "{stack}");
    }
}

#[test]
fn every_row_names_its_arithmetic_and_its_source() {
    for (stack, file) in [
        ("openrlhf", "openrlhf-13b-cpu-adam.sh"),
        ("verl", "simplerl-7b-swap.sh"),
        ("orz", "orz-expandable.py"),
        ("torchrl", "torchrl-64-workers.py"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runs/other-stacks").join(file);
        let stack = find(stack).expect("a stack");
        let settings = plimsoll_stacks::settings(stack, &path).expect("settings");
        let plan = plan_of(stack, settings, None).expect("a plan");
        assert!(plan.items().len() > 3, "{file}");
        assert_eq!(plan.to_json()["unknown_options"], serde_json::json!([]), "{file}");
        for row in plan.items() {
            assert!(!row.formula.is_empty() && row.source.len() > 10, "{row:?}");
        }
    }
}
