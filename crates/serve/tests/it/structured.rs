//! Responses that are held to a form, forced calls and biases, as clients ask for them.

use crate::rig::Options;
use crate::user;
use serde_json::{Value, json};

const TOOLS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}\
    <tool_call>{{ tools | length }}</tool_call>{% endif %}assistant:";
const LLAMA: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}\
    {\"name\": function, \"parameters\": {{ tools | length }}}{% endif %}:";

fn schema() -> Value {
    json!({ "type": "object", "properties": { "ok": { "type": "boolean" }, "n": { "type": "integer", "minimum": 0,
        "maximum": 99 } }, "required": ["ok", "n"], "additionalProperties": false })
}

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn responses_are_of_the_form_that_the_request_names() {
    let server = Options::default().serve();
    let chat = |more: Value, seed: u64| {
        let mut body = json!({ "messages": user("Hi"), "max_tokens": 60, "seed": seed, "logprobs": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &body).json()
    };
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "strict": true, "schema": schema() } });
    let mut whole = 0;
    for seed in 0..6 {
        for more in [
            json!({ "response_format": format }),
            json!({ "structured_outputs": { "json": schema() } }),
            json!({ "guided_json": schema().to_string() }),
        ] {
            let answer = chat(more, seed);
            match answer["choices"][0]["finish_reason"].as_str() {
                Some("stop") => {
                    whole += 1;
                    let value: Value = serde_json::from_str(text_of(&answer)).expect("JSON");
                    assert!(
                        value["ok"].is_boolean() && value["n"].as_u64().is_some_and(|n| n < 100),
                        "{value}"
                    );
                }
                other => assert_eq!(other, Some("length"), "{answer}"),
            }
        }
        let answer =
            chat(json!({ "structured_outputs": { "choice": ["left", "right"] }, "temperature": 0.7 }), seed);
        assert!(["left", "right"].contains(&text_of(&answer)), "{answer}");
        // The recorded log-probability is of what the mask leaves: what is the only one has 0.
        let logprobs = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list");
        assert_eq!(logprobs[1]["logprob"].as_f64(), Some(0.0), "{logprobs:?}");
        let answer = chat(json!({ "guided_regex": "[0-9]{3}-[xyz]", "top_p": 0.9 }), seed);
        assert!(text_of(&answer).len() == 5 && text_of(&answer).as_bytes()[3] == b'-', "{answer}");
        let answer = chat(json!({ "guided_grammar": "start: \"a\" | \"b\" start\n" }), seed);
        assert!(text_of(&answer).trim_start_matches('b') == "a" || text_of(&answer).len() > 30, "{answer}");
    }
    assert!(whole > 6, "{whole} of 18 were whole");
    let completion = json!({ "prompt": "x", "max_tokens": 8, "structured_outputs": { "choice": ["one"] } });
    assert_eq!(server.post("/v1/completions", &completion).json()["choices"][0]["text"], "one");
}

#[test]
fn a_forced_call_is_one_in_the_templates_form() {
    let tool = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "parameters": { "$defs": { "d": { "enum": [1, 2] } },
            "type": "object", "properties": { "a": { "$ref": "#/$defs/d" } }, "required": ["a"],
            "additionalProperties": false } } })
    };
    for template in [TOOLS, LLAMA] {
        let server = Options { template: Some(template), new_tokens: 100, ..Options::default() }.serve();
        let body = |choice: Value, seed: u64| {
            json!({ "messages": user("go"), "tools": [tool("add"), tool("del")], "tool_choice": choice,
                "parallel_tool_calls": false, "seed": seed, "max_tokens": 100 })
        };
        for seed in 0..4 {
            for (choice, names) in [
                (json!("required"), &["add", "del"][..]),
                (json!({ "type": "function", "function": { "name": "del" } }), &["del"]),
            ] {
                let answer = server.post("/v1/chat/completions", &body(choice, seed)).json();
                let choice = &answer["choices"][0];
                if choice["finish_reason"] == "length" {
                    continue;
                }
                assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
                let calls = choice["message"]["tool_calls"].as_array().expect("calls");
                assert_eq!(calls.len(), 1, "{answer}");
                let function = &calls[0]["function"];
                assert!(names.contains(&function["name"].as_str().unwrap()), "{function}");
                let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
                assert!(arguments == json!({ "a": 1 }) || arguments == json!({ "a": 2 }), "{arguments}");
            }
        }
        let refused = server.post(
            "/v1/chat/completions",
            &body(json!({ "type": "function", "function": { "name": "x" } }), 0),
        );
        assert_eq!(refused.json()["error"]["code"], "serve-bad-request");
    }
}

#[test]
fn a_bias_moves_a_token_and_a_bad_form_is_refused_by_name() {
    let server = Options::default().serve();
    let body = |more: Value| {
        let mut body = json!({ "prompt": "x", "max_tokens": 6, "seed": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = server.post("/v1/completions", &body(json!({ "logit_bias": { "65": 100 } }))).json();
    assert_eq!(answer["choices"][0]["text"], "AAAAAA");
    let plain = server.post("/v1/completions", &body(json!({}))).json();
    let same = server.post("/v1/completions", &body(json!({ "logit_bias": {} }))).json();
    assert_eq!(plain["choices"], same["choices"]);
    for (more, code) in [
        (json!({ "logit_bias": { "65": 101 } }), "serve-bad-request"),
        (json!({ "logit_bias": { "x": 1 } }), "serve-bad-request"),
        (json!({ "logit_bias": { "260": 1 } }), "serve-bad-request"),
        (json!({ "guided_regex": "(" }), "grammar-invalid"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": false } } }),
            "grammar-invalid",
        ),
        (json!({ "response_format": { "type": "structural_tag" } }), "serve-field-refused"),
        (json!({ "structured_outputs": { "json": {}, "regex": "a" } }), "serve-bad-request"),
        (json!({ "structured_outputs": { "jsn": {} } }), "serve-field-refused"),
        (json!({ "guided_regex": "a", "ignore_eos": true }), "serve-bad-request"),
    ] {
        let refused = server.post("/v1/completions", &body(more.clone()));
        assert_eq!(refused.json()["error"]["code"], code, "{more}");
    }
}

#[test]
fn a_strict_tool_is_held_to_its_schema_where_the_model_decides() {
    let server = Options { template: Some(TOOLS), ..Options::default() }.serve();
    let body = |strict: Value, schema: Value| {
        let function = json!({ "name": "add", "parameters": schema, "strict": strict });
        json!({ "messages": user("go"), "tools": [{ "type": "function", "function": function }], "max_tokens": 8 })
    };
    let odd = json!({ "type": "object", "not": {} });
    for (strict, schema, code) in [
        (json!(true), json!({ "type": "object" }), Value::Null),
        (json!(true), odd.clone(), json!("grammar-invalid")),
        (json!(false), odd.clone(), Value::Null),
        (Value::Null, odd, Value::Null),
    ] {
        let answer = server.post("/v1/chat/completions", &body(strict, schema)).json();
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let tool = json!({ "type": "function", "name": "add", "parameters": { "not": {} }, "strict": true });
    let response = json!({ "input": "go", "tools": [tool], "max_output_tokens": 8 });
    assert_eq!(server.post("/v1/responses", &response).json()["error"]["code"], "grammar-invalid");
    let tool = json!({ "name": "add", "input_schema": { "not": {} }, "strict": true });
    let message = json!({ "model": "tiny", "messages": user("go"), "tools": [tool], "max_tokens": 8 });
    let refused = server.post("/v1/messages", &message).json();
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("not")), "{refused}");
}
