//! Times of cards that are not at hand, what to rent, and evaluations in the total.

use crate::rig::{Case, case, step_s};
use plimsoll_devices::Card;
use plimsoll_plan::{Hosts, rent};
use serde_json::Value;
use std::collections::BTreeMap;

const MEASURED: &str = include_str!("../../../../bench/results/h200_ranks.json");
/// Prompts of a rank, and the settings of the measured runs (`bench/h200_ranks.py`).
const MODELS: [(&str, u32, &[&str]); 3] = [
    ("0.5b", 64, &["train.optimizer_dtype=f32"]),
    ("1.5b", 64, &["train.optimizer_dtype=f32"]),
    ("7b", 32, &["train.optimizer_dtype=bf16", "train.grad_dtype=f32", "train.recompute=layer"]),
];

/// The run on as many of these cards, whose hosts have room.
fn on(mut case: Case, card: &str, ranks: usize) -> f64 {
    case = case.ranks(ranks);
    case.facts.card = Some(Card::parse(card).expect("a card of the table"));
    let limits = format!("device={},host=8TiB,disk=1024TiB", case.facts.card.expect("a card").memory.0);
    step_s(&case.plan(&limits))
}

/// The step of `--ranks 8` was that of one card.
#[test]
fn predicted_steps_are_within_a_fifth_of_measured_ones() {
    let rows: Value = serde_json::from_str(MEASURED).expect("JSON");
    let mut measured: BTreeMap<(String, u64), Vec<f64>> = BTreeMap::new();
    for row in rows["rows"].as_array().expect("rows").iter().filter(|row| row["part"] == "scale") {
        if let Some(step) = row["step_s"]["median"].as_f64() {
            let key = (row["model"].as_str().expect("a name").into(), row["ranks"].as_u64().expect("ranks"));
            measured.entry(key).or_default().push(step);
        }
    }
    let mut compared = 0;
    for (model, prompts, sets) in MODELS {
        for ranks in [1_u32, 2, 4, 8] {
            let Some(steps) = measured.get(&(model.to_string(), ranks.into())) else { continue };
            let truth = steps.iter().sum::<f64>() / steps.len() as f64;
            let own = [
                format!("model=random:qwen2.5-{model}"),
                format!("rollout.prompts_per_step={}", prompts * ranks),
            ];
            let same = ["rollout.max_new_tokens=256", "train.micro_batch_tokens=16384", "run.device=cuda"];
            let sets = [&same[..], sets, &own.each_ref().map(String::as_str)].concat();
            let step = on(case(&sets), "h200", ranks as usize);
            assert!((step / truth - 1.0).abs() < 0.2, "{model} on {ranks}: {step} of {truth} s");
            compared += 1;
        }
    }
    assert!(compared >= 11, "{compared} rows were compared");
}

#[test]
fn more_ranks_and_faster_cards_take_less_time() {
    let run = || {
        case(&[
            "model=random:qwen2.5-7b",
            "rollout.max_new_tokens=1024",
            "train.optimizer_dtype=auto",
            "run.device=cuda",
        ])
    };
    let steps = [1, 2, 4, 8].map(|ranks| on(run(), "h100", ranks));
    assert!(steps.is_sorted_by(|a, b| a > b), "{steps:?}");
    for (slow, fast) in [("a100", "h100"), ("h100", "h200")] {
        assert!(on(run(), fast, 2) < on(run(), slow, 2), "{slow} and {fast}");
    }
    // Two hosts share a network, which is slower than a link; a faster one helps.
    let over = |network: Option<&str>| {
        let mut case = run().ranks(8);
        case.facts.hosts = Hosts::even(2, 4, network).expect("a rate");
        case.facts.trainers = case.facts.hosts;
        case.facts.card = Some(Card::parse("h100").expect("a card"));
        step_s(&case.plan("device=80GiB,host=8TiB,disk=1024TiB"))
    };
    assert!(over(Some("50GB/s")) < over(None) && steps[3] < over(None), "{} {}", over(None), steps[3]);
}

#[test]
fn what_to_rent_comes_by_card_hours() {
    let case = case(&["model=random:qwen2.5-1.5b", "rollout.max_new_tokens=512", "run.device=cuda"]);
    let offers = rent::offers(&case.run, &case.facts, &rent::RANKS, None).expect("sizes of machines");
    assert_eq!(offers.len(), rent::RANKS.len() * Card::all().count(), "some of each card");
    let fit: Vec<_> = offers.iter().take_while(|offer| offer.fits).collect();
    assert!(fit.len() > 8 && fit.is_sorted_by(|a, b| a.card_hours <= b.card_hours), "{offers:?}");
    assert!(offers[fit.len()..].iter().all(|offer| !offer.fits));
    for offer in &offers {
        let card = Card::parse(offer.card).expect("a card of the table");
        assert_eq!(offer.fits, offer.card_bytes <= card.memory, "{offer:?}");
        let hours = offer.run_s / 3600.0 * offer.ranks as f64;
        assert!((offer.card_hours - hours).abs() < 1e-9 && offer.run_s > offer.step_s, "{offer:?}");
    }
    let words = rent::table(&offers);
    assert_eq!(words.contains("does not fit: "), fit.len() < offers.len(), "{words}");
    assert!(words.lines().nth(1).is_some_and(|line| line.starts_with(fit[0].card)), "{words}");
}

/// Two steps of 74 s took 21 minutes: the evaluations were not counted.
#[test]
fn the_total_counts_evaluations() {
    let of = |sets: &[&str]| case(&[&["run.device=cpu"], sets].concat()).plan(crate::rig::ROOMY);
    let report = of(&["train.steps=40", "eval.every=20", "eval.prompts_max=50"]);
    let (evaluations, step) = (report.evaluations, step_s(&report));
    // Before the first step, after the last, and after the twentieth.
    assert_eq!((evaluations.count, evaluations.sequences), (3, Some(50)));
    assert!(evaluations.each_s > 0.0);
    let total = 40.0 * step + 3.0 * evaluations.each_s;
    assert!((report.run_s() / total - 1.0).abs() < 1e-9);
    assert_eq!(of(&["data.eval=none"]).evaluations.count, 0);
    let samples = of(&["eval.prompts_max=50", "eval.samples=4", "eval.temperature=1.0"]);
    assert_eq!(samples.evaluations.sequences, Some(200));
}
