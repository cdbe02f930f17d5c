//! Tokenizers, templates and data from outside. `parquet` is a separate target: it counts the allocations of its process.

mod data;
mod jinja;
mod smollm2;
mod tokenizer;
mod turns;
