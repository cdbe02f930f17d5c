//! Ranks that read different things train nothing together: models, teachers, data, code.

use crate::ranks::{Rank, free_port, left};
use crate::run::{Run, SMALL, has_python};
use std::fs;

const REWARDS: &str =
    "def score(completions, **kwargs):\n    return [len(text) % 3 for text in completions]\n";
const PROMPTS: &str =
    "{\"prompt\": \"12+34=\", \"answer\": \"46\"}\n{\"prompt\": \"50+7=\", \"answer\": \"57\"}\n";

/// A run, the change of what rank 1 reads, which returns what its error says, and keys.
type Case<'c> = (&'c str, &'c dyn Fn() -> &'static str, &'c [&'c str]);

/// Two folders of the same names, each with a run file, a model, prompts and a reward: one for each rank.
fn two_hosts() -> Run {
    let folder = Run::new(SMALL);
    folder.train("a", &["train.steps=1", "train.learning_rate=1e-3"]);
    folder.train("b", &["train.steps=1", "train.learning_rate=2e-3"]);
    for host in ["one", "two"] {
        fs::create_dir(folder.path(host)).expect("a folder");
        fs::copy(folder.path("x.toml"), folder.path(&format!("{host}/x.toml"))).expect("a copy");
        folder.write(&format!("{host}/data.jsonl"), PROMPTS);
        folder.write(&format!("{host}/own.py"), REWARDS);
        for model in ["a", "b"] {
            let to = folder.path(&format!("{host}/{model}"));
            fs::create_dir(&to).expect("a folder");
            let from = folder.path(&format!("{model}/checkpoints/latest"));
            for file in
                fs::read_dir(from).expect("a checkpoint").flatten().filter(|file| file.path().is_file())
            {
                fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
            }
        }
    }
    folder
}

/// Trains with rank 0 in one folder and rank 1 in the other. Returns how each ended.
fn together(folder: &Run, dir: &str, sets: &[&str]) -> [(Option<i32>, String); 2] {
    let port = free_port();
    let ranks = [("one", 0), ("two", 1)].map(|(host, rank)| {
        let args = folder.file(&format!("{host}/x.toml")).train_args(dir, sets);
        Rank::within(&folder.path(host), &args, rank, 2, port, &[("PLIMSOLL_TOKEN", "a secret of 16 bytes")])
    });
    ranks.map(Rank::end)
}

#[test]
fn ranks_that_read_other_files_are_told_before_the_first_step() {
    let folder = two_hosts();
    let local = ["model=a", "data.prompts=data.jsonl"];
    for (code, words) in together(&folder, "same", &local) {
        assert_eq!(code, Some(0), "{words}");
    }
    let before = left(&folder, "same");

    let other_model = || {
        fs::rename(folder.path("two/a"), folder.path("two/c")).expect("a folder");
        fs::rename(folder.path("two/b"), folder.path("two/a")).expect("a folder");
        "the weights of "
    };
    let answers = || {
        folder.write("two/data.jsonl", &PROMPTS.replace("46", "47"));
        "data.jsonl has SHA-256 "
    };
    let code = || {
        folder.write("two/own.py", &REWARDS.replace('3', "4"));
        "own.py has SHA-256 "
    };
    let teacher = ["method=distill", "reward=[]", "distill.teacher=a", "model=builtin:nano"];
    let stage_3 = ["model=a", "run.zero_stage=3"];
    let own = ["reward=[{kind = \"python:own.py:score\"}]"];
    let mut cases: Vec<Case> = vec![("answers", &answers, &["data.prompts=data.jsonl"])];
    if has_python() {
        cases.push(("code", &code, &own));
    }
    cases.push(("model", &other_model, &stage_3));
    cases.push(("teacher", &|| "the weights of ", &teacher));
    for (dir, change, sets) in cases {
        let what = change();
        for (code, words) in together(&folder, dir, sets) {
            assert_eq!(code, Some(2), "{dir}: {words}");
            assert!(words.contains("error[ranks-differ]: ") && words.contains(what), "{dir}: {words}");
            assert!(words.contains(" on rank 0, and ") && words.contains("\nhint: "), "{dir}: {words}");
        }
        assert!(!folder.path(&format!("{dir}/checkpoints/latest")).exists(), "{dir}");
    }
    assert_eq!(left(&folder, "same"), before);
}
