//! Changes that a refused run is offered: each of them makes it fit, in the order of the speed that it costs.

use crate::rig::{case, method_case, peak, row, split, step_s};
use plimsoll_base::Bytes;
use plimsoll_memory::Pool;

#[test]
fn every_hint_makes_the_run_fit_with_the_time_that_it_says() {
    let mut followed = 0;
    for (method, model, sets) in [
        (
            "grpo",
            "qwen2.5-0.5b",
            &["loss.kl_coef=0.1", "train.micro_batch_tokens=4096", "train.recompute=none"][..],
        ),
        ("grpo", "gemma-3-1b", &["model_options.dtype=f32"]),
        ("ppo", "qwen2.5-0.5b", &["train.optimizer_dtype=f32", "train.grad_dtype=f32"]),
        ("grpo", "qwen2.5-0.5b", &["lora.rank=16", "lora.merge=true"]),
        ("dpo", "smollm2-135m", &["train.optimizer_dtype=f32"]),
        ("sft", "smollm2-135m", &["train.recompute=cheap", "memory.staging=64MiB"]),
        ("reward_model", "smollm2-135m", &["train.micro_batch_tokens=8192"]),
    ] {
        for device in ["cpu", "cuda"] {
            let device = format!("run.device={device}");
            let sets = [sets, &[device.as_str()]].concat();
            let small = method_case(method, model, &sets);
            let (host, card) = small.least();
            for parts in [9, 7, 5] {
                let limits = match card {
                    0 => format!("host={},disk=1TiB", host / 10 * parts),
                    card => format!("host=1TiB,device={},disk=1TiB", card / 10 * parts),
                };
                // With room on the host some fit on less of a card, whose hints are none.
                let refused = small.plan(&limits);
                assert!(refused.fits == refused.hints.is_empty(), "{method} on {model} under {limits}");
                for hint in &refused.hints {
                    // A limit of the machine is no setting.
                    let Some(set) = &hint.set else { continue };
                    let changed =
                        method_case(method, model, &[&sets[..], &split(set)].concat()).plan(&limits);
                    assert!(changed.fits, "{method} on {model} under {limits}: {set} does not help");
                    let said = hint.predicted_step_s.expect("a change has a time");
                    assert!(
                        (step_s(&changed) / said - 1.0).abs() < 1e-9,
                        "{set}: {} s, {said} said",
                        step_s(&changed)
                    );
                    followed += 1;
                }
            }
        }
    }
    assert!(followed > 40, "{followed} hints");
}

#[test]
fn hints_stand_in_the_order_of_the_speed_they_cost() {
    let sets = ["train.micro_batch_tokens=2048", "loss.kl_coef=0.1", "run.device=cpu"];
    let layer = case(&[&sets[..], &["train.recompute=layer"]].concat()).plan("host=1TiB,disk=1TiB");
    // A limit that recomputing alone would meet: then smaller micro-batches do as well.
    let refused = case(&sets).plan(&format!("host={},disk=1TiB", peak(&layer, Pool::Host)));
    assert!(!refused.fits);
    let lost = |changes: bool| -> Vec<f64> {
        let all = refused.hints.iter().filter(|hint| hint.changes_result == changes);
        all.filter_map(|hint| hint.lost_speed).collect()
    };
    assert!(
        lost(false).len() >= 2 && lost(false).is_sorted() && lost(true).is_sorted(),
        "{:?}",
        refused.hints
    );
    let changing = refused.hints.iter().position(|hint| hint.changes_result);
    let same = refused.hints.iter().rposition(|hint| !hint.changes_result && hint.lost_speed.is_some());
    assert!(changing.is_none_or(|changing| Some(changing) > same), "what changes the result comes last");
}

#[test]
fn the_smallest_limit_is_named_and_is_enough() {
    let sets = ["train.recompute=layer", "memory.host=60MiB", "run.device=cpu"];
    let refused = case(&sets).plan("host=1TiB,disk=1TiB");
    let limit = refused.hints.iter().rev().find(|hint| hint.lost_speed.is_none()).expect("the last one");
    let set = limit.set.as_deref().expect("the run file has the limit");
    assert!(set.starts_with("memory.host="), "{set}");
    assert!(case(&[&sets[..], &[set]].concat()).plan("host=1TiB,disk=1TiB").fits, "{set}");
    // One from outside can only be said.
    let refused = case(&["run.device=cpu"]).plan("host=60MiB,disk=1TiB");
    let limit = refused.hints.iter().find(|hint| hint.set.is_none()).expect("a limit from outside");
    assert!(limit.why.ends_with("; the limit is outside the run file: --limit"), "{}", limit.why);
    // Ranks share the host: the hint names what all of them need.
    let one = case(&["run.device=cpu", "memory.host=60MiB"]).ranks(2);
    let refused = one.plan("host=1TiB,disk=1TiB");
    let least =
        refused.hints.iter().rev().find(|hint| hint.predicted_step_s.is_none()).expect("the last one");
    let mib: u64 = least
        .why
        .rsplit_once(" is ")
        .and_then(|(_, said)| {
            let number = said.split(' ').next()?.parse::<f64>().ok()?;
            Some(number.ceil() as u64)
        })
        .expect("a number of MiB");
    assert!(Bytes::mib(mib).0 >= 2 * peak(&refused, Pool::Host) - (2 << 20), "{}", least.why);
}

