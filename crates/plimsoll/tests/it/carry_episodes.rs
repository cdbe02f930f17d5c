//! `async.partial_rollouts` with text environments: an episode takes several steps and no turn is split, and what a
//! step trains depends on nothing but the tokens.

use crate::carry::as_after;
use crate::common::{every_nth, in_turn};
use crate::ranks::left;
use crate::run::{Run, has_python, number, refs};
use crate::turns::RUN;
use serde_json::Value;

/// Episodes of up to four turns of up to 24 tokens with words of the environment between them. A turn ends at a letter.
fn words(env: &str, more: &[&str]) -> Vec<String> {
    let model = concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/llama");
    let template = "data.chat_template={% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<bos>assistant: {% endif %}";
    let sets = [
        model,
        template,
        "model_options.tokenizer=bytes",
        "model_options.positions=extend",
        "environment.turn_tokens_max=160",
        "environment.turns_max=4",
        "rollout.prompts_per_step=2",
        "rollout.max_new_tokens=24",
        "rollout.stop=[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", \"i\", \"j\", \"k\", \"l\", \"m\", \"n\"]",
        "rollout.temperature=30",
        "train.cut_multiple=4",
        "data.eval=none",
    ];
    [&sets[..], &CARRIED[..], more]
        .concat()
        .iter()
        .map(|set| set.to_string())
        .chain([format!("environment.env={env}")])
        .collect()
}

const CARRIED: [&str; 2] = ["async.partial_rollouts=3", "train.steps=6"];

/// Sums that are asked for twice, by a model of 15 tokens.
pub fn sums(more: &[&str]) -> Vec<String> {
    let sets = [
        "environment.env=text:second-try",
        "rollout.prompts_per_step=2",
        "rollout.max_new_tokens=40",
        "rollout.temperature=20",
        "model_options.positions=extend",
        "train.cut_multiple=4",
        "data.eval=none",
    ];
    [&sets[..], &CARRIED[..], more].concat().iter().map(|set| set.to_string()).collect()
}

pub fn of(folder: &Run, dir: &str, name: &str) -> Vec<f64> {
    folder.metrics(dir).iter().map(|step| number(step, name)).collect()
}

/// The lines of a run's episodes.
pub fn lines(folder: &Run, dir: &str, steps: u64) -> Vec<Value> {
    (1..=steps).flat_map(|step| folder.read_lines(&format!("{dir}/samples/step-{step:06}.jsonl"))).collect()
}

#[test]
fn every_episode_is_trained_once_and_no_turn_is_split() {
    let folder = Run::new(RUN);
    for (dir, sets) in [("sums", sums(&[])), ("guess", words("text:guess-number", &[]))] {
        folder.train(dir, &refs(&sets));
        assert_eq!(of(&folder, dir, "rollout/logprob_mismatch_max"), [0.0; 6], "{dir}");
        assert_eq!(of(&folder, dir, "rollout/carried"), [3.0, 3.0, 3.0, 3.0, 2.0, 0.0], "{dir}");
        assert!(of(&folder, dir, "rollout/stale_share").iter().any(|share| *share > 0.0), "{dir}");
        assert_eq!(of(&folder, dir, "environment/episodes"), [8.0; 6], "{dir}");
        for name in ["idle_share", "tail_share", "recomputed_share", "stale_share"] {
            let shares = of(&folder, dir, &format!("rollout/{name}"));
            assert!(shares.iter().all(|share| (0.0..1.0).contains(share)), "{dir} {name}: {shares:?}");
        }
        let lines = lines(&folder, dir, 6);
        let mut episodes: Vec<u64> =
            lines.iter().map(|line| line["episode"].as_u64().expect("a number")).collect();
        episodes.dedup();
        episodes.sort_unstable();
        assert_eq!(episodes, (0..12).collect::<Vec<u64>>(), "{dir}: of a group no episode is apart");
        // Turns of one episode have the weights of several steps, in order.
        let versions = |line: &Value| -> Vec<u64> {
            let turns = line["turns"].as_array().expect("turns");
            turns.iter().map(|turn| turn["policy_version"].as_u64().expect("a number")).collect()
        };
        let all: Vec<Vec<u64>> = lines.iter().map(versions).collect();
        assert!(all.iter().all(|of| of.is_sorted()), "{all:?}");
        assert!(all.iter().any(|of| of.first() != of.last()), "{dir}: {all:?}");
    }
}

