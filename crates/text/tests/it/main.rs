//! Tokenizers, templates and data from outside. `parquet` is a target of its own: it counts the allocations of its process.

mod data;
mod smollm2;
mod tokenizer;
