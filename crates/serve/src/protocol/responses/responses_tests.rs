//! Responses of OpenAI's API: what a template gets of items, and how thinking, text and calls come back.

use super::*;
use crate::outbox::End;
use crate::protocol::parsed::Parsed;
use crate::protocol::refusal::Reply;
use crate::protocol::reply::Form;
use crate::rig::{part, state};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}\
    {% for m in messages %}{{ m.role[0] }}:{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>\
    {% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>\
    {% endfor %}{{ m.name or '' }}|{% endfor %}a:{{ reasoning_effort or '' }}";
const ANSWER: &str =
    "<think>\nTwo\n</think>\n\nI add.\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":2}}</tool_call>";

fn body(more: Value) -> Value {
    let tool =
        json!({ "type": "function", "name": "add", "parameters": { "type": "object" }, "strict": true });
    let mut body =
        json!({ "model": "m", "input": "2+3", "tools": [tool], "store": true, "metadata": { "a": "b" } });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn parsed(body: &Value) -> Reply<Parsed<answer::ItemsForm>> {
    read(body.to_string().as_bytes(), &state(TEMPLATE).0, None)
}

fn prompt(more: Value) -> String {
    let parsed = parsed(&body(more)).unwrap_or_else(|refusal| panic!("{}", refusal.error));
    parsed.prompts[0].iter().map(|&id| char::from(id as u8)).collect()
}

#[test]
fn items_become_the_messages_of_a_template() {
    assert_eq!(prompt(json!({ "tool_choice": "auto" })), "add u:2+3|a:");
    let text = |kind: &str, text: &str| json!([{ "type": kind, "text": text, "annotations": [] }]);
    let input = json!([
        { "role": "developer", "content": "Do." }, { "role": "user", "content": "2" },
        { "type": "message", "role": "user", "content": text("input_text", "+3") },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": text("reasoning_text", "hm") },
        { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": text("output_text", "I add.") },
        { "type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\":2}" },
        { "type": "function_call_output", "call_id": "c1", "output": "5" },
        { "type": "function_call", "call_id": "c2", "name": "add", "arguments": "" },
        { "type": "function_call_output", "call_id": "c2", "output": text("input_text", "0") },
    ]);
    let reasoning = json!({ "effort": "low", "summary": "auto" });
    assert_eq!(
        prompt(
            json!({ "input": input, "instructions": "Be.", "tool_choice": "none", "reasoning": reasoning })
        ),
        "s:Be.|s:Do.|u:2|u:+3|a:<think>hm</think>I add.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2}}\
         </tool_call>|t:5add|a:<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>|t:0add|a:low"
    );
}

/// Returns a response, whose last event has the same items as the whole, and the types of its events.
fn answered(said: &str, end: &End) -> (Value, Vec<String>) {
    let form =
        || parsed(&body(json!({}))).map(|parsed| parsed.form).unwrap_or_else(|r| panic!("{}", r.error));
    let whole = form().whole(vec![part(said, Some(end.clone()))]);
    let mut stream = form();
    let mut events = stream.begin();
    for (at, letter) in said.char_indices() {
        let is_last = at + letter.len_utf8() == said.len();
        events.extend(stream.part(0, part(&letter.to_string(), is_last.then(|| end.clone()))));
    }
    events.extend(stream.end());
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let last = &events.last().expect("events")["response"];
    let strip = |response: &Value| {
        let mut response = response.clone();
        let id = response["id"].as_str().expect("an id").trim_start_matches("resp_").to_string();
        response["created_at"] = Value::Null;
        response.to_string().replace(&id, "ID")
    };
    assert_eq!(strip(last), strip(&whole), "{said}");
    let of = |kind: &str, name: &str| -> String {
        let events = events.iter().filter(|event| event["type"] == kind);
        events.filter_map(|event| event[name].as_str()).collect()
    };
    for (kind, done) in [("response.output_text", "text"), ("response.reasoning_text", "text")] {
        assert_eq!(of(&format!("{kind}.delta"), "delta"), of(&format!("{kind}.done"), done));
    }
    let kinds = events.iter().map(|event| event["type"].as_str().expect("a type").to_string()).collect();
    (whole, kinds)
}

#[test]
fn a_response_has_items_of_thinking_text_and_calls_whole_and_in_events() {
    let (whole, mut kinds) = answered(ANSWER, &End::Eos);
    assert_eq!(
        (&whole["status"], &whole["store"], &whole["metadata"]["a"]),
        (&json!("completed"), &json!(false), &json!("b"))
    );
    let output = whole["output"].as_array().expect("items");
    let kind = |at: usize| output[at]["type"].as_str().expect("a type");
    assert_eq!([kind(0), kind(1), kind(2)], ["reasoning", "message", "function_call"]);
    assert_eq!(output[0]["content"][0]["text"], "Two");
    assert_eq!(output[1]["content"][0]["text"], "I add.");
    assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("add"), &json!("{\"a\":2}")));
    let usage = &whole["usage"];
    assert_eq!(usage["output_tokens"], ANSWER.len());
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], "<think>\nTwo".len());
    kinds.dedup();
    let words = |name: &str| {
        [
            "output_item.added",
            "content_part.added",
            &format!("{name}.delta"),
            &format!("{name}.done"),
            "content_part.done",
            "output_item.done",
        ]
        .map(str::to_string)
        .to_vec()
    };
    let call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ];
    let expect = [
        vec!["created".to_string(), "in_progress".into()],
        words("reasoning_text"),
        words("output_text"),
        call.map(str::to_string).to_vec(),
        vec!["completed".into()],
    ];
    assert_eq!(kinds, expect.concat().iter().map(|kind| format!("response.{kind}")).collect::<Vec<_>>());
    // What is long is not repeated.
    let long = parsed(&body(json!({ "instructions": "a".repeat(5000) }))).map(|parsed| parsed.form);
    let mut long = long.unwrap_or_else(|refusal| panic!("{}", refusal.error));
    let long = long.whole(vec![part("So", Some(End::Eos))]);
    assert_eq!((&long["instructions"], &long["tools"]), (&Value::Null, &json!([])));
    assert_eq!(whole["tools"][0]["name"], "add");
    let (cut, kinds) = answered("So", &End::Length);
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(cut["output"][0]["status"], "incomplete");
    assert_eq!(kinds.last().map(String::as_str), Some("response.incomplete"));
}

