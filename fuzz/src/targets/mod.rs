//! The parsers, with a corpus for each from this repository.

mod chat;
mod checkpoint;
mod data;
mod grade;
mod images;
mod launch;
mod log;
mod model;
mod run_file;
mod serve;
mod tokenizer;

use crate::target::Target;

pub static TARGETS: [Target; 17] = [
    chat::TARGET,
    tokenizer::TARGET,
    model::GGUF,
    model::SAFETENSORS,
    model::JSON,
    data::LINES,
    data::PARQUET,
    images::FILES,
    images::ROWS,
    run_file::TARGET,
    grade::SCHEMA,
    grade::LATEX,
    grade::ALL,
    checkpoint::TARGET,
    log::TARGET,
    launch::TARGET,
    serve::TARGET,
];
