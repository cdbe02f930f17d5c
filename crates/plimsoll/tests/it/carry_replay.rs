//! `async.partial_rollouts` with environments in Python, whose episodes are played again in each step
//! (`environment.replay`).

use crate::carry::as_after;
use crate::carry_episodes::{lines, of, sums};
use crate::common::{every_nth, in_turn};
use crate::ranks::left;
use crate::run::{Run, has_python, refs};
use crate::turns::{GAMES, QUIET, RUN, TOOLS};

/// Games that are not what they were.
const OTHERS: &str = "
import time

class Counts(Sums):
    played = 0

    def step(self, response):
        Counts.played += 1
        self.a += Counts.played % 7
        return super().step(response)

class Breaks(Sums):
    def broken(self):
        os._exit(3)
";

fn games() -> Run {
    let folder = Run::new(RUN);
    folder.write("games.py", &format!("{GAMES}{OTHERS}"));
    folder
}

/// The sums of `carry_episodes`, of a class.
fn game(folder: &Run, class: &str, more: &[&str]) -> Vec<String> {
    let own = [
        format!("environment.env=python:{}:{class}", folder.text_path("games.py")),
        "environment.replay=true".into(),
        "data.prompt_tokens_max=8".into(),
    ];
    sums(more).into_iter().chain(own).collect()
}

#[test]
fn bits_do_not_depend_on_workers_threads_or_ranks() {
    if !has_python() {
        return;
    }
    let folder = games();
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("sums", game(&folder, "Sums", &["async.stale_tokens_max=30"])),
            ("slow", game(&folder, "Slow", &["environment.credit=turn", "method=ppo"])),
            ("raises", game(&folder, "Raises", &["environment.restarts_max=1000"])),
            ("talks", game(&folder, "Talks", &[])),
        ],
    ) {
        let mut one = None;
        for (how, more) in in_turn(
            index,
            &[
                ("threads-1", &["run.threads=1"][..]),
                ("threads-4", &["run.threads=4", "environment.num_workers=3"]),
                ("few", &["rollout.sequences_max=3", "environment.num_workers=2"]),
                ("ranks-2", &["--ranks=2"]),
                ("ranks-3", &["--ranks=3", "run.zero_stage=3"]),
            ],
        ) {
            let dir = format!("{name}-{how}");
            folder.train(&dir, &[&refs(&sets)[..], more].concat());
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
        }
        let dir = format!("{name}-threads-1");
        let sum = |metric: &str| of(&folder, &dir, metric).iter().sum::<f64>();
        assert!(sum("environment/exceptions") > 0.0 || name != "raises");
        if name == "sums" {
            assert!(sum("rollout/stale_share") > 0.0);
            let all = lines(&folder, &dir, 6);
            assert!(all.iter().any(|line| line["turns"].as_array().is_some_and(|turns| turns.len() == 3)));
        }
    }
}

#[test]
fn a_run_goes_on_with_episodes_that_are_played_again() {
    if !has_python() {
        return;
    }
    let folder = games();
    let sets = game(&folder, "Sums", &["checkpoint.every=1", "checkpoint.keep=6"]);
    folder.train("whole", &refs(&sets));
    for (_, (step, ranks)) in every_nth(3, [(1, "--ranks=2"), (2, "--ranks=1"), (4, "--ranks=3")]) {
        let dir = as_after(&folder, "whole", step);
        folder.train(&dir, &[&refs(&sets)[..], &["--resume", ranks]].concat());
        assert_eq!(left(&folder, &dir), left(&folder, "whole"), "from step {step} on {ranks}");
    }
}

#[test]
fn an_environment_that_cannot_be_played_again_is_named() {
    if !has_python() {
        return;
    }
    let folder = games();
    for (_, (class, words)) in every_nth(
        2,
        [
            (
                "Counts",
                &["text-environment-bad-reply", "has another answer when it is played again", "episode"][..],
            ),
            (
                "Forgetful",
                &["text-environment-bad-reply", "reset begins two episodes of one seed differently"],
            ),
        ],
    ) {
        for ranks in ["--ranks=1", "--ranks=2"] {
            let sets = game(&folder, class, &[ranks]);
            let dir = format!("{class}{ranks}");
            folder.train_fails(&dir, &refs(&sets), 1, words);
        }
    }
    // A worker that dies takes its episodes along, and no others.
    folder.train("breaks", &refs(&game(&folder, "Breaks", &["environment.restarts_max=1000"])));
    assert!(of(&folder, "breaks", "environment/crashes").iter().sum::<f64>() > 0.0);
    assert!(of(&folder, "breaks", "environment/aborted").iter().sum::<f64>() < 48.0);
}

#[test]
fn an_environment_of_tools_is_scored_once_at_the_end_of_each_episode() {
    if !has_python() {
        return;
    }
    let folder = Run::new(RUN);
    folder.write("tools.py", TOOLS);
    folder.write("rows.jsonl", "{\"a\": 1, \"b\": 2}\n{\"a\": 30, \"b\": 4}\n");
    let own = [
        format!("environment.env=python:{}:Counted", folder.text_path("tools.py")),
        format!("environment.rows={}", folder.text_path("rows.jsonl")),
        format!("data.chat_template={QUIET}"),
        "environment.replay=true".into(),
        "data.prompt_tokens_max=8".into(),
    ];
    let sets: Vec<String> = sums(&[]).into_iter().chain(own).collect();
    folder.train("out", &refs(&sets));
    assert_eq!(of(&folder, "out", "episode/return"), [0.25; 6]);
    assert_eq!(of(&folder, "out", "environment/aborted"), [0.0; 6]);
    assert!(of(&folder, "out", "rollout/carried").iter().sum::<f64>() > 0.0);
}

#[test]
fn replay_is_refused_where_nothing_is_played_again() {
    let folder = Run::new(RUN);
    for sets in [
        &["environment.env=text:second-try", "async.partial_rollouts=3"][..],
        &["environment.env=python:games.py:Sums", "data.prompt_tokens_max=8"],
    ] {
        let sets = [sets, &["environment.replay=true"]].concat();
        folder.plan_refused(&sets, 2, &["contradictory-keys", "environment.replay"]);
    }
}
