//! Messages of Anthropic's protocol: what a template gets of them, and how thinking, text and calls come back.

use super::*;
use crate::outbox::{End, Part};
use crate::protocol::reply::Form;
use crate::rig::{LIMITS, part, state};
use serde_json::Value;

/// Shows every field that a conversation may have, and thinks.
const TEMPLATE: &str = "{% if tools %}{% for t in tools %}{{ t.function.name }}{{ t.function.parameters | tojson }} \
    {% endfor %}{% endif %}{% for m in messages %}{{ m.role[0] }}:{% if m.reasoning_content %}<think>\
    {{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\
    {{ c.function | tojson }}</tool_call>{% endfor %}{{ m.name or '' }}|{% endfor %}a:\
    {% if enable_thinking %}<think>\n{% endif %}{{ reasoning_effort or '' }}";
const ANSWER: &str =
    "<think>\nTwo\n</think>\n\nI add.\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":2}}</tool_call>";

fn body(more: Value) -> Value {
    let tool = json!({ "name": "add", "description": "Adds.", "input_schema": { "type": "object" } });
    let mut body = json!({
        "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "2+3" }], "tools": [tool],
        "metadata": { "user_id": "me" }, "cache_control": { "type": "ephemeral" },
    });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn parsed(body: &Value) -> Reply<crate::protocol::parsed::Parsed<answer::MessageForm>> {
    read(body.to_string().as_bytes(), &state(TEMPLATE).0, None)
}

fn prompt(more: Value) -> String {
    let parsed = parsed(&body(more)).unwrap_or_else(|refusal| panic!("{}", refusal.error));
    parsed.prompts[0].iter().map(|&id| char::from(id as u8)).collect()
}

fn refused(more: Value) -> (&'static str, String) {
    let refusal = parsed(&body(more)).err().expect("it is refused");
    (refusal.error.slug, refusal.param.unwrap_or_default())
}

#[test]
fn blocks_become_the_messages_of_a_template() {
    let tool = "add{\"type\": \"object\"} ";
    assert_eq!(prompt(json!({})), format!("{tool}u:2+3|a:"));
    let text = |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    let system = json!([text("Be"), text("short.")]);
    let call =
        json!({ "type": "tool_use", "id": "t1", "name": "add", "input": { "a": 12345678901234567890_u64 } });
    let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": [text("5"), text("!")] });
    let failed = json!({ "type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": "no" });
    let thought = json!({ "type": "thinking", "thinking": "hm", "signature": "s" });
    let messages = json!([
        { "role": "user", "content": "2+3" }, { "role": "user", "content": [text("or"), text("4?")] },
        { "role": "assistant", "content": [thought, { "type": "redacted_thinking", "data": "x" }, text("I ")] },
        { "role": "assistant", "content": [text("add."), call] },
        { "role": "user", "content": [result, failed, text("So?")] },
    ]);
    assert_eq!(
        prompt(json!({ "system": system, "messages": messages, "tools": null })),
        "s:Be\nshort.|u:2+3\nor\n4?|a:<think>hm</think>I add.<tool_call>{\"name\": \"add\", \
         \"arguments\": {\"a\": 12345678901234567890}}</tool_call>|t:5\n!add|t:Error: noadd|u:So?|a:"
    );
    let thinks = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 }, "output_config": { "effort": "max" } });
    assert!(prompt(thinks).ends_with("a:<think>\nhigh"));
    assert!(!prompt(json!({ "thinking": { "type": "disabled" } })).contains("<think>"));
    assert_eq!(prompt(json!({ "tool_choice": { "type": "none" } })), "u:2+3|a:");
}

