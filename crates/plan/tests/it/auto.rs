//! What `"auto"` becomes: the fastest setting that fits, and what it gives up where memory is short.

use crate::rig::{Case, ROOMY, case, peak, step_s};
use plimsoll_base::{Bytes, DType};
use plimsoll_memory::Pool;
use plimsoll_model::Recompute;
use plimsoll_plan::Resolved;
use plimsoll_train::OptimizerDType;

const OPEN: [&str; 4] =
    ["train.recompute=auto", "train.optimizer_dtype=auto", "memory.staging=auto", "run.threads=2"];

fn host(bytes: u64) -> String {
    format!("host={bytes},disk=1TiB")
}

/// Where a disk is nearly full the run is refused: with other states it would compute other bits.
#[test]
fn r_the_free_disk_chose_the_dtype_of_states() {
    let open = case(&OPEN);
    let disk = |report: &plimsoll_plan::PlanReport| report.plan.peak(Pool::Disk).peak.0;
    let whole = disk(&open.plan("host=8GiB,disk=1TiB"));
    for short in [1, whole / 10, whole / 2] {
        let small = open.plan(&format!("host=8GiB,disk={}", whole - short));
        assert!(!small.fits && small.resolved.optimizer_dtype == OptimizerDType::F32, "{short} bytes short");
        assert_eq!(disk(&small), whole);
    }
    assert!(open.plan(&format!("host=8GiB,disk={whole}")).fits);
}

#[test]
fn auto_takes_the_fastest_setting_that_fits_and_says_what_came_next() {
    let open = case(&OPEN);
    let wide = open.plan("host=8GiB,disk=1TiB");
    assert!(wide.fits && wide.resolved.optimizer_dtype == OptimizerDType::F32);
    let next = wide.auto.runner_up.as_ref().expect("the run file leaves a choice");
    // Predictions that differ by a hundredth are equal, and the smallest of equals is taken.
    let is_faster = next.predicted_step_s < step_s(&wide);
    assert!(step_s(&wide) <= next.predicted_step_s * 1.01, "{} s before {next:?}", step_s(&wide));
    assert!(!is_faster || wide.auto.chosen.host_peak_bytes < next.host_peak_bytes, "{:?}", wide.auto);
    let again = open.plan("host=8GiB,disk=1TiB");
    assert_eq!((&again.auto, &again.plan), (&wide.auto, &wide.plan), "the same question has the same answer");

    // Less memory: a slower setting that computes the same, then one that rounds more, said aloud.
    let f32_states = case(&["train.recompute=none", "memory.staging=auto", "run.threads=2"]);
    let narrow = open.plan(&host(f32_states.least().0 + (1 << 20)));
    assert!(narrow.fits && narrow.resolved.optimizer_dtype == OptimizerDType::F32);
    assert!(step_s(&narrow) > step_s(&wide) && narrow.auto.gave_up.is_none(), "{:?}", narrow.auto);
    let least = open.plan(&host(open.least().0));
    assert!(least.fits && least.resolved.optimizer_dtype == OptimizerDType::Int8);
    let gave_up = least.auto.gave_up.expect("words");
    assert!(gave_up.contains("int8 with stochastic rounding"), "{gave_up}");
}

#[test]
fn more_memory_never_gives_a_slower_or_less_exact_setting() {
    let open = case(&[&["model=random:qwen2.5-0.5b", "rollout.max_new_tokens=256"][..], &OPEN].concat());
    let (least, most) = (open.least().0, peak(&open.plan(ROOMY), Pool::Host));
    let exactness = |setting: &Resolved| match (setting.optimizer_dtype, setting.grad_dtype) {
        (OptimizerDType::Int8, _) => 0,
        (OptimizerDType::Bf16, _) => 1,
        (OptimizerDType::F32, DType::Bf16) => 2,
        (OptimizerDType::F32, _) => 3,
    };
    let mut before: Option<(i32, f64)> = None;
    for part in 0..=8 {
        let limit = least + (most - least) / 8 * part + (1 << 20);
        let report = open.plan(&host(limit));
        assert!(report.fits && peak(&report, Pool::Host) <= limit, "{}", Bytes(limit));
        let now = (exactness(&report.resolved), step_s(&report));
        if let Some((exact, seconds)) = before {
            assert!(now.0 >= exact, "less exact at {}", Bytes(limit));
            // Predictions that differ by a hundredth are equal, and the smaller of two equals is taken.
            assert!(now.0 > exact || now.1 <= seconds * 1.011, "{} after {seconds} s", now.1);
        }
        before = Some(now);
    }
}

/// 131,072 tokens of a model of 8 billion parameters: the inputs of its layers leave the card that they do not fit.
#[test]
fn inputs_of_layers_leave_a_card_that_long_sequences_fill() {
    let with = |level: &str| -> Case {
        case(&[
            "model=random:qwen3-8b",
            "model_options.positions=extend",
            "data.prompt_tokens_max=122880",
            "rollout.max_new_tokens=8192",
            "rollout.prompts_per_step=1",
            "rollout.group_size=2",
            "train.micro_batch_tokens=131072",
            "train.optimizer_dtype=int8",
            "train.grad_dtype=bf16",
            "run.device=cuda",
            level,
        ])
    };
    let levels = ["train.recompute=layer", "train.recompute=offload", "train.recompute=auto"];
    let limits = "device=139GiB,host=128GiB,disk=1TiB";
    let [refused, fits, auto] = levels.map(|level| with(level).plan(limits));
    assert_eq!([refused.fits, fits.fits, auto.fits], [false, true, true]);
    let bytes = |name: &str| crate::rig::row(&fits, name);
    // 36 layers: 34 inputs wait, and three pass through the card.
    assert!(bytes("update.resid") > 0);
    assert_eq!(bytes("offload.update.resid") * 3, bytes("update.resid") * 34);
    assert_eq!(auto.resolved.recompute, Recompute::Offload);
    let sets: Vec<&str> = refused.hints.iter().filter_map(|hint| hint.set.as_deref()).collect();
    assert!(sets.contains(&"train.recompute=offload"), "{sets:?}");
    // A host that is too small for any of it is not asked for room for inputs, which this card has.
    let needs = |level: &str| {
        let refused = with(level).plan("device=512GiB,host=600MiB,disk=1TiB");
        assert!(!refused.fits, "{level}");
        peak(&refused, Pool::Host)
    };
    assert_eq!(needs(levels[2]), needs(levels[0]));
    assert!(needs(levels[0]) < needs(levels[1]));
}

#[test]
fn what_fits_on_a_card_stays_there_and_what_does_not_goes_to_the_host() {
    let open = case(&[
        "model=random:qwen2.5-0.5b",
        "train.optimizer_dtype=f32",
        "train.recompute=layer",
        "loss.kl_coef=0.1",
        "memory.offload=auto",
        "run.device=cuda",
    ]);
    let roomy = open.plan("device=139GiB,host=64GiB,disk=1TiB");
    assert!(roomy.fits && !roomy.resolved.offload.optimizer && !roomy.resolved.offload.reference);
    let half = peak(&roomy, Pool::Device) / 2;
    let tight = open.plan(&format!("device={half},host=64GiB,disk=1TiB"));
    assert!(tight.fits && tight.resolved.offload.optimizer, "{:?}", tight.resolved);
    assert!(peak(&tight, Pool::Host) > peak(&roomy, Pool::Host));
}
