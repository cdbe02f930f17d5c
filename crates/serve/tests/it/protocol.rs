//! The forms of answers, whole and in parts, and what a request may not ask for.

use crate::rig::{Options, Running};
use crate::user;
use serde_json::{Value, json};

fn golden() -> Running {
    Options::default().serve()
}

/// Joins the content of a stream's choice.
fn joined(events: &[Value], index: u64, of: fn(&Value) -> Option<&str>) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().expect("choices"));
    choices.filter(|choice| choice["index"] == index).filter_map(of).collect()
}

#[test]
fn a_chat_is_answered_whole_and_in_parts_alike() {
    let server = golden();
    let mut body = json!({
        "model": "tiny", "messages": user("Hello"), "max_completion_tokens": 40, "seed": 3, "n": 2, "logprobs": true,
        "top_logprobs": 1, "return_token_ids": true, "user": "me", "store": false, "temperature": 1,
    });
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let whole = answer.json();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("tiny")));
    let prompt = "user: Hello\nassistant:";
    let ids: Vec<u32> = prompt.bytes().map(u32::from).collect();
    assert_eq!(whole["prompt_token_ids"], json!(ids));
    let choices = whole["choices"].as_array().expect("choices");
    let drawn: usize = choices.iter().map(|c| c["token_ids"].as_array().expect("ids").len()).sum();
    assert_eq!(
        whole["usage"],
        json!({
            "prompt_tokens": prompt.len(), "completion_tokens": drawn, "total_tokens": prompt.len() + drawn,
            "prompt_tokens_details": { "cached_tokens": 0 },
        })
    );
    for choice in choices {
        let (ids, content) =
            (&choice["token_ids"], choice["logprobs"]["content"].as_array().expect("a list"));
        assert_eq!(ids.as_array().expect("ids").len(), content.len());
        for (id, entry) in ids.as_array().expect("ids").iter().zip(content) {
            // One token is one byte, but the three special ones.
            let is_byte = id.as_u64().is_some_and(|id| id < 256);
            assert!(!is_byte || entry["bytes"] == json!([id]), "{id} {entry}");
            let number = |of: &Value| of["logprob"].as_f64().expect("a number");
            assert!(number(&entry["top_logprobs"][0]) >= number(entry), "{entry}");
        }
    }
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let events = server.post("/v1/chat/completions", &body).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(events[0]["prompt_token_ids"], json!(ids));
    let last = events.last().expect("events");
    let mut usage = whole["usage"].clone();
    usage["prompt_tokens_details"]["cached_tokens"] = json!(16);
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &usage));
    for (index, choice) in choices.iter().enumerate() {
        let content = joined(&events, index as u64, |c| c["delta"]["content"].as_str());
        assert_eq!(choice["message"]["content"], json!(content));
        let of_choice = || {
            let all = events.iter().flat_map(|event| event["choices"].as_array().expect("choices"));
            all.filter(move |c| c["index"] == index)
        };
        let list = |of: fn(&Value) -> &Value| -> Vec<Value> {
            of_choice().filter_map(|c| of(c).as_array().cloned()).flatten().collect()
        };
        assert_eq!(choice["token_ids"], json!(list(|c| &c["token_ids"])));
        assert_eq!(choice["logprobs"]["content"], json!(list(|c| &c["logprobs"]["content"])));
        let ends: Vec<&Value> = of_choice().map(|c| &c["finish_reason"]).filter(|r| !r.is_null()).collect();
        assert_eq!(ends, [&choice["finish_reason"]]);
    }
}

/// The choices of a completion.
fn choices(server: &Running, body: &Value) -> Value {
    let answer = server.post("/v1/completions", body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.json()["choices"].clone()
}

/// Asks for the likeliest tokens after a prompt, and for no end before `tokens` of them.
fn greedy(prompt: Value, tokens: u32) -> Value {
    json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "return_token_ids": true })
}

