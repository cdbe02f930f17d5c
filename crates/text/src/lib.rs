//! Strings to tokens and back: tokenizers, chat templates, prompt data and generated tasks.
//!
//! Legend of the crate: a *token* is an id below the model's vocabulary. Text that a tokenizer would silently lose,
//! ids that the model has no row for, and templates that do not end are refused by name.

mod chat;
mod data;
mod files_to_save;
mod gguf;
mod stop;
mod stream;
mod strftime;
mod tasks;
mod tokenizer;

pub use chat::{ChatTemplate, Message};
pub use data::{Prompt, Row, SftRow, load_jsonl, load_sft_jsonl, tokenize_prompt, tokenize_sft};
pub use files_to_save::files_to_save;
pub use stop::{StopMatch, StopMatcher};
pub use stream::StreamDecoder;
pub use tasks::{TASKS, Task};
pub use tokenizer::Tokenizer;
