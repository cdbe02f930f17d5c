//! Model files: GGUF with its tokenizer and its template, the header of safetensors, and the files of JSON next to it.

use crate::mutate::Shape;
use crate::target::{Bounds, JSON_PIECES, Subject, Target, files};
use plimsoll_base::Result;
use plimsoll_files::{OpenModel, check_against};
use plimsoll_text::{ChatTemplate, Message, Tokenizer};
use std::path::PathBuf;
use tempfile::TempDir;

#[path = "../../../crates/files/tests/it/common.rs"]
mod common;

pub(super) const GGUF: Target = Target {
    name: "gguf",
    reads: "a GGUF file with tokenizer and chat template",
    shape: Shape::Binary,
    bounds: Bounds::FILE,
    pieces: &[
        "GGUF",
        "\u{3}\0\0\0",
        "\0\0\0\0",
        "\u{8}\0\0\0",
        "\u{9}\0\0\0",
        "llama",
        "qwen2",
        "tokenizer.ggml.tokens",
        "a",
        "é",
    ],
    open: || Box::new(Gguf { folder: folder(), corpus: gguf_corpus() }),
};

pub(super) const SAFETENSORS: Target = Target {
    name: "safetensors",
    reads: "the header of a safetensors file",
    shape: Shape::Json,
    bounds: Bounds::FILE,
    pieces: &JSON_PIECES,
    open: || {
        let (header, data) = common::header_and_data(&common::shapes());
        let header = serde_json::Value::Object(header).to_string().into_bytes();
        let metadata = [b"{\"__metadata__\":{\"format\":\"pt\"},", &header[1..]].concat();
        Box::new(Safetensors { folder: folder(), corpus: vec![header, metadata], data })
    },
};

pub(super) const JSON: Target = Target {
    name: "model-json",
    reads: "`config.json`, `tokenizer_config.json` and the index of shards",
    shape: Shape::Json,
    bounds: Bounds::FILE,
    pieces: &JSON_PIECES,
    open: || {
        let mut corpus = files("crates/files/tests/configs", &[".json"]);
        corpus.push(common::config().to_string().into_bytes());
        corpus.push(b"{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"../b\"},\"metadata\":{}}".to_vec());
        corpus.push(b"{\"chat_template\":[{\"name\":\"default\",\"template\":\"{{ 1 }}\"}],\"eos_token\":{\"content\":\"a\"}}".to_vec());
        Box::new(Json { folder: folder(), corpus })
    },
};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for one file")
}

fn gguf_corpus() -> Vec<Vec<u8>> {
    let (tensors, data) = common::gguf_tensors();
    let mut meta = common::gguf_meta("qwen2");
    meta.push((
        "tokenizer.chat_template",
        common::Meta::Str("{% for m in messages %}{{ m.content }}{% endfor %}"),
    ));
    vec![common::valid_gguf(), common::gguf(&meta, &tensors, &data)]
}

struct Gguf {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Subject for Gguf {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let path = written(&self.folder, "m.gguf", input);
        let model = OpenModel::open(&path.to_string_lossy(), None, false)?;
        check_against(&model)?;
        if let Some(template) = ChatTemplate::from_files(&model.tokenizer)? {
            template.render(&[Message::new("user", "a")], true)?;
        }
        Tokenizer::from_files(&model.tokenizer, model.spec.vocab)?.encode("ab c").map(drop)
    }
}

struct Safetensors {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Subject for Safetensors {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    /// The input is the header; its length and the data are right unless the input begins otherwise.
    fn read(&mut self, input: &[u8]) -> Result<()> {
        let whole = match input.first() {
            Some(b'{') => [&(input.len() as u64).to_le_bytes(), input, &self.data].concat(),
            _ => input.to_vec(),
        };
        common::directory(self.folder.path(), &whole);
        let model = OpenModel::open(&self.folder.path().to_string_lossy(), None, false)?;
        check_against(&model)
    }
}

struct Json {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Subject for Json {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        common::directory(self.folder.path(), &common::valid_safetensors());
        let names = [
            "config.json",
            "tokenizer_config.json",
            "generation_config.json",
            "model.safetensors.index.json",
        ];
        let name = names[input.len() % names.len()];
        let path = written(&self.folder, name, input);
        if name.ends_with("index.json") {
            let _ = std::fs::remove_file(self.folder.path().join("model.safetensors"));
        }
        let opened = OpenModel::open(&self.folder.path().to_string_lossy(), None, false);
        let _ = std::fs::remove_file(path);
        opened.and_then(|model| check_against(&model))
    }
}

fn written(folder: &TempDir, name: &str, input: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, input).expect("the file can be written");
    path
}
