//! `plimsoll serve` over HTTP: what it answers, that the bits are those of the engine alone, and what it refuses.

mod client;
mod exact;
mod hostile;
mod openai;
mod protocol;
mod tools;

use serde_json::{Value, json};

/// A template that any model with the characters of its task takes.
const LAST_MESSAGE: &str = "data.chat_template={{ messages[-1].content }}";
/// A tiny model with 260 tokens, of which the bytes are 256.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/qwen2");
const BYTES: &str = "model_options.tokenizer=bytes";
const ROLES: &str =
    "data.chat_template={% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

fn user(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}
