//! Prompts that begin alike share keys: what an answer says of it, and that nothing else in it changes.

use crate::rig::Options;
use serde_json::{Value, json};

/// The keys that were there, and everything of the choices.
fn answered(answer: &Value) -> (u64, Value) {
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    (cached.as_u64().unwrap_or_else(|| panic!("{answer}")), answer["choices"].clone())
}

#[test]
fn keys_are_shared_by_requests_of_one_salt_and_move_no_bit() {
    let server = Options::default().serve();
    let text = "Once upon a time there was a model that read every prompt from its beginning, again.";
    let ask = |text: &str, salt: Option<&str>| {
        let body = json!({
            "prompt": text, "max_tokens": 20, "seed": 4, "logprobs": 0, "return_token_ids": true, "n": 2, "cache_salt": salt,
        });
        answered(&server.post("/v1/completions", &body).json())
    };
    let first = ask(text, None);
    assert_eq!(first.0, 0);
    let whole = (text.len() as u64 - 1) / 16 * 16;
    for (salt, cached) in [(None, whole), (Some("a"), 0), (Some("a"), whole), (Some("b"), 0), (None, whole)] {
        assert_eq!(ask(text, salt), (cached, first.1.clone()), "{salt:?}");
    }
    assert_eq!(ask(&text[..33], None).0, 32);
    // An answer is the beginning of what follows it.
    let ids = [json!(text.as_bytes()), first.1[0]["token_ids"].clone(), json!([10, 11])];
    let ids: Vec<Value> = ids.iter().flat_map(|ids| ids.as_array().expect("ids").clone()).collect();
    let drawn = ids.len() - text.len() - 2;
    let body = json!({ "token_ids": ids, "sampling_params": { "max_tokens": 3, "seed": 4 } });
    let answer = server.post("/inference/v1/generate", &body).json();
    // The last token of an answer has no key.
    let full = (text.len() + drawn - 1) / 16 * 16;
    assert_eq!(answered(&answer).0, full as u64, "{answer}");
    let refused = server.post("/v1/completions", &json!({ "prompt": "x", "cache_salt": "" }));
    assert_eq!(refused.error().0, "serve-bad-request", "{}", refused.body);
    let metrics = server.get("/metrics").body;
    let counted = 3 * whole + 32 + full as u64;
    assert!(metrics.contains(&format!("plimsoll_serve_cached_tokens_total {counted}\n")), "{metrics}");
}
