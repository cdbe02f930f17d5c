//! Tokenizers in GGUF files, in both directions: tables become a `tokenizer.json`, and a `tokenizer.json` becomes tables.

pub(crate) mod read;
pub(crate) mod rules;
pub(crate) mod tables;
