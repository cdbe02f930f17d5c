//! Converts tokenizers between the tables of GGUF files and `tokenizer.json`.

pub(crate) mod read;
pub(crate) mod rules;
pub(crate) mod tables;
