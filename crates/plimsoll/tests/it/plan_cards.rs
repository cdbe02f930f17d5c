//! Plans for cards that are not at hand: their times by card and ranks, what to rent, and evaluations in the total.

use crate::common::{check_refused, plimsoll, text};
use crate::run::{Run, json, object};
use serde_json::Value;
use std::collections::BTreeMap;

const MEASURED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results/h200_ranks.json");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first.toml");
/// Prompts of a rank, and the settings of the measured runs (`bench/h200_ranks.py`).
const MODELS: [(&str, u64, &[&str]); 3] = [
    ("0.5b", 64, &["train.optimizer_dtype=f32"]),
    ("1.5b", 64, &["train.optimizer_dtype=f32"]),
    ("7b", 32, &["train.optimizer_dtype=bf16", "train.grad_dtype=f32", "train.recompute=layer"]),
];

fn plan<'a>(words: &[&'a str], sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = [&["plan"], words].concat();
    sets.iter().for_each(|set| args.extend(["--set", set]));
    args
}

/// The step of `--ranks 8` was that of one card.
#[test]
fn predicted_steps_are_within_a_fifth_of_measured_ones() {
    let read = std::fs::read(MEASURED).expect("the measurements");
    let rows = serde_json::from_slice::<Value>(&read).expect("JSON");
    let mut measured: BTreeMap<(String, u64), Vec<f64>> = BTreeMap::new();
    for row in rows["rows"].as_array().expect("rows").iter().filter(|row| row["part"] == "scale") {
        if let Some(step) = row["step_s"]["median"].as_f64() {
            let key = (row["model"].as_str().expect("a name").into(), row["ranks"].as_u64().expect("ranks"));
            measured.entry(key).or_default().push(step);
        }
    }
    let mut compared = 0;
    for (model, prompts, sets) in MODELS {
        for ranks in [1, 2, 4, 8] {
            let Some(steps) = measured.get(&(model.to_string(), ranks)) else { continue };
            let truth = steps.iter().sum::<f64>() / steps.len() as f64;
            let own = [
                format!("model=random:qwen2.5-{model}"),
                format!("rollout.prompts_per_step={}", prompts * ranks),
            ];
            let same = ["rollout.max_new_tokens=256", "train.micro_batch_tokens=16384", "run.device=cuda"];
            let sets = [&same[..], sets, &own.each_ref().map(String::as_str)].concat();
            let ranks = ranks.to_string();
            let planned = json(&plan(&[RUN, "--json", "--card", "h200", "--ranks", &ranks], &sets));
            let step = planned["auto"]["chosen"]["predicted_step_s"].as_f64().expect("seconds");
            assert!((step / truth - 1.0).abs() < 0.2, "{model} on {ranks}: {step} of {truth} s");
            compared += 1;
        }
    }
    assert!(compared >= 11, "{compared} rows were compared");
}

#[test]
fn the_table_of_ranks_has_times_that_fall() {
    let sets = ["model=random:qwen2.5-7b", "rollout.max_new_tokens=1024", "train.optimizer_dtype=auto"];
    let args = plan(&[RUN, "--json", "--card", "h100", "--ranks", "1,2,4,8"], &sets);
    let (_, table) = object(&args);
    let steps: Vec<f64> = table["ranks"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["predicted_step_s"].as_f64().expect("seconds"))
        .collect();
    assert!(steps.windows(2).all(|pair| pair[1] < pair[0]), "{steps:?}");
    assert!(
        table["rates"].as_str().is_some_and(|words| words.starts_with("H100: its data sheet")),
        "{table}"
    );
}