#[test]
fn a_prompt_is_a_text_or_ids_or_several_of_either() {
    let server = golden();
    let ask = |prompt: Value, tokens: u32| choices(&server, &greedy(prompt, tokens));
    let both = ask(json!(["ab", "cd"]), 24);
    assert_eq!(both[0], ask(json!("ab"), 24)[0]);
    assert_eq!(both[1]["token_ids"], ask(json!([99, 100]), 24)[0]["token_ids"]);
    assert_eq!(both[1]["text"], ask(json!([[97, 98], [99, 100]]), 24)[1]["text"]);
    assert_eq!(both[1]["prompt_token_ids"], json!([99, 100]));
    assert_eq!((&both[0]["finish_reason"], &both[0]["stop_reason"]), (&json!("length"), &Value::Null));
    // Sixteen tokens unless more are asked for.
    let usual = json!({ "prompt": "ab", "temperature": 0, "ignore_eos": true, "return_token_ids": true });
    assert_eq!(choices(&server, &usual)[0]["token_ids"].as_array().map(Vec::len), Some(16));
    // Two responses to each of two prompts: those of the first prompt come first.
    let mut body = greedy(json!(["ab", "cd"]), 5);
    body["n"] = json!(2);
    let four = choices(&server, &body);
    let of = |choice: &Value| choice["prompt_token_ids"].clone();
    assert_eq!(
        four.as_array().expect("choices").iter().map(of).collect::<Value>(),
        json!([[97, 98], [97, 98], [99, 100], [99, 100]])
    );
    assert_eq!(
        (&four[1]["token_ids"], &four[3]["token_ids"]),
        (&four[0]["token_ids"], &four[2]["token_ids"])
    );
}

#[test]
fn a_response_ends_at_the_tokens_and_strings_that_the_request_names() {
    let server = golden();
    let whole = &choices(&server, &greedy(json!("ab"), 24))[0];
    // A token that ends it is part of the ids and not of the text.
    let ids = whole["token_ids"].as_array().expect("ids");
    let stop = ids[5].as_u64().expect("an id");
    let first = ids.iter().position(|id| id == stop).expect("it is there");
    let mut body = greedy(json!("ab"), 24);
    body["stop_token_ids"] = json!([stop]);
    let ended = &choices(&server, &body)[0];
    assert_eq!((&ended["finish_reason"], &ended["stop_reason"]), (&json!("stop"), &json!(stop)));
    assert_eq!(ended["token_ids"], json!(ids[..=first]));
    // A string that ends it, whole or as the end of a text.
    let whole = whole["text"].as_str().expect("text");
    let stop: String = whole.chars().skip(4).take(2).collect();
    let at = whole.find(&stop).expect("it is there");
    for (keep, end) in [(false, at), (true, at + stop.len())] {
        let mut body = json!({
            "prompt": "ab", "max_tokens": 24, "temperature": 0, "ignore_eos": true, "stop": [stop, "never this"],
            "include_stop_str_in_output": keep,
        });
        let ended = &choices(&server, &body)[0];
        assert_eq!((&ended["text"], &ended["stop_reason"]), (&json!(whole[..end]), &json!(stop)));
        body["stream"] = json!(true);
        let events = server.post("/v1/completions", &body).events();
        assert_eq!(joined(&events, 0, |c| c["text"].as_str()), whole[..end]);
    }
    // Strings of the server's settings hold for requests that name none.
    let server = Options { stop: vec![stop.clone()], ..Options::default() }.serve();
    assert_eq!(choices(&server, &greedy(json!("ab"), 24))[0]["text"], json!(whole[..at]));
    let mut body = greedy(json!("ab"), 24);
    body["stop"] = json!("never this");
    assert_eq!(choices(&server, &body)[0]["text"], json!(whole));
}

#[test]
fn token_ids_in_are_token_ids_out() {
    let server = golden();
    let mut body = json!({
        "request_id": "mine", "token_ids": [104, 105], "model": "tiny",
        "sampling_params": { "max_tokens": 6, "temperature": 0.0, "logprobs": 1, "ignore_eos": true, "detokenize": true },
    });
    let whole = server.post("/inference/v1/generate", &body).json();
    let choice = &whole["choices"][0];
    assert_eq!((&whole["request_id"], &choice["finish_reason"]), (&json!("mine"), &json!("length")));
    let (ids, content) = (&choice["token_ids"], choice["logprobs"]["content"].as_array().expect("a list"));
    assert_eq!((ids.as_array().map(Vec::len), content.len()), (Some(6), 6));
    assert_eq!(content[0]["token"], json!(format!("token_id:{}", ids[0])));
    body["stream"] = json!(true);
    let events = server.post("/inference/v1/generate", &body).events();
    let parts = events.iter().flat_map(|e| e["choices"][0]["token_ids"].as_array().expect("ids").clone());
    assert_eq!(&parts.collect::<Value>(), ids);
    let same = server.post("/v1/completions", &json!({ "prompt": "hi", "max_tokens": 6, "temperature": 0, "ignore_eos": true, "return_token_ids": true }));
    assert_eq!(&same.json()["choices"][0]["token_ids"], ids);
}

/// A request that is refused: path, body, status, slug and field.
type Case = (&'static str, Value, u16, &'static str, Value);

const BAD: &str = "serve-bad-request";
const REFUSED: &str = "serve-field-refused";

/// A chat with one more field.
fn chat(name: &str, value: Value) -> Value {
    let mut body = json!({ "messages": user("a") });
    body[name] = value;
    body
}

