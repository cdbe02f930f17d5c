//! A server with an engine on the processor, as its clients see it: what it answers, to the bit, and what it refuses.

mod client;
mod episodes;
mod hostile;
mod logprobs;
mod prefixes;
mod protocol;
mod rig;
mod seeds;
mod structured;

use serde_json::{Value, json};

fn user(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}
