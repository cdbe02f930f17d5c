//! Environment policies from outside: they learn, they go on bit for bit, threads change nothing, and what cannot be is
//! refused by name.

use crate::common::{plimsoll, text};
use crate::run::{Run, refs};
use std::fs;

const RUN: &str = r#"method = "ppo"
model = "mlp:64x64"
[environment]
env = "CartPole-v1"
num_envs = 4
frames_per_batch = 512
total_frames = 4096
[loss]
gamma = 0.99
lambda = 0.95
entropy_coef = 0.01
[train]
mini_batch = 128
epochs_per_rollout = 4
learning_rate = 1e-3
adam_epsilon = 1e-5
grad_clip = 0.5
"#;

#[test]
fn cart_pole_is_learnt_and_every_number_holds() {
    let folder = Run::new(RUN);
    let summary = folder.summary("run", &["environment.total_frames=81920"]);
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key}: {summary}"));
    // A random policy stays up for about 22 steps.
    assert!(number("eval_before") < 60.0 && number("eval_after") > 150.0, "{summary}");
    assert_eq!((number("frames"), number("steps")), (81920.0, 160.0));
    assert_eq!(number("logprob_mismatch_max"), 0.0);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    assert!(number("rss_peak_bytes") <= number("rss_planned_bytes"), "{summary}");
    for name in ["run.toml", "plan.json", "events.jsonl", "checkpoints/latest/policy.json"] {
        assert!(folder.path("run").join(name).exists(), "{name}");
    }
    let curves = fs::read_to_string(folder.path("run/curves.svg")).expect("curves.svg");
    assert!(curves.contains("episode length in frames: mean"), "{curves}");
}

#[test]
fn a_run_goes_on_bit_for_bit_and_threads_change_nothing() {
    let folder = Run::new(RUN);
    let sets = ["environment.normalise_observations=true", "environment.normalise_rewards=true"];
    folder.summary("whole", &[&sets[..], &["run.threads=1"]].concat());
    folder.summary("parts", &[&sets[..], &["environment.total_frames=2048", "run.threads=2"]].concat());
    assert_ne!(folder.weights("whole"), folder.weights("parts"));
    folder.summary("parts", &[&sets[..], &["--resume"]].concat());
    assert!(folder.weights("whole") == folder.weights("parts"), "other weights after a resume");
}

#[test]
fn weights_of_a_file_are_taken_and_another_environments_are_refused() {
    let folder = Run::new(RUN);
    folder.summary("first", &["environment.total_frames=1024"]);
    let model = format!("model=mlp:{}", folder.text_path("first/checkpoints/latest"));
    let summary = folder.summary("second", &[&model, "environment.total_frames=1024"]);
    assert_eq!(summary["logprob_mismatch_max"], 0.0);
    let words = ["error[policy-shape-mismatch]", "`actor.0.weight` is [64, 4]", "[64, 3]"];
    folder.plan_refused(&[&model, "environment.env=Pendulum-v1"], 1, &words);
}

#[test]
fn evaluation_is_greedy_beside_training_and_names_the_best_checkpoint() {
    let folder = Run::new(RUN);
    let evaluated = ["eval.every=4", "eval.prompts_max=6", "eval.metric=eval/return", "checkpoint.every=2"];
    let summary = folder.summary("with", &evaluated);
    let plain = folder.summary("without", &["checkpoint.every=2"]);
    assert!(folder.weights("with") == folder.weights("without"), "an evaluation changes no weight");
    assert!(plain["best"]["metric"].is_string(), "{plain}");
    let events = folder.events("with");
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    let evals = of("eval");
    assert_eq!(evals.iter().map(|eval| eval["step"].as_u64()).collect::<Vec<_>>(), [0, 4, 8].map(Some));
    assert!(evals.iter().all(|eval| eval["num_samples"] == 6 && eval["set"] == "CartPole-v1"));
    let scores: Vec<f64> = evals.iter().map(|eval| eval["score"].as_f64().expect("a score")).collect();
    assert_eq!((&summary["eval_before"], &summary["eval_after"]), (&scores[0].into(), &scores[2].into()));
    let steps = of("step");
    assert_eq!(steps[3]["metrics"]["eval/return"], scores[1]);
    assert!(steps[4]["metrics"]["eval/return"].is_null());
    let best = if scores[2] > scores[1] { 8 } else { 4 };
    assert_eq!(
        (&summary["best"]["step"], summary["best"]["value"].as_f64()),
        (&best.into(), Some(scores[1].max(scores[2])))
    );
    let link = fs::read_link(folder.path("with/checkpoints/best")).expect("a link");
    assert!(link.ends_with(format!("step-{best:06}")), "{link:?}");
    // A part of it goes on to the same evaluations.
    folder.summary("parts", &[&evaluated[..], &["environment.total_frames=2048"]].concat());
    let whole = folder.summary("parts", &[&evaluated[..], &["--resume"]].concat());
    assert_eq!(
        (&whole["eval_before"], &whole["eval_after"]),
        (&summary["eval_before"], &summary["eval_after"])
    );
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let folder = Run::new(RUN);
    folder.plan_refused(&["train.mini_batch=100"], 2, &["error[contradictory-keys]"]);
    folder.plan_refused(&["environment.env=CartPole"], 2, &["error[unknown-environment]"]);
    let output = plimsoll(&refs(&folder.args("plan", &["memory.host=1MiB"])));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn a_run_that_diverges_says_so_and_leaves_good_weights() {
    let folder = Run::new(RUN);
    let sets = ["train.learning_rate=1e30", "train.grad_clip=0"];
    folder.train_fails("run", &sets, 1, &["not-finite]", "in step 1 of 8", "largest weights: `"]);
    let crash = text(&folder.read("run/crash.json"));
    assert!(crash.contains("not-finite"), "{crash}");
}