fn wrong_chats() -> Vec<Case> {
    let image =
        json!([{ "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": "http://x" } }]);
    let messages = |messages: Value| json!({ "messages": messages });
    let one = |path, body, slug, param: &str| (path, body, 400, slug, json!(param));
    let of = |body, slug, param: &str| one("chat/completions", body, slug, param);
    vec![
        of(json!({}), BAD, "messages"),
        of(messages(json!([])), BAD, "messages"),
        of(messages(json!([{ "role": "boss", "content": "a" }])), BAD, "messages[0].role"),
        of(messages(json!([{ "role": "user" }])), BAD, "messages[0].content"),
        of(
            messages(json!([{ "role": "user", "content": image }])),
            "model-takes-no-images",
            "messages[0].content[1]",
        ),
        of(messages(json!([{ "role": "user", "content": "a", "mood": 1 }])), REFUSED, "messages[0].mood"),
        of(chat("temperature", json!("hot")), BAD, "temperature"),
        of(chat("temperature", json!(-0.5)), BAD, "temperature"),
        of(chat("temperature", json!(1e-30)), BAD, "temperature"),
        of(chat("top_p", json!(0)), BAD, "top_p"),
        of(chat("n", json!(0)), BAD, "n"),
        of(chat("n", json!(100)), BAD, "n"),
        of(chat("seed", json!(1.5)), BAD, "seed"),
        of(chat("stop", json!(["a", ""])), BAD, "stop"),
        of(chat("stop", json!(7)), BAD, "stop"),
        of(chat("max_tokens", json!(0)), BAD, "max_tokens"),
        of(chat("top_logprobs", json!(1)), BAD, "top_logprobs"),
        of(chat("stream_options", json!({ "include_usage": true })), BAD, "stream_options"),
        of(chat("presence_penalty", json!(0.5)), REFUSED, "presence_penalty"),
        of(chat("max_token", json!(5)), REFUSED, "max_token"),
        of(chat("tool_choice", json!("required")), "serve-bad-request", "tool_choice"),
        of(chat("tools", json!([{ "type": "function", "function": { "name": "f" } }])), REFUSED, "tools"),
        ("chat/completions", chat("model", json!("gpt-4")), 404, "serve-unknown-model", json!("model")),
        ("chat/completions", chat("max_tokens", json!(65)), 400, "serve-too-long", Value::Null),
        ("chat/completions", messages(user(&"x".repeat(300))), 400, "serve-too-long", Value::Null),
    ]
}

fn wrong_completions() -> Vec<Case> {
    let of = |body, slug, param: &str| ("completions", body, 400, slug, json!(param));
    let both = json!({ "prompt": "a", "max_tokens": 1, "max_completion_tokens": 2 });
    vec![
        of(json!({}), BAD, "prompt"),
        of(json!({ "prompt": "" }), BAD, "prompt"),
        of(json!({ "prompt": { "a": 1 } }), BAD, "prompt"),
        of(json!({ "prompt": [1, "a"] }), BAD, "prompt"),
        of(json!({ "prompt": [5, 260] }), BAD, "prompt"),
        of(both, BAD, "max_completion_tokens"),
        of(json!({ "prompt": "a", "echo": true, "logprobs": 0, "n": 2 }), REFUSED, "echo"),
        of(json!({ "prompt": "a", "best_of": 4 }), REFUSED, "best_of"),
        of(json!({ "prompt": "a", "logprobs": 21 }), BAD, "logprobs"),
        of(json!({ "prompt": "a", "prompt_logprobs": 1, "stream": true }), REFUSED, "prompt_logprobs"),
        of(json!({ "prompt": "a", "messages": [] }), REFUSED, "messages"),
        ("nothing", json!({}), 404, "serve-unknown-path", Value::Null),
    ]
}

