//! `plan` makes the checks of `train`: where it says that a run fits, the run starts.

use crate::common::{command, plimsoll, text};
use crate::run::{Run, has_python, refs};
use serde_json::Value;

/// A run whose prompts have a bound, so that its plan does not depend on its data.
const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "FOLDER/good.jsonl"
eval = "none"
prompt_tokens_max = 16
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "exact"
[train]
steps = 1
learning_rate = 1e-6
[run]
device = "cpu"
"#;

const REWARD: &str = r#"
import os, time
if os.environ.get("SLOW"):
    time.sleep(600)

def right(completions, **columns):
    return [0.0] * len(completions)

def wants(completions, difficulty):
    return [0.0] * len(completions)
"#;

const ENVIRONMENT: &str = r#"
class Fine:
    def reset(self, seed):
        return "1+1="
    def step(self, response):
        return "", 0.0, True

class NoStep:
    def reset(self, seed):
        return "1+1="
"#;

/// A folder with the run, good and bad data, and functions.
fn folder() -> Run {
    let run = Run::new("");
    run.write("x.toml", &RUN.replace("FOLDER", run.path("").to_str().expect("UTF-8").trim_end_matches('/')));
    let good = "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n";
    run.write("good.jsonl", &good.repeat(4));
    run.write("typo.jsonl", &format!("{good}{}", good.replace("prompt", "promt")));
    run.write("long.jsonl", &format!("{good}{}", good.replace("1+2=", &"1+2=".repeat(8))));
    run.write("r.py", REWARD);
    run.write("broken.py", "import no_such_package\n");
    run.write("env.py", ENVIRONMENT);
    run.write(
        "game.toml",
        &RUN.lines()
            .filter(|line| !line.contains(".jsonl") && !line.contains("exact") && !line.contains("reward"))
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    );
    run
}

/// Returns what the plan prints, which must end with this verdict.
fn planned(run: &Run, words: &[&str]) -> String {
    let output = plimsoll(&run.args("plan", words).iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("\nverdict: fits"), "{said}");
    said
}

#[test]
fn plan_refuses_what_train_refuses_with_the_same_words() {
    if !has_python() {
        return;
    }
    let run = folder();
    let at = |name: &str| run.text_path(name);
    let (typo, long) =
        (format!("data.prompts={}", at("typo.jsonl")), format!("data.prompts={}", at("long.jsonl")));
    let kind = |file: &str, name: &str| format!("reward.0.kind=python:{}:{name}", at(file));
    let env = |name: &str| format!("environment.env=python:{}:{name}", at("env.py"));
    for (words, code, slug) in [
        (vec![typo.as_str()], 1, "data-column-missing"),
        (vec![&long], 1, "prompt-too-long"),
        (vec!["data.prompt_column=question"], 1, "data-column-missing"),
        (vec!["reward.0.answer_column=label"], 2, "data-column-missing"),
        (vec!["data.pass_rate_column=rate"], 1, "data-column-missing"),
        (vec!["reward.0.kind=math", "reward.0.answer_column=prompt"], 2, "data-column-missing"),
        // A function takes rows without an answer: the name alone is wrong.
        (vec![&kind("r.py", "right"), "data.answer_column=anser"], 2, "data-column-missing"),
        (vec![&kind("r.py", "right"), "reward.0.answer_column=anser"], 2, "data-column-missing"),
        (vec![&kind("nothing.py", "right")], 2, "reward-function-missing"),
        (vec![&kind("r.py", "wrong")], 2, "reward-function-missing"),
        (vec![&kind("broken.py", "right")], 2, "reward-function-missing"),
        (vec![&kind("r.py", "wants")], 2, "reward-function-signature"),
        (vec!["reward.0.kind=command:no-such-program-here"], 1, "reward-worker-not-started"),
        (vec!["model_options.tokenizer=/nowhere/t.json"], 1, "tokenizer-missing"),
        (vec!["rollout.max_new_tokens=1000"], 2, "positions-beyond-model"),
    ] {
        check_same_refusal(&run, &words, code, slug);
    }
    let game = run.file("game.toml");
    check_same_refusal(&game, &[&env("Chess")], 2, "text-environment-missing");
    check_same_refusal(&game, &[&env("NoStep")], 2, "text-environment-missing");
    planned(&game, &[&env("Fine"), "model_options.positions=extend"]);
    // With all in order both take it.
    let kind = kind("r.py", "right");
    assert!(!planned(&run, &[&kind]).contains("not checked"));
    run.train("out", &[&kind]);
}

