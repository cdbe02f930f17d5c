//! Anthropic's messages and OpenAI's responses, from the binary itself: with bodies and headers that their clients
//! sent, and with the clients where Python has them.

use super::client::Server;
use super::{BYTES, GOLDEN};
use crate::common::{python_with, text};
use serde_json::{Value, json};
use std::process::Command;

const TOKEN: &str = "0123456789abcdef";
/// Thinks, and shows what it is given.
const TEMPLATE: &str = "data.chat_template={% for m in messages %}{{ m.role }}: {{ m.content }}</think>\n{% endfor %}\
    {% if tools %}{% for t in tools %}{{ t.function.name }}{% endfor %}{% endif %}assistant:\
    {% if enable_thinking %}<think>{% endif %}";

fn serve(more: &[&str]) -> Server {
    let args = [GOLDEN, "--set", BYTES, "--set", TEMPLATE, "--name", "tiny", "--max-new-tokens", "64"];
    Server::start_with(&[&args, more].concat(), &[("PLIMSOLL_SERVE_TOKEN", TOKEN)])
}

/// Returns the status of an answer to a client with these headers, and its body.
fn ask(server: &Server, path: &str, headers: &str, body: &Value) -> (u16, String) {
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n{headers}", server.at);
    let answer = server.ask(&format!("POST {path}"), &headers, &body.to_string());
    (answer.status, answer.body)
}

/// Returns the named events of a stream.
fn events(body: &str) -> Vec<Value> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("no name: {event}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    body.trim_end().split("\n\n").map(event).collect()
}

fn joined(events: &[Value], of: fn(&Value) -> Option<&str>) -> String {
    events.iter().filter_map(of).collect()
}

#[test]
fn messages_and_responses_are_answered_as_their_clients_ask() {
    let server = serve(&[]);
    let (old, new) = (
        format!("X-Api-Key: {TOKEN}\r\nanthropic-version: 2023-06-01\r\n"),
        format!("Authorization: Bearer {TOKEN}\r\n"),
    );
    let tool = json!({ "name": "add", "description": "Adds.", "input_schema": { "type": "object", "properties": {} } });
    let mut body = json!({
        "max_tokens": 40, "messages": [{ "role": "user", "content": "Hello" }], "model": "tiny", "temperature": 0,
        "system": [{ "type": "text", "text": "Be short.", "cache_control": { "type": "ephemeral" } }],
        "thinking": { "type": "enabled", "budget_tokens": 1024 }, "tools": [tool], "ignore_eos": true,
    });
    let (status, whole) = ask(&server, "/v1/messages?beta=true", &old, &body);
    assert_eq!(status, 200, "{whole}");
    let whole: Value = serde_json::from_str(&whole).expect("JSON");
    // The model never ends what its template has opened.
    assert_eq!(
        (&whole["content"][0]["type"], &whole["stop_reason"]),
        (&json!("thinking"), &json!("max_tokens"))
    );
    body["stream"] = json!(true);
    let (status, stream) = ask(&server, "/v1/messages", &new, &body);
    assert_eq!(status, 200, "{stream}");
    let stream = events(&stream);
    let thought = joined(&stream, |event| event["delta"]["thinking"].as_str());
    assert_eq!(whole["content"][0]["thinking"], json!(thought));
    let [.., delta, stop] = stream.as_slice() else { panic!("{stream:?}") };
    // The second prompt finds the keys of the first.
    let tokens = |of: &Value, name: &str| of["usage"][name].as_u64().expect("a count");
    let prompt = |of: &Value| tokens(of, "input_tokens") + tokens(of, "cache_read_input_tokens");
    assert_eq!(
        (prompt(delta), tokens(delta, "output_tokens")),
        (prompt(&whole), tokens(&whole, "output_tokens"))
    );
    assert_eq!(stop["type"], "message_stop");
    let mut counted = body.clone();
    for name in ["max_tokens", "stream"] {
        counted.as_object_mut().expect("fields").remove(name);
    }
    let (_, counted) = ask(&server, "/v1/messages/count_tokens", &new, &counted);
    assert_eq!(
        serde_json::from_str::<Value>(&counted).expect("JSON")["input_tokens"],
        whole["usage"]["input_tokens"]
    );
    // The same words without thinking, by the other protocol.
    let tools =
        json!([{ "type": "function", "name": "add", "parameters": { "type": "object" }, "strict": false }]);
    let mut asked = json!({
        "input": "Hello", "instructions": "Be short.", "model": "tiny", "max_output_tokens": 40, "temperature": 0,
        "tools": tools, "store": false, "ignore_eos": true,
    });
    let (status, response) = ask(&server, "/v1/responses", &new, &asked);
    assert_eq!(status, 200, "{response}");
    let response: Value = serde_json::from_str(&response).expect("JSON");
    let words = &response["output"][0]["content"][0]["text"];
    body["thinking"] = json!({ "type": "disabled" });
    body["stream"] = json!(false);
    let message: Value = serde_json::from_str(&ask(&server, "/v1/messages", &new, &body).1).expect("JSON");
    assert_eq!(&message["content"][0]["text"], words);
    asked["stream"] = json!(true);
    let stream = events(&ask(&server, "/v1/responses", &new, &asked).1);
    assert_eq!(json!(joined(&stream, |event| event["delta"].as_str())), *words);
    assert_eq!(
        stream.last().expect("events")["response"]["output"][0]["content"],
        response["output"][0]["content"]
    );
}

#[test]
fn refusals_have_the_form_of_the_protocol_that_was_spoken() {
    let server = serve(&[]);
    let key = format!("x-api-key: {TOKEN}\r\nanthropic-version: 2026-10-21\r\n");
    let message = |more: Value| {
        let mut body =
            json!({ "model": "tiny", "max_tokens": 4, "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        body
    };
    for (path, headers, body, status, kind) in [
        ("/v1/messages", "", message(json!({})), 401, "authentication_error"),
        ("/v1/messages", "x-api-key: wrong\r\n", message(json!({})), 401, "authentication_error"),
        ("/v1/messages", &key, message(json!({ "model": "claude" })), 404, "not_found_error"),
        ("/v1/files", &key, json!({}), 404, "not_found_error"),
        ("/v1/messages", &key, message(json!({ "mcp_servers": [1] })), 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", &key, json!({ "messages": 5 }), 400, "invalid_request_error"),
    ] {
        let (got, answer) = ask(&server, path, headers, &body);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(
            (got, &answer["type"], &answer["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{path}"
        );
        assert!(answer["error"]["message"].as_str().is_some_and(|words| words.ends_with(']')), "{answer}");
    }
    let (status, answer) = ask(&server, "/v1/responses", "", &json!({ "input": "a" }));
    assert!(status == 401 && answer.contains("\"code\":\"serve-token-wrong\""), "{answer}");
    let (status, answer) =
        ask(&server, "/v1/responses", &key.replace("anthropic-version", "x-other"), &json!({ "input": 5 }));
    assert!(status == 400 && answer.contains("\"param\":\"input\""), "{answer}");
}

#[test]
fn anthropics_own_client_is_answered() {
    let Some(python) = python_with("anthropic") else { return };
    let server = serve(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/serve/anthropic.py");
    let done = Command::new(python)
        .args([script, &format!("http://{}", server.at), TOKEN])
        .output()
        .expect("it runs");
    assert!(done.status.success(), "{}\n{}", text(&done.stdout), text(&done.stderr));
}