/// Adds up the events of a stream as clients do.
fn summed(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut input = String::new();
    for event in events {
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().expect("blocks");
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                let delta = event["delta"].as_object().expect("a delta");
                let block = &mut message["content"][event["index"].as_u64().expect("an index") as usize];
                for (name, text) in delta.iter().filter(|(name, _)| *name != "type") {
                    let text = text.as_str().expect("a text");
                    if name == "partial_json" {
                        input += text;
                        block["input"] = serde_json::from_str(&input).expect("JSON");
                    } else {
                        let whole = block[name].as_str().expect("a text").to_string() + text;
                        block[name] = json!(whole);
                    }
                }
            }
            "message_delta" => {
                for (name, value) in event["delta"].as_object().expect("a delta") {
                    message[name] = value.clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_start" | "ping" | "content_block_stop" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message["id"] = Value::Null;
    message
}

/// Returns an answer, which is the same whole and letter by letter.
fn answered(more: Value, said: &str, end: &End) -> Value {
    let form =
        || parsed(&body(more.clone())).map(|parsed| parsed.form).unwrap_or_else(|r| panic!("{}", r.error));
    let mut whole = form().whole(vec![part(said, Some(end.clone()))]);
    let mut stream = form();
    let mut events = stream.begin();
    for (at, letter) in said.char_indices() {
        let is_last = at + letter.len_utf8() == said.len();
        let part: Part = part(&letter.to_string(), is_last.then(|| end.clone()));
        events.extend(stream.part(0, part));
    }
    events.extend(stream.end());
    whole["id"] = Value::Null;
    for block in whole["content"].as_array_mut().into_iter().flatten() {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().is_some_and(|id| id.starts_with("toolu_")));
            block["id"] = Value::Null;
        }
    }
    let mut summed = summed(&events);
    for block in summed["content"].as_array_mut().into_iter().flatten() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    assert_eq!(summed, whole, "{said}");
    whole
}

#[test]
fn an_answer_has_blocks_of_thinking_text_and_calls_whole_and_in_events() {
    let answer = answered(json!({}), ANSWER, &End::Eos);
    assert_eq!((&answer["stop_reason"], &answer["role"]), (&json!("tool_use"), &json!("assistant")));
    assert_eq!(answer["usage"]["output_tokens"], ANSWER.len());
    let blocks = &answer["content"];
    assert_eq!(blocks[0]["thinking"], "Two");
    assert_eq!(blocks[0]["signature"].as_str().map(str::len), Some(64));
    assert_eq!(blocks[1], json!({ "type": "text", "text": "I add." }));
    assert_eq!(blocks[2], json!({ "type": "tool_use", "id": null, "name": "add", "input": { "a": 2 } }));
    // The template opens the thinking.
    let on = json!({ "thinking": { "type": "adaptive" } });
    assert_eq!(answered(on, "Two</think>So.", &End::Eos)["content"][1]["text"], "So.");
    let hidden = json!({ "thinking": { "type": "enabled", "budget_tokens": 9, "display": "omitted" } });
    let hidden = answered(hidden, "Two</think>So.", &End::Eos);
    assert_eq!(
        (&hidden["content"][0]["thinking"], &hidden["content"][1]["text"]),
        (&json!(""), &json!("So."))
    );
    let off = answered(json!({ "thinking": { "type": "disabled" } }), ANSWER, &End::Eos);
    assert_eq!(off["content"][0]["text"], "I add.");
    for (end, said, reason, sequence) in [
        (End::Eos, "So", "end_turn", Value::Null),
        (End::Length, "So", "max_tokens", Value::Null),
        (End::String("!".into()), "So", "stop_sequence", json!("!")),
        (End::String("!".into()), ANSWER, "tool_use", Value::Null),
    ] {
        let answer = answered(json!({}), said, &end);
        assert_eq!(
            (&answer["stop_reason"], &answer["stop_sequence"]),
            (&json!(reason), &sequence),
            "{end:?}"
        );
    }
    // A client may ask for more than there is room.
    let plenty =
        json!({ "max_tokens": 64_000, "tools": [], "messages": [{ "role": "user", "content": "a" }] });
    let room = parsed(&body(plenty.clone())).map(|parsed| parsed.params.max_new_tokens);
    assert_eq!(room.unwrap_or_else(|r| panic!("{}", r.error)), Some(LIMITS.new_tokens));
    assert_eq!(answered(plenty, "So", &End::Length)["stop_reason"], "model_context_window_exceeded");
}

