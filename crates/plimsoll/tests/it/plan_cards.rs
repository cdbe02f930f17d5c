//! Plans for cards that are not at hand, as the command line asks for them.

use crate::common::{check_refused, plimsoll, text};
use crate::run::{Run, json, object};
use serde_json::Value;

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first.toml");

fn plan<'a>(words: &[&'a str], sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = [&["plan"], words].concat();
    sets.iter().for_each(|set| args.extend(["--set", set]));
    args
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
fn offers_are_of_those_ranks_that_the_run_can_have() {
    let model = "model=random:qwen2.5-1.5b";
    // One rank alone offloads its states: several are no offers, and no error.
    let alone = json(&plan(&[RUN, "--rent", "--json"], &[model, "memory.offload=[\"optimizer\"]"]));
    assert_eq!(alone["offers"].as_array().map(Vec::len), Some(12), "{alone}");
    // The file's own micro-batch, prices, and a network.
    let args = plan(&[RUN, "--rent", "--json", "--price", "h100=2", "--network", "45GB/s"], &[model]);
    let offers = json(&args)["offers"].as_array().cloned().expect("rows");
    assert_eq!((offers.len(), &offers[0]["card"]), (72, &Value::from("h100")), "{}", offers[0]);
    assert!(offers[0]["cost"].as_f64().is_some_and(|cost| cost > 0.0) && offers[0]["auto"].is_array());
    check_refused(
        &plan(&[RUN, "--rent", "--price", "h1000=2"], &[]),
        2,
        &["card-unknown", "did you mean h100?"],
    );
    check_refused(
        &plan(&[RUN, "--rent", "--price", "h100=cheap"], &[]),
        2,
        &["bad-price", "a number above 0"],
    );
    check_refused(&plan(&[RUN, "--network", "1GB/s"], &[]), 2, &["bad-usage", "--network"]);
    // No card takes it.
    let args = plan(&[RUN, "--rent"], &["model=random:llama-3.1-70b", "memory.offload=[\"optimizer\"]"]);
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
