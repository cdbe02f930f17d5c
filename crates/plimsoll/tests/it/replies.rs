//! Replies of servers that are as long as they may be and have millions of small values: a run stays within its plan.

use crate::endpoint::{known, listed, run_of, server_of_texts};
use crate::run::{Run, refs};
use serde_json::{Value, json};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 4
group_size = 8
max_new_tokens = 5
[[reward]]
kind = "exact"
workers = 8
batch_size = 4
[train]
steps = 2
learning_rate = 1e-4
"#;

/// Nearly as many bytes as are read of a reply, each second one a value.
const VALUES: usize = (4 << 20) / 2 - 4096;

/// Writes an object whose first field has as many values as a reply can have.
fn padded(fields: &Value) -> String {
    format!("{{\"x\": [{}0], {}", "0,".repeat(VALUES), &fields.to_string()[1..])
}

fn stays_within_its_plan(run: &Run, what: &str, sets: &[String]) {
    let summary = run.summary("out", &refs(sets));
    let [peak, planned] = ["rss_peak_bytes", "rss_planned_bytes"].map(|name| summary[name].as_u64());
    assert!(peak <= planned, "{what}: {peak:?} of {planned:?}");
    std::fs::remove_dir_all(run.path("out")).expect("the run is over");
}

#[test]
fn rewards_and_judges_that_answer_with_millions_of_values_stay_within_the_plan() {
    let run = Run::new(RUN);
    let (url, _) = server_of_texts(|number, body| {
        let rewards = vec![number as f64; body["query"].as_array().map_or(0, Vec::len)];
        let choice = json!({ "message": { "content": "Score: 7" }, "finish_reason": "stop" });
        (200, padded(&json!({ "rewards": rewards, "choices": [choice] })))
    });
    let judge = ["reward.0.kind=judge".to_string(), format!("reward.0.url={url}")];
    stays_within_its_plan(&run, "a reward", &[format!("reward.0.kind={url}")]);
    stays_within_its_plan(&run, "a judge", &judge);
    // The judge's own text is an object of as many values.
    let (url, _) = server_of_texts(|_, _| {
        let text = format!("{{\"x\": [{}0], \"score\": 7}}", "0,".repeat((1 << 20) / 2 - 64));
        (200, json!({ "choices": [{ "message": { "content": text } }] }).to_string())
    });
    let judge = ["reward.0.kind=judge".to_string(), format!("reward.0.url={url}")];
    stays_within_its_plan(&run, "an object in a judge's text", &judge);
}

#[test]
fn a_teacher_that_answers_with_millions_of_values_stays_within_the_plan() {
    let (url, _) = server_of_texts(|number, body| {
        let good = listed(body, known);
        let rest = |value: &str, count: usize| format!("{value},").repeat(count) + value;
        let all = match number % 3 {
            1 => format!("{{\"choices\": [{}, {}]}}", good["choices"][0], rest("{}", 1_300_000)),
            2 => format!("{{\"choices\": [{{\"prompt_logprobs\": [{}]}}]}}", rest("null", 800_000)),
            _ => padded(&good),
        };
        (200, all)
    });
    let run = run_of(&url);
    stays_within_its_plan(&run, "a teacher", &["distill.endpoint.workers=8".into()]);
}