#[test]
fn what_this_server_has_not_is_refused_by_its_place() {
    let (bad, field) = ("serve-bad-request", "serve-field-refused");
    for (more, slug, param) in [
        (json!({ "input": null }), bad, "input"),
        (json!({ "input": [] }), bad, "input"),
        (json!({ "input": [{ "role": "boss", "content": "a" }] }), bad, "input[0].role"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), field, "input[0]"),
        (
            json!({ "input": [{ "type": "function_call_output", "call_id": "x", "output": "" }] }),
            bad,
            "input[0].call_id",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_file" }] }] }),
            field,
            "input[0].content[0]",
        ),
        (json!({ "previous_response_id": "resp_1" }), field, "previous_response_id"),
        (json!({ "background": true }), field, "background"),
        (json!({ "truncation": "auto" }), field, "truncation"),
        (json!({ "include": ["message.output_text.logprobs"] }), field, "include"),
        (json!({ "top_logprobs": 2 }), field, "top_logprobs"),
        (json!({ "text": { "format": { "type": "json_schema" } } }), bad, "text.format"),
        (json!({ "tools": [{ "type": "web_search" }] }), field, "tools[0]"),
        (json!({ "tool_choice": { "type": "web_search" } }), field, "tool_choice"),
        (json!({ "tool_choice": { "type": "function", "name": "sub" } }), bad, "tool_choice"),
        (json!({ "max_output_tokens": 0 }), bad, "max_output_tokens"),
        (json!({ "max_tool_calls": 2 }), field, "max_tool_calls"),
    ] {
        let refusal = parsed(&body(more.clone())).err().expect("it is refused");
        assert_eq!((refusal.error.slug, refusal.param.as_deref()), (slug, Some(param)), "{more}");
    }
    let free = json!({ "text": { "format": { "type": "text" } }, "include": ["reasoning.encrypted_content"], "truncation": "disabled" });
    prompt(free);
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } } });
    let format =
        json!({ "format": { "type": "json_schema", "name": "n", "schema": schema, "strict": true } });
    for more in [
        json!({ "tool_choice": "required" }),
        json!({ "tool_choice": { "type": "function", "name": "add" }, "parallel_tool_calls": false }),
        json!({ "text": format, "tools": [] }),
    ] {
        let parsed = parsed(&body(more.clone())).unwrap_or_else(|refusal| panic!("{}", refusal.error));
        assert!(parsed.params.grammar.is_some(), "{more}");
    }
}
