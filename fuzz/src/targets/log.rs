//! Logs, as `plimsoll doctor --log` reads them.

use crate::mutate::Shape;
use crate::target::{Bounds, Subject, Target};
use plimsoll_base::Result;
use plimsoll_doctor::log::{Input, Limits, diagnose, self_test};
use std::io::Cursor;

pub(super) const TARGET: Target = Target {
    name: "log",
    reads: "a log of any framework",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &[
        "\n",
        "\r\n",
        "\r",
        "\u{1b}[31m",
        "Traceback (most recent call last):\n",
        "  File \"a.py\", line 1, in f\n",
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate ",
        "2.00 GiB",
        "(APIServer pid=12) ",
        "[rank3]: ",
        "2026-01-01 00:00:00,123 ",
        "Killed",
        "SIGKILL",
        "NCCL",
        "ray::",
        "ValueError: ",
        "exit code 137",
        "99999999999999999999 GiB",
        "\0",
        "é",
        "\u{feff}",
        "\u{1f}\u{8b}",
    ],
    open: || {
        let corpus = self_test::examples().map(|example| example.text.as_bytes().to_vec()).collect();
        Box::new(Logs { corpus })
    },
};

struct Logs {
    corpus: Vec<Vec<u8>>,
}

impl Subject for Logs {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let input = Input::Stream("a.log".into(), Box::new(Cursor::new(input.to_vec())));
        diagnose(vec![input], Limits::default()).map(drop)
    }
}
