//! Launch files of other frameworks, as `plimsoll import` and `plimsoll doctor --run` read them.

use crate::mutate::Shape;
use crate::target::{Bounds, Subject, Target, files};
use plimsoll_base::Result;
use plimsoll_stacks::{STACKS, Wishes, import, settings};
use tempfile::TempDir;

pub(super) const TARGET: Target = Target {
    name: "import",
    reads: "launch files of every stack: shell, Python, YAML, JSON",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &[
        "python3 -m verl.trainer.main_ppo ",
        "openrlhf.cli.train_ppo_ray ",
        "GRPOConfig(",
        "--",
        "--lr ",
        "=",
        "\\\n",
        "\n",
        "\"",
        "'",
        "${A:-b}",
        "${",
        "$(",
        "`",
        "$((1+",
        "))",
        "A=1\n",
        "export ",
        "#",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "- ",
        "  ",
        "def f():\n    ",
        "import x\n",
        "lambda x: ",
        "f\"{a}\"",
        "r'\\'",
        "1e-6",
        "true",
        "null",
        "&a *a",
        "|\n  ",
        "é",
    ],
    open: || {
        let mut corpus = files("runs/other-stacks", &[".sh", ".py"]);
        corpus.extend(files("crates/stacks/tests/launch-files", &[".sh", ".py", ".yaml", ".ipynb"]));
        corpus.push(b"data:\n  train_batch_size: 4\nactor_rollout_ref:\n  rollout: {n: 8}\n".to_vec());
        corpus.push(b"{\"model_name_or_path\": \"a/b\", \"max_steps\": 4}".to_vec());
        Box::new(Launches { folder: tempfile::tempdir().expect("a folder for one file"), corpus })
    },
};

struct Launches {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Subject for Launches {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let path = self.folder.path().join(name_of(input));
        std::fs::write(&path, input).expect("the file can be written");
        let mut results = Vec::new();
        for stack in STACKS {
            results.push(settings(stack, &path).map(drop));
            for force in [false, true] {
                results.push(import(stack, &path, &Wishes { force, ..Wishes::default() }).map(|run| {
                    let parsed = run.run_file.parse::<toml::Table>();
                    parsed.unwrap_or_else(|err| panic!("{stack:?}: the run file is no TOML: {err}"));
                }));
            }
        }
        // A file is of one stack.
        results.into_iter().reduce(Result::or).expect("there are stacks")
    }
}

/// A name by which the readers know what the file is.
fn name_of(input: &[u8]) -> &'static str {
    let holds = |word: &[u8]| input.windows(word.len()).any(|part| part == word);
    match input {
        [b'{', ..] if holds(b"\"nbformat\"") => "a.ipynb",
        [b'{', ..] => "a.json",
        _ if input.starts_with(b"#!") || holds(b"\\\n") => "a.sh",
        _ if holds(b"import ") || holds(b"(") => "a.py",
        _ => "a.yaml",
    }
}