/// The shape of a 7B model on a card of 24 GiB.
const ON_24_GIB: &str = "device=24GiB,host=64GiB,disk=1TiB";
const SEVEN: [&str; 7] = [
    "model=random:qwen2.5-7b",
    "data.prompt_tokens_max=256",
    "rollout.max_new_tokens=256",
    "rollout.prompts_per_step=8",
    "train.learning_rate=1e-5",
    "train.optimizer_dtype=auto",
    "run.device=cuda",
];

#[test]
fn a_run_that_does_not_fit_is_offered_adapters_that_do() {
    for (dtypes, more) in [
        (&[][..], ""),
        (
            &["train.optimizer_dtype=bf16", "train.grad_dtype=bf16"],
            " --set train.optimizer_dtype=f32 --set train.grad_dtype=f32",
        ),
    ] {
        let sets = [&SEVEN[..], dtypes].concat();
        let refused = case(&sets).plan(ON_24_GIB);
        let set = format!("lora.rank=16 --set train.learning_rate=1e-4{more}");
        let hint = refused.hints.iter().find(|hint| hint.set.as_deref() == Some(&set));
        let hint = hint.unwrap_or_else(|| panic!("{set}: {:?}", refused.hints));
        assert!(!refused.fits && hint.changes_result);
        let adapted = case(&[&sets[..], &split(&set)].concat()).plan(ON_24_GIB);
        assert!(adapted.fits, "{:?}", adapted.hints);
        let words = format!(": {} of device memory; predicted step ", adapted.plan.peak(Pool::Device).peak);
        assert!(hint.why.contains(&words), "{words}: {}", hint.why);
    }
    // Not where they do not fit either, and not to a run that has adapters.
    let offers = |sets: &[&str], limits: &str| {
        let refused = case(&[&SEVEN[..], sets].concat()).plan(limits);
        assert!(!refused.fits, "{sets:?} under {limits}");
        refused.hints.iter().any(|hint| hint.set.as_ref().is_some_and(|set| set.contains("lora.rank")))
    };
    assert!(!offers(&[], "device=4GiB,host=64GiB,disk=1TiB"));
    assert!(!offers(&["lora.rank=32"], "device=12GiB,host=64GiB,disk=1TiB"));
    for method in ["sft", "dpo", "reward_model"] {
        let refused = method_case(method, "smollm2-135m", &["run.device=cpu"]).plan("host=700MiB,disk=1TiB");
        let sets: Vec<&str> = refused.hints.iter().filter_map(|hint| hint.set.as_deref()).collect();
        assert!(!refused.fits && sets.iter().any(|set| set.contains("lora.rank")), "{method}: {sets:?}");
    }
}

#[test]
fn a_refused_card_is_told_what_to_offload_and_the_rows_move() {
    let with = |more: &[&str]| {
        let sets = [
            "model=random:qwen2.5-0.5b",
            "train.optimizer_dtype=f32",
            "train.recompute=layer",
            "loss.kl_coef=0.1",
            "run.device=cuda",
        ];
        case(&[&sets[..], more].concat())
    };
    let (roomy, both) =
        ("device=139GiB,host=64GiB,disk=1TiB", "memory.offload=[\"optimizer\",\"reference\"]");
    let (resident, offloaded) = (with(&["memory.offload=[]"]).plan(roomy), with(&[both]).plan(roomy));
    assert!(resident.fits && offloaded.fits);
    for state in ["adam_m", "adam_v", "master"] {
        let kept = row(&resident, &format!("actor.{state}"));
        assert!(kept > 0 && kept == row(&offloaded, &format!("offload.actor.{state}")), "{state}");
    }
    assert_eq!(row(&offloaded, "reference.weights"), 0);
    assert_eq!(row(&offloaded, "offload.reference.weights"), row(&resident, "reference.weights"));
    // 494 million parameters: states of 12 bytes and the reference's 2 leave the card; slots share bytes with passes.
    let saved = peak(&resident, Pool::Device) - peak(&offloaded, Pool::Device);
    assert!(saved > 13 * 494_000_000, "{saved}");
    assert!(peak(&offloaded, Pool::Host) - peak(&resident, Pool::Host) >= 14 * 494_000_000);
    let tight = format!("device={},host=64GiB,disk=1TiB", peak(&resident, Pool::Device) / 2);
    let refused = with(&["memory.offload=[]"]).plan(&tight);
    let sets: Vec<&str> = refused.hints.iter().filter_map(|hint| hint.set.as_deref()).collect();
    assert!(!refused.fits && sets.contains(&both), "{sets:?}");
    assert!(with(&[both]).plan(&tight).fits, "the hint holds");
}

#[test]
fn a_run_that_keeps_too_many_checkpoints_is_offered_fewer() {
    let sets = ["run.device=cpu", "checkpoint.every=10", "checkpoint.keep=5"];
    let fewer = case(&[&sets[..], &["checkpoint.keep=1"]].concat());
    let limits = format!("host=1TiB,disk={}", peak(&fewer.plan("host=1TiB,disk=1TiB"), Pool::Disk));
    let refused = case(&sets).plan(&limits);
    let first = refused.hints.first().and_then(|hint| hint.set.as_deref());
    assert_eq!(first, Some("checkpoint.keep=1"));
    assert!(!refused.hints[0].changes_result);
    assert!(fewer.plan(&limits).fits);
    // One that keeps a single checkpoint has nothing to gain.
    let refused = fewer.plan("host=1TiB,disk=1MiB");
    let sets = refused.hints.iter().filter_map(|hint| hint.set.as_deref());
    assert!(!sets.clone().any(|set| set.contains("checkpoint.keep")), "{:?}", sets.collect::<Vec<_>>());
}