#[test]
fn what_is_not_done_is_refused_by_the_name_of_its_field() {
    let server = golden();
    for (path, body, status, slug, param) in wrong_chats().into_iter().chain(wrong_completions()) {
        let answer = server.post(&format!("/v1/{path}"), &body);
        let found = (answer.status, answer.error());
        assert_eq!(found, (status, (slug.to_string(), param)), "{path} {body}: {}", answer.body);
    }
    // An address of training runs is not offered here.
    let said = "this server has no POST /v1/nothing; hint: it answers POST /v1/chat/completions, ";
    let answer = server.post("/v1/nothing", &json!({}));
    assert!(answer.body.contains(said) && !answer.body.contains("episodes"), "{}", answer.body);
    let logprobs = json!({ "messages": user("a"), "logprobs": true, "top_logprobs": 21 });
    assert_eq!(server.post("/v1/chat/completions", &logprobs).error().1, "top_logprobs");
    for (body, param) in [
        (json!({ "token_ids": [300] }), "token_ids"),
        (json!({ "token_ids": [1], "sampling_params": { "top_k": -2 } }), "sampling_params.top_k"),
        (json!({ "token_ids": [1], "sampling_params": { "min_tokens": 3 } }), "sampling_params.min_tokens"),
        (json!({ "token_ids": [1], "sampling_params": 3 }), "sampling_params"),
        (json!({ "token_ids": [1], "priority": 3 }), "priority"),
    ] {
        assert_eq!(server.post("/inference/v1/generate", &body).error().1, param, "{body}");
    }
    // The numbers of the plan are in the words.
    let long = json!({ "prompt": "x".repeat(300) });
    let words = server.post("/v1/completions", &long).json()["error"]["message"].clone();
    assert!(words.as_str().is_some_and(|words| words.contains("300 tokens, and 256 ")), "{words}");
    for body in ["", "nonsense", "[]", "{\"prompt\": \"a\"", "\u{0}"] {
        let answer = server.post_text("/v1/completions", body);
        assert_eq!((answer.status, answer.error().0.as_str()), (400, BAD), "{body:?}");
    }
    // After all of that it answers as before.
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "a" })).status, 200);
}

#[test]
fn a_service_finds_the_model_its_health_and_its_counts() {
    let server = golden();
    assert_eq!(server.get("/health").status, 200);
    let models = server.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("tiny"), &json!("adder")));
    assert_eq!(models["data"][0]["max_model_len"], 256);
    assert_eq!(server.get("/v1/models/adder").json()["object"], "model");
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/v1/chat/completions").status, 404);
    let body = json!({ "model": "adder", "prompt": "123456", "max_tokens": 3, "ignore_eos": true });
    // The answer carries the first name, whichever of them a request used.
    assert_eq!(server.post("/v1/completions", &body).json()["model"], "tiny");
    server.wait_for("running", |n| n == 0.0);
    let refused = server.metric("refused_total");
    assert_eq!(server.post("/v1/completions", &json!({})).status, 400);
    assert_eq!(server.metric("refused_total"), refused + 1.0);
    let metrics = server.get("/metrics").body;
    for line in [
        "# TYPE plimsoll_serve_requests_total counter\nplimsoll_serve_requests_total 1\n",
        "plimsoll_serve_responses_total 1\n",
        "plimsoll_serve_prompt_tokens_total 6\n",
        "plimsoll_serve_generated_tokens_total 3\n",
        "plimsoll_serve_running 0\n",
        "plimsoll_serve_first_token_seconds_count 1\n",
        "plimsoll_serve_response_seconds_bucket{le=\"+Inf\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn a_chat_has_the_system_prompt_of_the_server_unless_it_brings_its_own() {
    let server = Options { system_prompt: Some("Be brief."), ..Options::default() }.serve();
    let prompt = |messages: Value| {
        let body = json!({ "messages": messages, "max_tokens": 1, "return_token_ids": true });
        let answer = server.post("/v1/chat/completions", &body).json();
        let ids = answer["prompt_token_ids"].as_array().unwrap_or_else(|| panic!("{answer}"));
        ids.iter().map(|id| char::from(id.as_u64().expect("an id") as u8)).collect::<String>()
    };
    assert_eq!(prompt(user("Hi")), "system: Be brief.\nuser: Hi\nassistant:");
    let own = json!([{ "role": "developer", "content": "Be long." }, { "role": "user", "content": "Hi" }]);
    assert_eq!(prompt(own), "system: Be long.\nuser: Hi\nassistant:");
    let raw = Options { template: None, ..Options::default() }.serve();
    let none = raw.post("/v1/chat/completions", &json!({ "messages": user("1+1=") }));
    assert_eq!((none.status, none.error().0.as_str()), (400, "chat-template-missing"));
}

#[test]
fn the_longest_prompt_with_the_longest_response_is_just_taken() {
    let server = golden();
    let status = |prompt: usize, new: usize| {
        server.post("/v1/completions", &json!({ "prompt": "1".repeat(prompt), "max_tokens": new })).status
    };
    assert_eq!((status(192, 64), status(193, 64), status(191, 65)), (200, 400, 400));
    // They share the context: a longer prompt leaves room for a shorter response.
    assert_eq!((status(255, 1), status(256, 1)), (200, 400));
    // A chat that names no length gets what has room.
    let body = json!({ "messages": user(&"1".repeat(200)), "ignore_eos": true });
    let usage = server.post("/v1/chat/completions", &body).json()["usage"].clone();
    assert_eq!(usage["total_tokens"], 256);
}
