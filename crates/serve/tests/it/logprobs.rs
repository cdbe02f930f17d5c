//! Likeliest tokens and log-probabilities of prompts, in the forms of each protocol.

use crate::rig::Options;
use crate::user;
use serde_json::{Value, json};

fn list<'v>(value: &'v Value, what: &str) -> &'v [Value] {
    value[what].as_array().unwrap_or_else(|| panic!("{what} of {value}"))
}

#[test]
fn an_echoed_answer_has_the_log_probabilities_that_it_was_drawn_with() {
    let server = Options::default().serve();
    let body =
        json!({ "prompt": "Hello", "max_tokens": 12, "seed": 2, "logprobs": 3, "return_token_ids": true });
    let answer = server.post("/v1/completions", &body).json();
    let drawn = &answer["choices"][0];
    let ids: Vec<Value> =
        b"Hello".iter().map(|id| json!(id)).chain(list(drawn, "token_ids").to_vec()).collect();
    let body = json!({
        "prompt": ids, "max_tokens": 1, "echo": true, "logprobs": 3, "prompt_logprobs": 2, "skip_special_tokens": false,
    });
    let answer = server.post("/v1/completions", &body).json();
    let echoed = &answer["choices"][0];
    let text = echoed["text"].as_str().expect("a text");
    assert!(text.starts_with("Hello"), "{text}");
    let (count, before) = (list(drawn, "token_ids").len(), "Hello".len());
    for what in ["token_logprobs", "top_logprobs", "tokens"] {
        let (one, all) = (list(&drawn["logprobs"], what), list(&echoed["logprobs"], what));
        assert_eq!((all.len(), one.len()), (before + count + 1, count), "{what}");
        assert_eq!(&all[before..before + count], one, "{what}");
    }
    assert_eq!(echoed["logprobs"]["token_logprobs"][0], Value::Null);
    let prompt = list(echoed, "prompt_logprobs");
    assert_eq!((prompt.len(), &prompt[0]), (before + count, &Value::Null));
    for (at, entries) in prompt.iter().enumerate().skip(1) {
        let own = &entries[ids[at].to_string()];
        assert_eq!(own["logprob"], echoed["logprobs"]["token_logprobs"][at], "{at}: {entries}");
        let entries = entries.as_object().expect("entries");
        assert!((2..=3).contains(&entries.len()), "{entries:?}");
        let likeliest = entries.values().find(|entry| entry["rank"] == 1).expect("the likeliest");
        assert!(likeliest["logprob"].as_f64() >= own["logprob"].as_f64());
    }
    // What a token's own number is does not depend on how many others are listed.
    let chat =
        json!({ "messages": user("Hi"), "max_tokens": 4, "seed": 1, "logprobs": true, "prompt_logprobs": 0 });
    let [few, many] = [0, 20].map(|top| {
        let mut chat = chat.clone();
        chat["top_logprobs"] = json!(top);
        server.post("/v1/chat/completions", &chat).json()
    });
    for (few, many) in list(&few["choices"][0]["logprobs"], "content")
        .iter()
        .zip(list(&many["choices"][0]["logprobs"], "content"))
    {
        assert_eq!(few["logprob"], many["logprob"]);
        let top = list(many, "top_logprobs");
        assert_eq!((top.len(), list(few, "top_logprobs").len()), (20, 0));
        assert!(top.is_sorted_by_key(|entry| -entry["logprob"].as_f64().expect("a number")));
        let own = top.iter().find(|entry| entry["token"] == many["token"] && entry["bytes"] == many["bytes"]);
        assert!(own.is_none_or(|own| own["logprob"] == many["logprob"]), "{many}");
    }
    assert_eq!(few["prompt_logprobs"], many["prompt_logprobs"]);
    assert_eq!(list(&few, "prompt_logprobs").len(), "user: Hi\nassistant:".len());
}

#[test]
fn lists_are_bounded_over_all_requests() {
    let server = Options::default().serve();
    let body = json!({ "prompt": "a", "max_tokens": 64, "logprobs": 20, "n": 4, "ignore_eos": true });
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    let body = json!({ "prompt": ["a", "b"], "max_tokens": 64, "logprobs": 20, "n": 4 });
    let refused = server.post("/v1/completions", &body);
    assert_eq!((refused.status, refused.error().0.as_str()), (400, "serve-bad-request"), "{}", refused.body);
}
