//! Chats: what a template gets of a request, and calls of functions in what the model says.

use super::*;
use crate::outbox::{End, Part};
use crate::rig::{part, state};

/// Names the functions, shows calls and their results as Qwen's template does.
const TEMPLATE: &str = "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}\
    {% for m in messages %}{{ m.role[0] }}:{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\
    {{ c.function | tojson }}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}a:";
const CALL: &str = "I add.<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":2,\"b\":3}}</tool_call>";

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "add", "parameters": { "type": "object" } } }])
}

fn read_body(body: &Value) -> Reply<Parsed<ChatForm>> {
    read(body.to_string().as_bytes(), &state(TEMPLATE).0, None)
}

fn prompt(body: &Value) -> String {
    let parsed = read_body(body).unwrap_or_else(|refusal| panic!("{body}: {}", refusal.error));
    parsed.prompts[0].iter().map(|&id| char::from(id as u8)).collect()
}

fn refused(body: &Value) -> (&'static str, String) {
    let refusal = read_body(body).map(|_| ()).expect_err("it is refused");
    (refusal.error.slug, refusal.param.clone().unwrap_or_default())
}

fn with_tools(messages: Value) -> Value {
    json!({ "messages": messages, "tools": tools() })
}

fn question() -> Value {
    json!({ "role": "user", "content": [{ "type": "text", "text": "2" }, { "type": "text", "text": "+3" }] })
}

/// The choices' message and finish reason, for a response that the model ended by itself.
fn whole(body: &Value, said: &str) -> (Value, Value) {
    let mut form = read_body(body).map(|parsed| parsed.form).unwrap_or_else(|r| panic!("{}", r.error));
    let answer = form.whole(vec![part(said, Some(End::Eos))]);
    let choice = &answer["choices"][0];
    (choice["message"].clone(), choice["finish_reason"].clone())
}

#[test]
fn a_call_and_its_result_reach_the_template_as_the_model_knows_them() {
    let (message, finish) = whole(&with_tools(json!([question()])), CALL);
    assert_eq!((&message["content"], &finish), (&json!("I add."), &json!("tool_calls")));
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "add", "arguments": "{\"a\":2,\"b\":3}" }));
    assert_eq!((&call["type"], &call["index"]), (&json!("function"), &Value::Null));
    // The client sends the call back with its result.
    let assistant = json!({ "role": "assistant", "content": null, "tool_calls": [call], "refusal": null });
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "5" });
    let said = prompt(&with_tools(json!([question(), assistant, result])));
    let written = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}</tool_call>";
    assert_eq!(said, format!("add u:2+3\na:{written}\nt:5\na:"));
}

/// Histories of OpenAI's own client: calls without arguments were `""` and null to the template, empty lists and an
/// answer without words were refused, and large numbers came back with other digits.
#[test]
fn r_a_history_of_another_server_was_changed_or_refused() {
    let call = |arguments: Value| {
        let mut function = json!({ "name": "add" });
        function["arguments"] = arguments;
        json!({ "id": "c", "type": "function", "function": function })
    };
    let said = |assistant: Value| prompt(&with_tools(json!([question(), assistant])));
    let calling = |call: Value| {
        said(json!({ "role": "assistant", "content": null, "annotations": [], "tool_calls": [call] }))
    };
    let nothing = "add u:2+3\na:<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\na:";
    for arguments in [json!(""), json!(" "), Value::Null, json!("{}"), json!({})] {
        assert_eq!(calling(call(arguments.clone())), nothing, "{arguments}");
    }
    let none = json!({ "id": "c", "type": "function", "function": { "name": "add" } });
    assert_eq!(calling(none), nothing);
    let large = calling(call(json!("{\"a\": 12345678901234567890, \"b\": 123456789012345678901234567890}")));
    assert!(
        large.contains("{\"a\": 12345678901234567890, \"b\": 123456789012345678901234567890}"),
        "{large}"
    );
    for assistant in [
        json!({ "role": "assistant", "content": null, "refusal": null }),
        json!({ "role": "assistant", "content": "", "annotations": [], "tool_calls": [] }),
    ] {
        assert_eq!(said(assistant), "add u:2+3\na:\na:");
    }
    let noted = json!({ "role": "assistant", "content": "a", "annotations": [1] });
    let refused = refused(&with_tools(json!([question(), noted])));
    assert_eq!(refused, ("serve-field-refused", "messages[1].annotations".into()));
}

