//! `environment.credit` with a group from outside: turns that are compared with the same turn of others, or with all
//! turns. The bits do not depend on ranks or on a stop in between, and a run with it learns.

use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, check_done, check_train_fails, has_python};
use crate::turns::RUN;

/// Three sums in a row, each with a reward of its own. In `Faults` some episodes raise in their second turn, and in
/// `Given` every turn of every episode has the same reward.
const GAMES: &str = r#"
import random

class Row:
    def reset(self, seed):
        self.draw = random.Random(seed)
        self.turn = 0
        return self.ask()

    def ask(self):
        self.a, self.b = self.draw.randint(100, 999), self.draw.randint(100, 999)
        return f"{self.a}+{self.b}="

    def step(self, response):
        self.turn += 1
        reward = self.reward(response)
        return self.ask(), reward, self.turn == 3

    def reward(self, response):
        return float(response == str(self.a + self.b))

class Faults(Row):
    def reset(self, seed):
        self.rare = random.Random(seed).random() < 0.3
        return super().reset(seed)

    def reward(self, response):
        if self.rare and self.turn == 2 and len(response) % 2:
            raise ValueError("no such sum")
        return self.turn * len(response) / 8

class Given(Row):
    def reward(self, response):
        return 0.3
"#;

fn games() -> Run {
    let folder = Run::new(RUN);
    folder.write("games.py", GAMES);
    folder
}

fn game(folder: &Run, dir: &str, class: &str, sets: &[&str]) -> String {
    let env = format!("environment.env=python:{}:{class}", folder.text_path("games.py"));
    let more = [&env, "data.prompt_tokens_max=8", "environment.restarts_max=1000"];
    check_done(&folder.output(dir, &[&more[..], sets].concat()))
}

#[test]
fn turns_are_compared_exactly_and_within_the_plan() {
    if !has_python() {
        return;
    }
    let folder = games();
    let [turn, process] = ["environment.credit=turn", "environment.credit=process"];
    let runs: [(&str, &[&str]); 8] = [
        ("episode", &[]),
        ("turn", &[turn]),
        ("process", &[process]),
        ("rloo", &["method=rloo", turn]),
        ("opo", &["method=opo", turn]),
        ("kl", &["method=reinforce_baseline", turn, "loss.kl_coef=0.05", "loss.kl_in=reward"]),
        ("cut", &[turn, "loss.mask_truncated=true"]),
        ("no-group", &["method=reinforce", turn]),
    ];
    let mut seen = Vec::new();
    let (episode, others) = (runs[0], &runs[1..]);
    for (name, sets) in [episode].into_iter().chain(every_nth(2, others).into_iter().map(|(_, run)| *run)) {
        game(&folder, name, "Faults", &[&["eval.prompts_max=2"], sets].concat());
        assert_eq!(folder.metric(name, "rollout/logprob_mismatch_max"), 0.0, "{name}");
        assert!(folder.metric(name, "environment/aborted") >= 1.0, "{name}: some episodes take no part");
        let summary = folder.read_json(&format!("{name}/summary.json"));
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
        assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
        seen.push((name, folder.result_and_samples(name)[0].clone()));
        let first = |name: &str| folder.read_lines(&format!("{name}/samples/step-000001.jsonl"));
        assert_eq!(
            first(name),
            first("episode"),
            "{name}: samples and whole returns do not depend on credit"
        );
    }
    for (i, (name, weights)) in seen.iter().enumerate() {
        for (other, others) in &seen[..i] {
            assert_ne!(weights, others, "{name} and {other} are not one thing");
        }
    }
}

#[test]
fn equal_rewards_of_turns_teach_nothing_and_one_turn_is_a_whole_episode() {
    if !has_python() {
        return;
    }
    let folder = games();
    for credit in ["turn", "process"] {
        let (given, set) = (format!("given-{credit}"), format!("environment.credit={credit}"));
        game(&folder, &given, "Given", &[&set, "train.steps=1", "data.eval=none"]);
        assert_eq!(folder.metric(&given, "grad_norm"), 0.0, "{credit}");
    }
    let one = ["environment.turns_max=1", "environment.episode_tokens_max=5"];
    game(&folder, "whole", "Row", &one);
    for credit in ["turn", "process"] {
        let set = format!("environment.credit={credit}");
        game(&folder, credit, "Row", &[&one[..], &[&set]].concat());
        assert!(folder.result_and_samples(credit)[0] == folder.result_and_samples("whole")[0], "{credit}");
    }
}

#[test]
fn neither_ranks_nor_a_stop_move_a_bit() {
    if !has_python() {
        return;
    }
    let folder = games();
    for (_, credit) in every_nth(2, ["environment.credit=turn", "environment.credit=process"]) {
        let sets = [credit, "train.cut_multiple=4", "checkpoint.every=1", "eval.prompts_max=2"];
        let run = |dir: &str, more: &[&str]| game(&folder, dir, "Faults", &[&sets[..], more].concat());
        for (dir, ranks) in [("one", "--ranks=1"), ("three", "--ranks=3")] {
            run(dir, &[ranks]);
        }
        assert_eq!(left(&folder, "three"), left(&folder, "one"), "{credit}");
        run("short", &["train.steps=1"]);
        run("short", &["--resume"]);
        assert!(
            folder.result_and_samples("short") == folder.result_and_samples("one"),
            "{credit}: other bits"
        );
        for dir in ["one", "three", "short"] {
            std::fs::remove_dir_all(folder.path(dir)).expect("a run left it");
        }
    }
}

#[test]
fn what_has_no_turns_to_compare_says_so() {
    let folder = Run::new(RUN);
    let output =
        folder.output("out", &["environment.env=text:second-try", "method=gpg", "environment.credit=turn"]);
    check_train_fails(
        &output,
        &["error[contradictory-keys]: ", "loss.advantage = \"gpg\", which counts the whole samples"],
    );
}
