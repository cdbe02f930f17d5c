//! Episodes of text environments on several ranks, as real processes, each with environments of its own.

use crate::common::{every_nth, in_turn};
use crate::ranks::{ended, left};
use crate::run::{Run, check_done, has_python, json, refs};
use crate::turns::{GAMES, RUN};

fn games() -> Run {
    let folder = Run::new(RUN);
    folder.write("games.py", GAMES);
    folder
}

/// Returns what names an environment of `games.py`.
fn game(folder: &Run, class: &str) -> [String; 2] {
    [
        format!("environment.env=python:{}:{class}", folder.text_path("games.py")),
        "data.prompt_tokens_max=8".into(),
    ]
}

#[test]
fn the_number_of_ranks_changes_no_bit_of_episodes() {
    let folder = games();
    let native = |more: &[&str]| {
        [&["environment.env=text:second-try"], more].concat().iter().map(|it| it.to_string()).collect()
    };
    let own = |class: &str, more: &[&str]| -> Vec<String> {
        game(&folder, class).into_iter().chain(more.iter().map(|it| it.to_string())).collect()
    };
    let mut cases: Vec<(&str, Vec<String>)> = vec![
        ("grpo", native(&["eval.samples=2", "eval.temperature=1.0", "eval.every=1"])),
        ("credit", native(&["method=ppo", "environment.credit=turn", "rollout.prompts_per_step=5"])),
        ("short", native(&["environment.episode_tokens_max=12", "eval.prompts_max=3"])),
    ];
    if has_python() {
        cases.push(("slow", own("Slow", &["environment.num_workers=2", "rollout.sequences_max=5"])));
        cases.push(("raises", own("Raises", &["environment.restarts_max=1000"])));
        cases.push(("talks", own("Talks", &[])));
    }
    for (index, (name, sets)) in every_nth(3, cases) {
        let mut one = None;
        for ranks in in_turn(index, &[1, 2, 3, 4]) {
            let (dir, flag) = (format!("{name}-{ranks}"), format!("--ranks={ranks}"));
            let words = [&[&*flag, "train.cut_multiple=4"], &refs(&sets)[..]].concat();
            let said = check_done(&folder.output(&dir, &words));
            assert!(!said.contains("over-the-line"), "{name} on {ranks}: {said}");
            let left = left(&folder, &dir);
            assert!(left.iter().any(|line| line.contains("eval-000002")), "{left:?}");
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{name} on {ranks} ranks");
        }
    }
}

#[test]
fn episodes_go_on_with_another_number_of_ranks() {
    let folder = Run::new(RUN);
    let sets = ["environment.env=text:second-try", "train.cut_multiple=4", "checkpoint.every=1"];
    folder.train("whole", &[&sets[..], &["train.steps=4"]].concat());
    for (ranks, steps, more) in [
        ("--ranks=2", "train.steps=1", &[][..]),
        ("--ranks=3", "train.steps=3", &["--resume"]),
        ("--ranks=1", "train.steps=4", &["--resume"]),
    ] {
        folder.train("out", &[&sets[..], &[ranks, steps], more].concat());
    }
    let whole = |dir: &str| -> Vec<String> {
        // A run that ended earlier evaluated and kept samples of its last steps too.
        let names = ["step-000004", "eval-000004", ".safetensors", "{"];
        left(&folder, dir).into_iter().filter(|line| names.iter().any(|name| line.contains(name))).collect()
    };
    assert_eq!(whole("out"), whole("whole"));
}

#[test]
fn an_environment_that_fails_is_named_with_its_rank() {
    if !has_python() {
        return;
    }
    let folder = games();
    let run = |dir: &str, class: &str, more: &[&str]| {
        let sets = ["data.eval=none", "rollout.prompts_per_step=4", "train.steps=1"];
        let game = game(&folder, class);
        folder.output(dir, &[&refs(&game)[..], &sets, more].concat())
    };
    check_done(&run("first", "Sums", &[]));
    let lines = folder.read_lines("first/samples/step-000001.jsonl");
    // The prompt of each group, which is a rank's where there are four.
    let prompts: Vec<&str> =
        lines.iter().step_by(4).map(|line| line["prompt"].as_str().expect("text")).collect();
    for (ranks, most, expect) in [
        (
            &[2][..],
            "3",
            &["error[rank-lost]: rank 2 (host ", "rank 2: error[text-environment-failing]: "][..],
        ),
        (
            &[1, 2],
            "7",
            &["error[text-environment-failing]: ", ": 8 episodes of one rollout", "it was on rank 1"],
        ),
        (&[1, 2], "8", &[]),
    ] {
        let fails: Vec<&str> = ranks.iter().map(|rank| prompts[*rank]).collect();
        let class = format!(
            "{GAMES}\nclass Fails(Sums):\n    def step(self, response):\n        if f'{{self.a}}+{{self.b}}=' in {fails:?}:\n            raise ValueError('no such move')\n        return None, 1.0, True\n"
        );
        folder.write("games.py", &class);
        let output = run("out", "Fails", &["--ranks=4", &format!("environment.restarts_max={most}")]);
        let (code, words) = ended(output);
        assert_eq!(code, Some(i32::from(!expect.is_empty())), "{words}");
        assert!(expect.iter().all(|part| words.contains(part)), "{words}");
        let causes = words.matches("error[text-environment-failing]: ").count();
        assert!(causes == 0 || words.contains("no such move"), "{words}");
        std::fs::remove_dir_all(folder.path("out")).ok();
    }
}

#[test]
fn bench_ranks_compares_what_episodes_left() {
    let folder = Run::new(RUN);
    let file = folder.text_path("x.toml");
    let found = json(&[
        "bench",
        "ranks",
        &file,
        "--ranks",
        "1,2,3",
        "--steps",
        "2",
        "--set",
        "environment.env=text:second-try",
        "--json",
    ]);
    assert_eq!(found["equal"], true, "{found}");
    for row in found["rows"].as_array().expect("rows") {
        let files = row["sha256"].as_object().expect("files");
        for name in [
            "model.safetensors",
            "optimizer.safetensors",
            "step-000002.jsonl",
            "eval-000002.jsonl",
            "metrics",
        ] {
            assert!(files.contains_key(name), "{name}: {row}");
        }
    }
}
