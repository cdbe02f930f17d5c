//! Run files.

use crate::mutate::Shape;
use crate::target::{Bounds, Subject, Target, files};
use plimsoll_base::Result;
use plimsoll_config::load;
use tempfile::TempDir;

pub(super) const TARGET: Target = Target {
    name: "run-file",
    reads: "a run file",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &[
        "[train]",
        "[[reward]]",
        "[rollout]",
        "[data]",
        "[run]",
        "model = ",
        "method = ",
        "\"auto\"",
        "\"grpo\"",
        "= ",
        "\"",
        "\"\"\"",
        "'",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "#",
        "true",
        "1e400",
        "-1",
        "nan",
        "inf",
        "9223372036854775808",
        "0x7f",
        "\"60GiB\"",
        "a.b.c = 1",
        "\\u0000",
        "é",
        "kind = \"math\"",
        "prompts = [",
    ],
    open: || {
        let corpus = files("runs", &[".toml"]);
        Box::new(RunFiles { folder: tempfile::tempdir().expect("a folder for one file"), corpus })
    },
};

struct RunFiles {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Subject for RunFiles {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let path = self.folder.path().join("r.toml");
        std::fs::write(&path, input).expect("the file can be written");
        load(&path, &[], std::iter::empty()).map(drop)
    }
}
