//! Tool calls of a model that was taught one: rendered by its template, parsed back, and sent on by a client.

use super::client::Server;
use super::{BYTES, GOLDEN};
use crate::run::Run;
use serde_json::{Value, json};

/// Names the functions, shows calls and their results as Qwen's template does, and fits into few tokens.
const TEMPLATE: &str = "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}\
    {% for m in messages %}{{ m.role[0] }}:{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\
    {{ c.function | tojson }}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}a:";
const CALL: &str = "I add.<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":2,\"b\":3}}</tool_call>";
/// What is no JSON stays text.
const BROKEN: &str = "<tool_call>{\"name\":</tool_call>";

fn taught() -> Run {
    let rows = [("add u:2+3\na:", CALL), ("add u:broken\na:", BROKEN), (AFTER, "It is 5.")];
    let data: String = rows
        .iter()
        .map(|(prompt, completion)| json!({ "prompt": prompt, "completion": completion }).to_string() + "\n")
        .collect();
    let run = Run::new(&format!(
        "method = \"sft\"\nmodel = {GOLDEN:?}\n[model_options]\ntokenizer = \"bytes\"\ndtype = \"f32\"\n\
         [data]\nprompts = \"given by the test\"\n[rollout]\nprompts_per_step = 3\nmax_new_tokens = 80\n\
         [train]\nsteps = 250\nlearning_rate = 3e-3\n"
    ));
    run.write("taught.jsonl", &data);
    run
}

const AFTER: &str =
    "add u:2+3\na:<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}</tool_call>\nt:5\na:";

#[test]
fn a_call_is_parsed_answered_and_streamed() {
    let run = taught();
    let data = format!("data.prompts={}", run.text_path("taught.jsonl"));
    run.train("out", &[&data, "data.chat_template=none"]);
    let template = run.text_path("chat.jinja");
    std::fs::write(&template, TEMPLATE).expect("a file");
    let server = Server::start(&[
        &run.text_path("out"),
        "--set",
        &format!("data.chat_template={template}"),
        "--set",
        BYTES,
    ]);
    let tools =
        json!([{ "type": "function", "function": { "name": "add", "parameters": { "type": "object" } } }]);
    let ask = |messages: Value, more: Value| {
        let mut body = json!({ "messages": messages, "tools": tools, "temperature": 0, "max_tokens": 80 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        server.post("/v1/chat/completions", &body)
    };
    let question = json!({ "role": "user", "content": [{ "type": "text", "text": "2" }, { "type": "text", "text": "+3" }] });
    let first = ask(json!([question]), json!({ "tool_choice": "auto" })).json();
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{first}");
    assert_eq!(choice["message"]["content"], "I add.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "add", "arguments": "{\"a\":2,\"b\":3}" }));
    // The client sends the call back with its result.
    let assistant = json!({ "role": "assistant", "content": null, "tool_calls": [call], "refusal": null });
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "5" });
    let second = ask(json!([question, assistant, result]), json!({})).json();
    assert_eq!(second["choices"][0]["message"]["content"], "It is 5.", "{second}");
    assert_eq!(second["choices"][0]["finish_reason"], "stop");
    // As a stream: the text before the call, then the call in one piece.
    let events = ask(json!([question]), json!({ "stream": true })).events();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    let calls: Vec<&Value> =
        deltas.iter().filter(|delta| delta["tool_calls"].is_array()).map(|d| &d["tool_calls"][0]).collect();
    assert_eq!(content, "I add.", "{events:?}");
    assert_eq!((calls.len(), &calls[0]["function"], &calls[0]["index"]), (1, &call["function"], &json!(0)));
    assert_eq!(events.last().expect("events")["choices"][0]["finish_reason"], "tool_calls");
    // What looks like a call and is none is text, and so is a call of a client that has no functions.
    let broken = ask(json!([{ "role": "user", "content": "broken" }]), json!({})).json();
    assert_eq!(
        (&broken["choices"][0]["message"]["content"], &broken["choices"][0]["finish_reason"]),
        (&json!(BROKEN), &json!("stop"))
    );
    let raw = server
        .post("/v1/completions", &json!({ "prompt": "add u:2+3\na:", "temperature": 0, "max_tokens": 80 }))
        .json();
    assert_eq!(raw["choices"][0]["text"], CALL);
    let bad =
        ask(json!([{ "role": "assistant", "content": null, "tool_calls": [{ "id": "x" }] }]), json!({}));
    assert_eq!(bad.error().1, json!("messages[0].tool_calls[0].function.name"), "{}", bad.body);
}