#[test]
fn what_this_server_has_not_is_refused_by_its_place() {
    let (bad, field) = ("serve-bad-request", "serve-field-refused");
    let of =
        |role: &str, block: Value| refused(json!({ "messages": [{ "role": role, "content": [block] }] }));
    let image = json!({ "type": "base64", "media_type": "image/png", "data": "AA==" });
    for (role, block, slug, param) in [
        ("user", json!({ "type": "document" }), field, "messages[0].content[0]"),
        ("assistant", json!({ "type": "server_tool_use" }), field, "messages[0].content[0]"),
        ("assistant", json!({ "type": "tool_use", "id": "t" }), bad, "messages[0].content[0].input"),
        (
            "user",
            json!({ "type": "tool_result", "tool_use_id": "t" }),
            bad,
            "messages[0].content[0].tool_use_id",
        ),
        (
            "user",
            json!({ "type": "image", "source": image }),
            "model-takes-no-images",
            "messages[0].content[0].source",
        ),
        ("boss", json!({}), bad, "messages[0].role"),
        ("user", json!("a"), bad, "messages[0].content[0]"),
        ("assistant", json!({ "type": "text", "text": "a" }), field, "messages"),
    ] {
        assert_eq!(of(role, block.clone()), (slug, param.to_string()), "{block}");
    }
    for (more, slug, param) in [
        (json!({ "max_tokens": null }), bad, "max_tokens"),
        (json!({ "max_tokens": 0 }), bad, "max_tokens"),
        (json!({ "messages": [] }), bad, "messages"),
        (json!({ "messages": [{ "role": "user", "content": [] }] }), bad, "messages"),
        (json!({ "messages": [{ "role": "user", "content": "a", "name": "b" }] }), field, "messages[0].name"),
        (json!({ "n": 2 }), field, "n"),
        (json!({ "mcp_servers": [1] }), field, "mcp_servers"),
        (json!({ "tool_choice": { "type": "tool", "name": "sub" } }), bad, "tool_choice"),
        (json!({ "tool_choice": "auto" }), bad, "tool_choice"),
        (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), field, "tools[0]"),
        (json!({ "tools": [{ "name": "add" }] }), bad, "tools[0].input_schema"),
        (json!({ "output_config": { "format": { "type": "json_schema" } } }), bad, "output_config.format"),
        (json!({ "thinking": { "type": "loud" } }), bad, "thinking.type"),
        (
            json!({ "context_management": { "edits": [{ "type": "compact_20260112" }] } }),
            field,
            "context_management",
        ),
        (json!({ "stop_sequences": 5 }), bad, "stop_sequences"),
    ] {
        assert_eq!(refused(more.clone()), (slug, param.to_string()), "{more}");
    }
    let kept = json!({ "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] });
    prompt(json!({ "context_management": kept, "stop_sequences": ["x"], "top_k": 5, "temperature": 0.5 }));
}

/// What is held to a form begins with it, also where the template opens the thinking.
#[test]
fn responses_are_held_to_calls_and_formats() {
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } } });
    let format = json!({ "format": { "type": "json_schema", "schema": schema } });
    let on = json!({ "type": "adaptive" });
    for more in [
        json!({ "tool_choice": { "type": "any", "disable_parallel_tool_use": true } }),
        json!({ "tool_choice": { "type": "tool", "name": "add" }, "thinking": on }),
        json!({ "output_config": format, "tools": [], "thinking": on }),
    ] {
        let mut parsed = parsed(&body(more.clone())).unwrap_or_else(|refusal| panic!("{}", refusal.error));
        assert!(parsed.params.grammar.is_some(), "{more}");
        let answer = parsed.form.whole(vec![part("{\"ok\": true}", Some(End::Eos))]);
        assert_eq!(answer["content"][0]["text"], "{\"ok\": true}", "{more}");
    }
    let free = parsed(&body(json!({}))).unwrap_or_else(|refusal| panic!("{}", refusal.error));
    assert!(free.params.grammar.is_none());
}

#[test]
fn refusals_have_anthropics_types_and_statuses() {
    use axum::response::IntoResponse;
    use plimsoll_base::Error;
    for (slug, status, kind) in [
        ("serve-bad-request", 400, "invalid_request_error"),
        ("serve-token-wrong", 401, "authentication_error"),
        ("serve-unknown-model", 404, "not_found_error"),
        ("serve-body-too-large", 413, "request_too_large"),
        ("serve-queue-full", 429, "rate_limit_error"),
        ("internal", 500, "api_error"),
        ("serve-stopping", 529, "overloaded_error"),
    ] {
        let refusal = Box::<crate::protocol::refusal::Refusal>::from(Error::new(slug, "words"));
        let body = refused::body(&refusal);
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
        assert_eq!(restated(refusal.into_response()).status().as_u16(), status, "{slug}");
    }
}
