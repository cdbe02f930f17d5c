//! Rows whose bytes can be computed by hand.

use crate::rig::{ROOMY, case, method_case, peak, row};
use plimsoll_base::Bytes;
use plimsoll_memory::Pool;
use plimsoll_plan::checkpoint_bytes;

/// Layers with windows keep a window, a quarter more for the rows of a pass and two blocks, however long responses are.
#[test]
fn the_cache_of_a_layer_with_a_window_is_a_window() {
    let bytes = |model: &str, tokens: u32| {
        let plan = case(&[
            &format!("model=random:{model}"),
            &format!("rollout.max_new_tokens={tokens}"),
            "data.prompt_tokens_max=64",
            "rollout.prompts_per_step=1",
            "rollout.group_size=2",
            "rollout.sequences_max=2",
            "run.device=cpu",
        ])
        .plan(ROOMY);
        ["rollout.keys", "rollout.window.keys"].map(|name| row(&plan, name))
    };
    // Gemma 3 1B: 22 layers of 26 see 512 keys, and all heads share those of one, of 256 elements in bf16.
    let block = 256 * 16 * 2;
    let ([whole, window], [longer, same]) = (bytes("gemma-3-1b", 16_384), bytes("gemma-3-1b", 32_000));
    let (prompts, sequence) = (2 * 4, (512 + 128_u64).div_ceil(16) + 1);
    assert_eq!((window, same), (22 * (prompts + 2 * sequence) * block, window), "windows do not grow");
    assert_eq!((whole, longer), (4 * (prompts + 2 * 1024) * block, 4 * (prompts + 2 * 2000) * block));
    // While no sequence is longer than a window there is one cache, and a model without windows has no other.
    assert_eq!(bytes("gemma-3-1b", 448), [26 * (prompts + 2 * 28) * block, 0]);
    assert_eq!(bytes("qwen3-0.6b", 16_384)[1], 0);
}

#[test]
fn states_of_linear_attention_do_not_grow_with_the_response() {
    let plan = |tokens: u32| {
        case(&[
            "model=random:qwen3.5-0.8b",
            &format!("rollout.max_new_tokens={tokens}"),
            "rollout.sequences_max=4",
            "train.micro_batch_tokens=8192",
            "run.device=cpu",
        ])
        .plan(ROOMY)
    };
    let (short, long) = (plan(512), plan(4096));
    let states = |report| {
        let plan: &plimsoll_plan::PlanReport = report;
        plan.plan.layout.sum(|region| region.name.starts_with("rollout.") && region.name.contains("state")).0
    };
    assert!(
        states(&short) > 0,
        "{:?}",
        short.plan.layout.regions.iter().map(|r| &r.name).collect::<Vec<_>>()
    );
    assert_eq!(states(&short), states(&long));
    assert!(row(&long, "rollout.keys") > 4 * row(&short, "rollout.keys"), "the keys of the other layers do");
}

#[test]
fn adapters_take_the_gradients_and_states_of_what_they_train_alone() {
    for model in ["qwen2.5-0.5b", "gemma-3-1b", "qwen3.5-0.8b"] {
        let sets = ["train.micro_batch_tokens=512", "run.device=cpu"];
        let with = |more: &[&str]| method_case("grpo", model, &[&sets[..], more].concat()).plan(ROOMY);
        let (full, narrow, wide) = (with(&[]), with(&["lora.rank=16"]), with(&["lora.rank=32"]));
        for state in ["actor.grads", "actor.adam_m", "actor.adam_v"] {
            // Twice the rank is twice the elements, up to alignment.
            let [all, a, b] = [&full, &narrow, &wide].map(|report| row(report, state));
            assert!(a > 0 && (2 * a).abs_diff(b) <= a / 50 && 10 * b < all, "{model}: {state} {a} {b} {all}");
        }
        let coded = with(&["lora.rank=16", "lora.quantize=nf4"]);
        assert!(peak(&coded, Pool::Host) < peak(&narrow, Pool::Host), "{model}");
        assert!(peak(&narrow, Pool::Host) < peak(&wide, Pool::Host), "{model}");
        assert!(peak(&wide, Pool::Host) < peak(&full, Pool::Host), "{model}");
    }
}

