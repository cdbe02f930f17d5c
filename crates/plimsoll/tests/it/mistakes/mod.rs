//! A hundred mistakes of a newcomer, each with what the program says: the error's name, the place, the numbers or names
//! of both sides, and a hint with the way out.

mod commands;
mod edits;

use crate::common::{Folder, command, text};
use crate::run::has_python;
use commands::COMMANDS;
use edits::EDITS;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "good.jsonl"
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
dir = "out"
device = "cpu"
"#;

/// The files of the folder in which the mistakes are made, with `x.toml`.
const FILES: &[(&str, &str)] = &[
    (
        "good.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n",
    ),
    (
        "third.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"promt\": \"1+2=\", \"ground_truth\": \"3\"}\n",
    ),
    (
        "answer.jsonl",
        "{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n",
    ),
    ("table.csv", "prompt,ground_truth\n1+2=,3\n"),
    ("list.json", "[{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}]\n"),
    ("text.jsonl", "1+2=\n"),
    ("half.jsonl", "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\""),
    ("empty.jsonl", ""),
    ("number.jsonl", "{\"prompt\": 12, \"ground_truth\": \"3\"}\n"),
    (
        "null.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": null}\n",
    ),
    ("share.jsonl", "{\"prompt\": [{\"from\": \"human\", \"value\": \"1+2=\"}], \"ground_truth\": \"3\"}\n"),
    (
        "answered.jsonl",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+2=\"}, {\"role\": \"assistant\", \"content\": \"3\"}], \"ground_truth\": \"3\"}\n",
    ),
    (
        "long.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=1+2=1+2=1+2=1+2=1+2=1+2=1+2=\", \"ground_truth\": \"3\"}\n",
    ),
    ("equal.jsonl", "{\"prompt\": \"1+1=\", \"chosen\": \"2\", \"rejected\": \"2\"}\n"),
    (
        "r.py",
        "def right(completions, **columns):\n    return [0.0] * len(completions)\ndef wants(completions, difficulty):\n    return [0.0] * len(completions)\ndef short(completions, **columns):\n    return [0.0]\ndef raises(completions, **columns):\n    return [1 / 0 for _ in completions]\ndef nan(completions, **columns):\n    return [float(\"nan\")] * len(completions)\n",
    ),
    ("syntax.py", "def right(completions, **columns)\n    return []\n"),
    ("imports.py", "import no_such_package\n"),
    ("empty.sh", "echo hello\n"),
    ("answers.jsonl", "{\"completion\": \"3\", \"ground_truth\": \"3\"}\n"),
    ("env.toml", "env = \"CartPole-v1\"\nnum_envs = 8\nframes_per_batch = 64\n"),
    ("notes/readme.txt", "nothing\n"),
];

/// Returns what is missing in what the program says; nothing if all is there.
fn missing(run: &str, line: &str, slug: &str, parts: &[&str]) -> Option<String> {
    let folder = Folder::new();
    fs::create_dir(folder.path("notes")).expect("a folder");
    FILES.iter().for_each(|(name, content)| drop(folder.write(name, content)));
    folder.write("x.toml", run);
    let args: Vec<&str> = line.split(' ').collect();
    let output = command(&args).current_dir(folder.path(".")).output().expect("the binary runs");
    let stderr = text(&output.stderr);
    let error = format!("error[{slug}]: ");
    let wanted = [error.as_str(), "\nhint: "].into_iter().chain(parts.iter().copied());
    let mut missing: Vec<String> =
        wanted.filter(|part| !stderr.contains(part)).map(|part| format!("{part:?} is missing")).collect();
    let errors = stderr.lines().filter(|line| line.starts_with("error[")).count();
    if errors != 1 || output.status.success() {
        missing.push(format!("{errors} errors, {:?}", output.status.code()));
    }
    (!missing.is_empty()).then(|| format!("{}\n{stderr}", missing.join("; ")))
}

/// Makes mistake `number`. Returns what it was and what is missing, if something is.
fn unclear(number: usize) -> Option<String> {
    if let Some(((from, to), slug, parts)) = EDITS.get(number) {
        assert_eq!(RUN.matches(from).count(), 1, "{from}");
        let missing = missing(&RUN.replace(from, to), "plan x.toml", slug, parts)?;
        return Some(format!("{from:?} became {to:?}: {missing}"));
    }
    let (line, slug, parts) = &COMMANDS[number - EDITS.len()];
    Some(format!("{line}: {}", missing(RUN, line, slug, parts)?))
}

#[test]
fn a_newcomer_is_told_what_is_wrong_where_and_what_to_do() {
    let all = EDITS.len() + COMMANDS.len();
    assert_eq!(all, 100);
    if !has_python() {
        return;
    }
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < all);
    let worker = || std::iter::from_fn(take).filter_map(unclear).collect::<Vec<String>>();
    let found: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    assert!(found.is_empty(), "{} of {all} are unclear\n{}", found.len(), found.join("\n"));
}
