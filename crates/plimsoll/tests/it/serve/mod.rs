//! `plimsoll serve` as a process. What it answers over HTTP is tested in `crates/serve/tests`.

mod adapters;
mod anthropic;
pub mod client;
mod exact;
mod hostile;
mod images;
mod openai;

use serde_json::{Value, json};

/// A template that any model with the characters of its task takes.
const LAST_MESSAGE: &str = "data.chat_template={{ messages[-1].content }}";
/// A tiny model with 260 tokens, of which the bytes are 256.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/qwen2");
const BYTES: &str = "model_options.tokenizer=bytes";

fn user(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}