#[test]
fn a_stream_has_the_text_before_a_call_and_then_the_call_in_one_piece() {
    let mut body = with_tools(json!([question()]));
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let mut form = read_body(&body).map(|parsed| parsed.form).unwrap_or_else(|r| panic!("{}", r.error));
    let mut events = form.begin();
    let letters: Vec<String> = CALL.chars().map(String::from).collect();
    for (at, letter) in letters.iter().enumerate() {
        let end = (at + 1 == letters.len()).then_some(End::Eos);
        events.extend(form.part(0, part(letter, end)));
    }
    events.extend(form.end());
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    let content: String = deltas.clone().filter_map(|delta| delta["content"].as_str()).collect();
    let calls: Vec<&Value> =
        deltas.filter(|delta| delta["tool_calls"].is_array()).map(|delta| &delta["tool_calls"][0]).collect();
    assert_eq!(content, "I add.", "{events:?}");
    assert_eq!(
        (calls.len(), &calls[0]["index"], &calls[0]["function"]["name"]),
        (1, &json!(0), &json!("add"))
    );
    let [.., end, usage] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(end["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(usage["usage"]["completion_tokens"], CALL.len());
    assert!(events[..events.len() - 1].iter().all(|event| event["usage"].is_null()));
}

#[test]
fn what_is_no_call_stays_text() {
    let broken = "<tool_call>{\"name\":</tool_call>";
    let (message, finish) = whole(&with_tools(json!([question()])), broken);
    assert_eq!((message["content"].as_str(), &finish), (Some(broken), &json!("stop")));
    // A client that has no functions, or wants none called, gets a call as text.
    let mut none = with_tools(json!([question()]));
    none["tool_choice"] = json!("none");
    for body in [json!({ "messages": [question()] }), none] {
        let (message, finish) = whole(&body, CALL);
        assert_eq!((message["content"].as_str(), &finish), (Some(CALL), &json!("stop")));
        assert!(message.get("tool_calls").is_none());
        assert_eq!(prompt(&body), "u:2+3\na:");
    }
}

#[test]
fn calls_are_counted_by_choice_and_have_names_of_their_own() {
    let mut body = with_tools(json!([question()]));
    body["n"] = json!(2);
    let mut form = read_body(&body).map(|parsed| parsed.form).unwrap_or_else(|r| panic!("{}", r.error));
    let twice = CALL.repeat(2);
    let parts: Vec<Part> = vec![part(&twice, Some(End::Eos)), part(CALL, Some(End::Length))];
    let answer = form.whole(parts);
    let ids: Vec<&str> = (answer["choices"].as_array().expect("choices").iter())
        .flat_map(|choice| choice["message"]["tool_calls"].as_array().expect("calls"))
        .map(|call| call["id"].as_str().expect("an id"))
        .collect();
    assert_eq!(ids.len(), 3);
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    // A response that was cut may have half a call after this one.
    assert_eq!(answer["choices"][1]["finish_reason"], "length");
}

#[test]
fn messages_and_tools_that_no_template_could_write_are_refused_by_their_place() {
    let of = |messages: Value| refused(&json!({ "messages": messages }));
    let bad = "serve-bad-request";
    assert_eq!(of(json!([1])), (bad, "messages[0]".into()));
    assert_eq!(
        of(json!([question(), { "role": "user", "content": 5 }])),
        (bad, "messages[1].content".into())
    );
    assert_eq!(of(json!([{ "role": "user", "content": ["a"] }])), (bad, "messages[0].content[0]".into()));
    assert_eq!(
        of(json!([{ "role": "user", "content": "a", "tool_calls": 1 }])),
        (bad, "messages[0].tool_calls".into())
    );
    let nameless = json!([{ "role": "assistant", "content": null, "tool_calls": [{ "id": "x" }] }]);
    assert_eq!(of(nameless), (bad, "messages[0].tool_calls[0].function.name".into()));
    assert_eq!(of(json!(vec![question(); 4097])), (bad, "messages".into()));
    let tools = |tools: Value| refused(&json!({ "messages": [question()], "tools": tools }));
    assert_eq!(tools(json!([{ "type": "web_search" }])), ("serve-field-refused", "tools[0]".into()));
    assert_eq!(tools(json!([{ "type": "function", "function": { "name": "" } }])), (bad, "tools[0]".into()));
    assert_eq!(tools(Value::from(vec![self::tools()[0].clone(); 129])), (bad, "tools".into()));
}

#[test]
fn variables_of_a_request_reach_the_template() {
    let (state, _inbox) = state("{{ 'thinks' if enable_thinking else 'speaks' }}{{ messages | length }}");
    let read = |body: Value| {
        let parsed =
            read(body.to_string().as_bytes(), &state, None).unwrap_or_else(|r| panic!("{}", r.error));
        parsed.prompts[0].iter().map(|&id| char::from(id as u8)).collect::<String>()
    };
    assert_eq!(read(json!({ "messages": [question()] })), "speaks1");
    let variables = json!({ "enable_thinking": true });
    assert_eq!(read(json!({ "messages": [question()], "chat_template_kwargs": variables })), "thinks1"); // They were taken, and what the conversation gives went before them.
    for name in ["messages", "tools", "add_generation_prompt"] {
        let body = json!({ "messages": [question()], "chat_template_kwargs": { name: [] } });
        assert_eq!(refused(&body), ("serve-field-refused", format!("chat_template_kwargs.{name}")));
    }
}

#[test]
fn thinking_between_marks_is_a_field_of_its_own_unless_a_request_wants_it_in_the_text() {
    let (state, _inbox) =
        state("{{ messages[0].content }}{% if open %}<think>{% endif %}</think>|a:{{ '<think>' if open }}");
    let said = "<think>\nhm\n</think>\n\n5";
    for (more, said, reasoning, content) in [
        (json!({}), said, json!("hm"), "5"),
        (json!({ "include_reasoning": false }), said, Value::Null, "5"),
        (json!({ "separate_reasoning": false }), said, Value::Null, said),
        (json!({ "chat_template_kwargs": { "open": true } }), "hm</think>5", json!("hm"), "5"),
        (json!({}), "5", Value::Null, "5"),
    ] {
        let mut body = json!({ "messages": [question()] });
        body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        let parsed =
            read(body.to_string().as_bytes(), &state, None).unwrap_or_else(|r| panic!("{}", r.error));
        let mut form = parsed.form;
        let message = form.whole(vec![part(said, Some(End::Eos))])["choices"][0]["message"].clone();
        assert_eq!(
            (&message["reasoning_content"], &message["reasoning"]),
            (&reasoning, &reasoning),
            "{more}"
        );
        assert_eq!(message["content"], content, "{more}");
    }
}

/// The short template of gpt-oss's format in the tests of crate `text`.
const HARMONY: &str = include_str!("../../../text/tests/harmony/template.jinja");

#[test]
fn thinking_and_calls_of_gpt_oss_are_fields_of_a_message() {
    let read = |body: &Value| read(body.to_string().as_bytes(), &state(HARMONY).0, None);
    let form = |body: &Value| read(body).map(|parsed| parsed.form).unwrap_or_else(|r| panic!("{}", r.error));
    let described = json!([{ "type": "function", "function": { "name": "add", "description": "Adds." } }]);
    let (plain, tools) =
        (json!({ "messages": [question()] }), json!({ "messages": [question()], "tools": described }));
    let hm = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    let answer = format!("{hm}<|channel|>final<|message|>5");
    let calling =
        format!("{hm}<|channel|>commentary to=functions.add <|constrain|>json<|message|>{{\"a\":2}}");
    for (body, said, content, calls, finish) in [
        (&plain, &answer, json!("5"), 0, "stop"),
        (&tools, &answer, json!("5"), 0, "stop"),
        (&tools, &calling, Value::Null, 1, "tool_calls"),
    ] {
        let whole = form(body).whole(vec![part(said, Some(End::Eos))]);
        let choice = &whole["choices"][0];
        let message = &choice["message"];
        assert_eq!((&message["content"], &message["reasoning_content"]), (&content, &json!("hm")), "{said}");
        assert_eq!(message["tool_calls"].as_array().map_or(0, Vec::len), calls, "{said}");
        assert_eq!(choice["finish_reason"], finish, "{said}");
        // The same in a stream, byte by byte.
        let mut form = form(body);
        let (mut thought, mut words, mut called) = (String::new(), String::new(), 0);
        for (at, letter) in said.char_indices() {
            let is_last = at + 1 == said.len();
            for event in form.part(0, part(&letter.to_string(), is_last.then_some(End::Eos))) {
                let delta = &event["choices"][0]["delta"];
                thought += delta["reasoning_content"].as_str().unwrap_or_default();
                words += delta["content"].as_str().unwrap_or_default();
                called += delta["tool_calls"].as_array().map_or(0, Vec::len);
            }
        }
        assert_eq!(
            (thought.as_str(), words.as_str(), called),
            ("hm", content.as_str().unwrap_or_default(), calls)
        );
    }
    // The client sends back what it got, and the result.
    let whole = form(&tools).whole(vec![part(&calling, Some(End::Eos))]);
    let message = &whole["choices"][0]["message"];
    let result = json!({ "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "5" });
    let next = json!({ "messages": [question(), message, result], "tools": described });
    let parsed = read(&next).unwrap_or_else(|refusal| panic!("{}", refusal.error));
    let prompt: String = parsed.prompts[0].iter().map(|&id| char::from(id as u8)).collect();
    let expect = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"a\": 2}<|call|><|start|>functions.add to=assistant<|channel|>commentary<|message|>\"5\"<|end|><|start|>assistant";
    assert!(prompt.ends_with(expect), "{prompt}");
}