fn check_same_refusal(run: &Run, words: &[&str], code: i32, slug: &str) {
    let refused = |args: &[String]| {
        let output = plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}{}", text(&output.stdout));
        assert!(stderr.contains(&format!("error[{slug}]: ")), "{args:?}: {stderr}");
        stderr.lines().find(|line| line.starts_with("error[")).expect("it has one").to_string()
    };
    let (by_plan, by_train) = (refused(&run.args("plan", words)), refused(&run.train_args("out", words)));
    assert_eq!(by_plan, by_train, "{words:?}");
}

#[test]
fn what_a_plan_leaves_out_is_named() {
    if !has_python() {
        return;
    }
    let run = folder();
    let not_checked = |words: &[&str]| {
        let said = planned(&run, words);
        said.lines().find_map(|line| line.strip_prefix("not checked: ")).unwrap_or_default().to_string()
    };
    assert_eq!(not_checked(&[]), "");
    assert_eq!(not_checked(&["reward.0.kind=http://127.0.0.1:9/r"]), "whether http://127.0.0.1:9/r answers");
    // The rows after the first two megabytes: the fault in the last one is for `train` to find.
    let good = "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n";
    let many = run.write("many.jsonl", &(good.repeat(5000) + "{}\n"));
    assert_eq!(not_checked(&[&format!("data.prompts={many}")]), format!("rows after 4096 of {many}"));
    // Another machine: what this one lacks may be there.
    let limit = "--limit=device=80GiB,host=64GiB,disk=1TiB";
    assert_eq!(not_checked(&[limit, "run.device=cuda"]), "the CUDA driver");
    let broken = format!("reward.0.kind=python:{}:f", run.text_path("broken.py"));
    let said = not_checked(&[limit, &broken]);
    assert!(said.contains("on this machine: ") && said.contains("no_such_package"), "{said}");
    // A function that takes long to load is not waited for.
    let slow = format!("reward.0.kind=python:{}:right", run.text_path("r.py"));
    let args = run.args("plan", &[&slow, "--json"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = command(&args).env("SLOW", "1").output().expect("the binary runs");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let said = plan["not_checked"][0].as_str().expect("words");
    assert!(plan["fits"] == true && said.ends_with("(not ready after 5 s)"), "{plan}");
}

#[test]
fn a_plan_for_this_machine_needs_its_driver_and_counts_its_cores() {
    let run = folder();
    let step =
        |words: &[&str]| run.plan(words)["auto"]["chosen"]["predicted_step_s"].as_f64().expect("seconds");
    let cores = std::thread::available_parallelism().expect("a number").get();
    let warnings = |words: &[&str]| run.plan(words)["warnings"].to_string();
    let (few, many) = ([format!("run.threads={cores}")], [format!("run.threads={}", 50 * cores)]);
    let (few, many) = ([few[0].as_str()], [many[0].as_str()]);
    assert_eq!(warnings(&few), "[]");
    assert!(warnings(&many).contains(&format!("this machine has {cores} cores")), "{}", warnings(&many));
    assert!(step(&many) >= step(&few) * 0.9, "threads without cores do not make a step faster");
    let elsewhere = [many[0], "--limit=host=8GiB,disk=1TiB"];
    assert!(warnings(&elsewhere) == "[]" && step(&elsewhere) < step(&few));
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/cartpole-ppo.toml");
    let policy = text(&plimsoll(&["plan", policy, "--set", many[0]]).stdout);
    assert!(policy.contains(&format!("warning: {}", many[0].replace('=', " = "))), "{policy}");
    let stderr = run.train("threads", &[many[0]]);
    assert!(stderr.contains("warning: run.threads = "), "{stderr}");

    let args = run.args("plan", &["run.device=cuda"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = plimsoll(&args);
    if output.status.code() == Some(0) {
        eprintln!("skipped: this machine has a card");
        return;
    }
    let stderr = text(&output.stderr);
    assert!(stderr.contains("error[cuda-") && stderr.contains("hint: --limit device="), "{stderr}");
}

#[test]
fn a_directory_that_train_would_refuse_is_named() {
    let run = folder();
    let dir = format!("run.dir={}", run.text_path("out"));
    assert!(!planned(&run, &[&dir]).contains("warning: "));
    run.train("out", &[]);
    let said = planned(&run, &[&dir]);
    assert!(said.contains("holds an earlier run") && said.contains("--overwrite"), "{said}");
    run.write("out/thesis.tex", "");
    assert!(planned(&run, &[&dir]).contains("which is no run's"));
    let below = format!("run.dir={}", run.text_path("good.jsonl/below"));
    assert!(planned(&run, &[&below]).contains("is not a folder"));
    assert!(
        !planned(&run, &[&dir, "--limit=host=8GiB,disk=1TiB"]).contains("warning: "),
        "it is another machine's"
    );
}

#[test]
fn a_misspelt_path_names_the_nearest() {
    let run = folder();
    run.write("my_reward.py", "def f(completions, **columns):\n    return [0.0] * len(completions)\n");
    std::fs::create_dir(run.path("model")).expect("a folder in it");
    let at = |name: &str| run.text_path(name);
    let near = |words: &[&str], meant: &str| {
        let args = run.args("train", words);
        let stderr = text(&plimsoll(&refs(&args)).stderr);
        assert!(stderr.contains(&format!("\nhint: did you mean {}?\n", at(meant))), "{words:?}: {stderr}");
    };
    near(&[&format!("data.prompts={}", at("godo.jsonl"))], "good.jsonl");
    near(&[&format!("reward.0.kind=python:{}:f", at("my_rewrad.py"))], "my_reward.py");
    near(&[&format!("model={}", at("modle"))], "model");
    near(&[&format!("model_options.tokenizer={}", at("god.jsonl"))], "good.jsonl");
    let game = run.file("game.toml");
    let stderr = text(
        &plimsoll(&refs(&game.args("plan", &[&format!("environment.env=python:{}:Fine", at("emv.py"))])))
            .stderr,
    );
    assert!(stderr.contains("env.py?\n"), "{stderr}");
    // What a plan takes as not yet there.
    let said = planned(&run, &[&format!("data.prompts={}", at("godo.jsonl"))]);
    let last = format!(
        "\nverdict: fits, if what is assumed holds\nwarning: {} is not there; did you mean {}?\n",
        at("godo.jsonl"),
        at("good.jsonl")
    );
    assert!(said.ends_with(&last), "{said}");
    let stderr = text(&plimsoll(&refs(&run.args("train", &["model=Qwen/Qwen2.5-0.5B"]))).stderr);
    assert!(stderr.contains("\nhint: write hf:Qwen/Qwen2.5-0.5B for the repository"), "{stderr}");
    assert!(
        planned(&run, &["model=Qwen/Qwen2.5-0.5B", "--limit=host=64GiB,disk=1TiB"])
            .contains("(on the hub it is hf:Qwen/Qwen2.5-0.5B)")
    );
    let stderr = text(&plimsoll(&["doctor", "--log", &at("good.jsnl")]).stderr);
    assert!(stderr.contains("good.jsonl?\n"), "{stderr}");
}
