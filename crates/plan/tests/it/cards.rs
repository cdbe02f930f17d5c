//! Times of cards that are not at hand, what to rent, and evaluations in the total.

use crate::rig::{Case, case, step_s};
use plimsoll_devices::Card;
use plimsoll_plan::rent::{self, Market};
use plimsoll_plan::{Hosts, Prices};
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
    let market = Market::default();
    let offers = rent::offers(&case.run, &case.facts, &market).expect("sizes of machines");
    assert_eq!(offers.len(), rent::PLACES.len() * Card::all().count(), "some of each card");
    let fit: Vec<_> = offers.iter().take_while(|offer| offer.fits).collect();
    assert!(fit.len() > 8 && fit.is_sorted_by(|a, b| a.card_hours <= b.card_hours), "{offers:?}");
    assert!(offers[fit.len()..].iter().all(|offer| !offer.fits));
    for offer in &offers {
        let card = Card::parse(offer.card).expect("a card of the table");
        assert_eq!(offer.fits, offer.card_bytes <= card.memory, "{offer:?}");
        let hours = offer.run_s / 3600.0 * offer.ranks as f64;
        assert!((offer.card_hours - hours).abs() < 1e-9 && offer.run_s > offer.step_s, "{offer:?}");
    }
    let words = rent::table(&offers, &market);
    assert_eq!(words.contains("does not fit: "), fit.len() < offers.len(), "{words}");
    assert!(words.lines().nth(1).is_some_and(|line| line.starts_with(fit[0].card)), "{words}");
}

/// The cheapest card was hidden, because the file fixes a micro-batch.
#[test]
fn what_fits_with_auto_is_offered_and_marked() {
    let fixed = ["train.micro_batch_tokens=16384", "train.recompute=cheap"];
    let own = [
        "model=random:qwen2.5-7b",
        "rollout.max_new_tokens=1024",
        "train.optimizer_dtype=bf16",
        "train.grad_dtype=bf16",
        "run.device=cuda",
    ];
    let offers = |sets: &[&str]| {
        let case = case(&[&own[..], sets].concat());
        let market = Market::default();
        let offers = rent::offers(&case.run, &case.facts, &market).expect("sizes of machines");
        let words = rent::table(&offers, &market);
        (offers, words)
    };
    let (fixed, words) = offers(&fixed);
    let (free, _) = offers(&["train.micro_batch_tokens=auto", "train.recompute=auto"]);
    let fits = |offers: &[rent::Offer]| {
        let mut names: Vec<(&str, usize)> =
            offers.iter().filter(|o| o.fits).map(|o| (o.card, o.ranks)).collect();
        names.sort();
        names
    };
    assert_eq!(fits(&fixed), fits(&free), "what fits with auto fits");
    let h100 = fixed.iter().find(|offer| offer.card == "h100" && offer.ranks == 1).expect("a row");
    assert!(h100.fits && h100.auto.contains(&"train.micro_batch_tokens"), "{h100:?}");
    assert!(fixed.iter().any(|offer| offer.fits && offer.auto.is_empty()), "an h200 takes it as it is");
    assert!(free.iter().all(|offer| offer.auto.is_empty()), "nothing was fixed");
    assert!(words.contains("  auto: micro_batch_tokens") && words.contains("--set KEY=auto"), "{words}");
}

#[test]
fn a_price_makes_a_cost_and_hosts_have_a_network() {
    let case = case(&["model=random:qwen2.5-7b", "rollout.max_new_tokens=512", "run.device=cuda"]);
    let of = |network: Option<&str>| {
        let prices = Prices::parse("h200=3,b200=9").expect("prices");
        let market = Market { network, prices, ..Market::default() };
        let offers = rent::offers(&case.run, &case.facts, &market).expect("sizes of machines");
        let words = rent::table(&offers, &market);
        (offers, words)
    };
    let (offers, words) = of(Some("900GB/s"));
    let fit: Vec<_> = offers.iter().filter(|offer| offer.fits).collect();
    let costs: Vec<f64> = fit.iter().filter_map(|offer| offer.cost).collect();
    assert!(!costs.is_empty() && costs.is_sorted(), "{fit:?}");
    for offer in &fit {
        let price = match offer.card {
            "h200" => Some(3.0),
            "b200" => Some(9.0),
            _ => None,
        };
        assert_eq!(offer.cost, price.map(|price| price * offer.card_hours), "{offer:?}");
        assert_eq!(offer.card_hours, offer.run_s / 3600.0 * offer.ranks as f64);
    }
    // A card without a price comes after those with one.
    assert!(fit.iter().map(|offer| offer.cost.is_none()).is_sorted());
    assert!(words.contains(" 2 x 8 ") && words.contains("over a network of 900GB/s"), "{words}");
    let (slow, words) = of(None);
    let run_s = |offers: &[rent::Offer]| {
        offers.iter().find(|offer| offer.card == "h200" && offer.ranks == 16).expect("a row").run_s
    };
    assert!(run_s(&slow) > run_s(&offers), "the network is slower");
    let is_worth_it = |line: &&str| line.starts_with("h200") && line.contains(" x 8 ");
    assert_eq!(words.lines().filter(is_worth_it).count(), 0, "slower than fewer cards: {words}");
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