#[test]
fn bits_do_not_depend_on_threads_caches_or_ranks() {
    let folder = Run::new(RUN);
    let mut cases = vec![
        ("sums", sums(&["async.stale_tokens_max=30"])),
        ("credit", sums(&["method=ppo", "environment.credit=turn", "train.learning_rate=1e-3"])),
        ("process", sums(&["environment.credit=process", "loss.correction=tis"])),
        ("short", sums(&["environment.episode_tokens_max=60"])),
        ("guess", words("text:guess-number", &[])),
        ("countdown", words("text:countdown", &["environment.turn_tokens_max=90"])),
    ];
    if has_python() {
        cases.push(("tool", words("text:python-tool", &["environment.num_workers=2"])));
    }
    for (index, (name, sets)) in every_nth(3, cases) {
        let mut one = None;
        for (how, more) in in_turn(
            index,
            &[
                ("threads-1", &["run.threads=1"][..]),
                ("threads-4", &["run.threads=4"]),
                ("few", &["rollout.sequences_max=3"]),
                ("full", &["rollout.on_full=preempt", "rollout.sequences_max=16", "rollout.kv_blocks=40"]),
                ("ranks-2", &["--ranks=2"]),
                ("ranks-3", &["--ranks=3", "run.zero_stage=3"]),
            ],
        ) {
            let dir = format!("{name}-{how}");
            folder.train(&dir, &[&refs(&sets)[..], more].concat());
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
        }
    }
}

#[test]
fn a_run_goes_on_with_the_episodes_that_were_under_way_on_any_number_of_ranks() {
    let folder = Run::new(RUN);
    for (name, sets) in [("sums", sums(&[])), ("guess", words("text:guess-number", &[]))] {
        let sets = [&refs(&sets)[..], &["checkpoint.every=1", "checkpoint.keep=6"]].concat();
        folder.train(name, &sets);
        let goes_on =
            [(1, "--ranks=1"), (2, "--ranks=3"), (3, "--ranks=2"), (4, "--ranks=1"), (5, "--ranks=2")];
        for (_, (step, ranks)) in every_nth(4, goes_on) {
            let dir = as_after(&folder, name, step);
            assert!(folder.path(&dir).join("checkpoints/latest/state/carried.jsonl").exists(), "{step}");
            folder.train(&dir, &[&sets[..], &["--resume", ranks]].concat());
            assert_eq!(left(&folder, &dir), left(&folder, name), "{name} from step {step} on {ranks}");
        }
    }
}

#[test]
fn episodes_under_way_are_in_the_plan_and_within_it() {
    let folder = Run::new(RUN);
    let sets = words("text:guess-number", &[]);
    folder.train("a", &refs(&sets));
    let summary = folder.read_json("a/summary.json");
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
}

#[test]
fn environments_whose_state_cannot_be_taken_back_are_refused() {
    let folder = Run::new(RUN);
    let refused = |env: &str, more: &[&str], why: &str| {
        let env = format!("environment.env={env}");
        let sets = [&[&*env, "async.partial_rollouts=3", "data.prompt_tokens_max=8"], more].concat();
        folder.plan_refused(&sets, 2, &["contradictory-keys", why]);
    };
    refused("python:games.py:Sums", &[], "cannot take back a turn");
    refused("gym:Guess-v0", &[], "cannot take back a turn");
    refused("openenv:http://localhost:8000", &["environment.network=allow"], "cannot take back a turn");
    refused(
        "http-agent",
        &["environment.command=[\"true\"]", "environment.network=allow"],
        "cannot begin the episodes of agents again",
    );
}

/// Weights that do not move show that nothing else does: neither when an episode stops nor where it goes on.
#[test]
fn with_weights_that_stay_an_episode_is_that_of_one_step() {
    let folder = Run::new(RUN);
    for (name, sets) in [("sums", sums(&[])), ("guess", words("text:guess-number", &[]))] {
        let of = |dir: &str, more: &[&str]| {
            folder.train(dir, &[&refs(&sets)[..], &["train.learning_rate=1e-30"], more].concat());
            let mut lines = lines(&folder, dir, 6);
            lines.sort_by_key(|line| line["episode"].as_u64());
            for line in &mut lines {
                line["step"].take();
                let turns = line["turns"].as_array_mut().expect("turns");
                turns.iter_mut().for_each(|turn| _ = turn["policy_version"].take());
            }
            lines
        };
        let (carried, plain) = (format!("{name}-carried"), format!("{name}-plain"));
        assert_eq!(of(&carried, &[]), of(&plain, &["async.partial_rollouts=0"]), "{name}");
        assert!(folder.metric(&carried, "rollout/stale_share") > 0.0, "{name}");
    }
}
