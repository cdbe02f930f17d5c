//! Data: JSON lines and Parquet, measured and read as prompts, supervised rows and pairs.

use crate::mutate::Shape;
use crate::target::{Bounds, JSON_PIECES, Subject, Target, files};
use plimsoll_base::Result;
use plimsoll_text::{each_prompt, file_size, load_pairs, load_sft};
use tempfile::TempDir;

pub(super) const LINES: Target = Target {
    name: "jsonl",
    reads: "JSON lines: prompts, supervised rows, pairs",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &JSON_PIECES,
    open: || {
        let corpus = [
            "{\"prompt\": \"1+1=\", \"ground_truth\": \"2\"}\n\n{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
            "{\"prompt\": \"a\", \"completion\": \"b\", \"chosen\": \"b\", \"rejected\": \"c\"}\n",
        ];
        Box::new(Data::new(corpus.map(|lines| lines.as_bytes().to_vec()).into()))
    },
};

pub(super) const PARQUET: Target = Target {
    name: "parquet",
    reads: "Parquet: prompts, supervised rows, pairs",
    shape: Shape::Binary,
    bounds: Bounds::FILE,
    pieces: &["PAR1", "\0\0\0\0", "\u{15}\0\u{15}", "\u{1}", "prompt", "SNAPPY"],
    open: || Box::new(Data::new(files("crates/text/tests/parquet", &[".parquet"]))),
};

struct Data {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Data {
    fn new(corpus: Vec<Vec<u8>>) -> Data {
        Data { folder: tempfile::tempdir().expect("a folder for one file"), corpus }
    }
}

impl Subject for Data {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let path = self.folder.path().join("d.jsonl");
        std::fs::write(&path, input).expect("the file can be written");
        file_size(&path, None)?;
        match input.len() % 4 {
            0 => load_sft(&path, "prompt", input.len().is_multiple_of(8), &[], None).map(drop),
            1 => load_pairs(&path, "prompt", &[], None).map(drop),
            _ => each_prompt(&path, "prompt", |_, _| Ok(())),
        }
    }
}
