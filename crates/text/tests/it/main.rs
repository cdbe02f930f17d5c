//! Tokenizers, templates and data from outside. `parquet` is its own target: it counts its process's allocations.

mod data;
mod harmony;
mod images;
mod jinja;
mod smollm2;
mod spans;
mod tokenizer;
mod turns;
mod whole;