#[test]
fn worker_processes_are_in_the_account() {
    let kind = "reward.0.kind=python:/r.py:f";
    let sets = [kind, "reward.0.workers=3", "reward.0.worker_memory=512MiB", "run.device=cpu"];
    let (with, without) = (case(&sets).plan(ROOMY), case(&["run.device=cpu"]).plan(ROOMY));
    assert_eq!(row(&with, "reward.workers"), 3 * (512 << 20));
    assert_eq!(row(&without, "reward.workers"), 0);
    assert!(peak(&with, Pool::Host) >= peak(&without, Pool::Host) + 3 * (512 << 20));
    let parts = with.plan.host_parts();
    assert_eq!(parts[0].0, "workers", "{parts:?}");
}

#[test]
fn the_disk_holds_the_checkpoints_that_are_kept_and_the_one_that_is_written() {
    let disk = |sets: &[&str]| {
        let sets = [&["train.steps=40", "eval.every=20", "run.device=cpu"][..], sets].concat();
        let report = case(&sets).plan(ROOMY);
        let training = report.shape.training.expect("it trains");
        let one = checkpoint_bytes(&report.shape, &training).0;
        let records = report.shape.host.disk.records.0;
        (peak(&report, Pool::Disk) - records, one)
    };
    // Without a number of steps between them a run saves once.
    let (bytes, one) = disk(&[]);
    assert_eq!(bytes, one);
    let (two, _) = disk(&["checkpoint.every=10", "checkpoint.keep=1", "data.eval=none"]);
    let (four, _) = disk(&["checkpoint.every=10", "checkpoint.keep=3", "data.eval=none"]);
    assert_eq!((two, four), (2 * one, 4 * one));
    // The best one is kept as well, and a limit of bytes holds for those that wait.
    let (best, _) = disk(&["checkpoint.every=10", "checkpoint.keep=3"]);
    assert_eq!(best, 5 * one);
    let bound = one + one / 2;
    let (bounded, _) = disk(&[
        "checkpoint.every=10",
        "checkpoint.keep=3",
        "data.eval=none",
        &format!("checkpoint.keep_bytes={bound}"),
    ]);
    assert!(bounded < four && bounded >= one + bound - one / 2, "{}", Bytes(bounded));
}

#[test]
fn kept_samples_have_rows_where_a_policy_lags() {
    let plan = |lag: u32| {
        let sets = [format!("async.reuse={lag}"), "rollout.sequences_max=16".into(), "run.device=cpu".into()];
        case(&sets.each_ref().map(String::as_str)).plan(ROOMY)
    };
    let heap = |lag: u32| {
        let report = plan(lag);
        let training = report.shape.training.expect("it trains");
        (training.held_sequences(), peak(&report, Pool::Host))
    };
    let [none, one, two] = [0, 1, 2].map(heap);
    assert_eq!((one.0, two.0), (2 * 256, 3 * 256), "the step's own and those that wait");
    assert!(none.1 < one.1 && one.1 < two.1, "{none:?} {one:?} {two:?}");
}

/// Many short prompts take more than their texts.
#[test]
fn prompts_and_samples_of_a_step_have_their_records() {
    let bytes = |name: &str, prompts: u64, group: u64, ahead: u64| {
        let sets = [
            format!("rollout.prompts_per_step={prompts}"),
            format!("rollout.group_size={group}"),
            format!("async.staleness={ahead}"),
            "rollout.max_new_tokens=5".into(),
        ];
        row(&case(&sets.each_ref().map(String::as_str)).plan(ROOMY), name)
    };
    // As many samples of fewer prompts.
    assert_eq!(bytes("rl.step", 1024, 2, 0), bytes("rl.step", 256, 8, 0) + 768 * 1536);
    assert!(bytes("rl.step", 256, 16, 0) > bytes("rl.step", 256, 8, 0) + 256 * 8 * 512);
    // One rollout waits, and the groups of another.
    assert_eq!(bytes("rl.ahead", 1024, 2, 1), bytes("rl.ahead", 256, 8, 1) + 3 * 768 * 1536);
}