#[test]
fn what_to_rent_comes_by_card_hours() {
    let sets = ["model=random:qwen2.5-1.5b", "rollout.max_new_tokens=512"];
    let found = json(&plan(&[RUN, "--rent", "--json"], &sets));
    let offers = found["offers"].as_array().expect("offers");
    assert_eq!(offers.len(), 48, "twelve cards, 1 to 8 of each");
    let hours = |offer: &Value| offer["card_hours"].as_f64().expect("hours");
    let fit: Vec<&Value> = offers.iter().take_while(|offer| offer["fits"] == true).collect();
    assert!(fit.len() > 8 && fit.windows(2).all(|pair| hours(pair[0]) <= hours(pair[1])), "{found}");
    assert!(offers[fit.len()..].iter().all(|offer| offer["fits"] == false));
    let find =
        |card: &str, ranks: u64| offers.iter().find(|one| one["card"] == card && one["ranks"] == ranks);
    let step = |card, ranks| find(card, ranks).expect("an offer")["step_s"].as_f64().expect("seconds");
    assert!(step("h200", 1) < step("a100", 1), "faster memory and arithmetic");
    assert!(step("h100", 2) < step("h100", 1));
    // One rank alone offloads its states: several are no offers, and no error.
    let alone = json(&plan(&[RUN, "--rent", "--json"], &[sets[0], "memory.offload=[\"optimizer\"]"]));
    assert_eq!(alone["offers"].as_array().map(Vec::len), Some(12), "{alone}");
    // No card takes it.
    let args = plan(&[RUN, "--rent"], &["model=random:llama-3.1-70b"]);
    let none = plimsoll(&args);
    assert_eq!(none.status.code(), Some(3), "{}", text(&none.stderr));
}

#[test]
fn cards_without_a_row_are_given_or_refused() {
    let given = "flops=150e12,bandwidth=900GB,memory=24GiB";
    let planned = json(&plan(&[RUN, "--json", "--card", given], &[]));
    assert_eq!(planned["pools"]["device"]["limit_bytes"], 24u64 << 30);
    assert_eq!(planned["pools"]["host"]["limit_bytes"], Value::Null, "a laptop's memory says nothing of it");
    for (card, words) in [("mi300x", "no card of the table"), ("flops=1e12", "bandwidth is missing")] {
        check_refused(&plan(&[RUN, "--card", card], &[]), 2, &["card-unknown", words, "flops=150e12"]);
    }
    let on_cpu = plan(&[RUN, "--card", "h100"], &["run.device=cpu"]);
    check_refused(&on_cpu, 2, &["the run computes on the processor", "run.device=cuda"]);
}

/// Two steps of 74 s took 21 minutes: the evaluations were not counted.
#[test]
fn the_total_counts_evaluations() {
    let of = |sets: &[&str]| {
        let planned = json(&plan(&[RUN, "--json"], sets));
        let seconds = |key: &str| planned[key].as_f64().expect("seconds");
        let step = planned["auto"]["chosen"]["predicted_step_s"].as_f64().expect("seconds");
        (planned["evaluations"].clone(), seconds("predicted_run_s"), step)
    };
    let (evaluations, run_s, step_s) = of(&["train.steps=40", "eval.every=20", "eval.prompts_max=50"]);
    assert_eq!((&evaluations["count"], &evaluations["sequences"]), (&3.into(), &50.into()));
    let each = evaluations["each_s"].as_f64().expect("seconds");
    assert!(each > 0.0 && (run_s - 40.0 * step_s - 3.0 * each).abs() < 1e-9 * run_s);
    assert_eq!(of(&["data.eval=none"]).0["count"], 0);
}

/// 256 episodes before and after, without a word of them in the run file.
#[test]
fn r_episodes_were_evaluated_unasked() {
    let folder = Run::new(
        "method = \"grpo\"\nmodel = \"builtin:nano\"\n[environment]\nenv = \"text:second-try\"\nturns_max = 2\nturn_tokens_max = 8\n\
         [rollout]\nprompts_per_step = 2\ngroup_size = 4\nmax_new_tokens = 4\n\
         [train]\nsteps = 1\nlearning_rate = 1e-6\n",
    );
    let evaluated = |dir: &str| folder.events(dir).iter().filter(|event| event["event"] == "eval").count();
    folder.train("silent", &[]);
    assert_eq!(evaluated("silent"), 0);
    folder.train("asked", &["eval.prompts_max=4"]);
    assert_eq!(evaluated("asked"), 2);
}
