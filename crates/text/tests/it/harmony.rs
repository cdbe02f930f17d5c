//! gpt-oss: prompts and responses against openai-harmony (`tests/harmony/make.py`), and turns that go on from tokens as
//! they were sampled.

use plimsoll_files::TokenizerFiles;
use plimsoll_text::calls::Calls;
use plimsoll_text::calls_xml::Tool;
use plimsoll_text::said::{Said, joined};
use plimsoll_text::{ChatTemplate, Conversation, Message, StreamDecoder, Tokenizer};
use serde_json::{Map, Value, json};

const TEMPLATE: &str = include_str!("../harmony/template.jinja");

fn cases() -> Value {
    serde_json::from_str(include_str!("../harmony/cases.json")).unwrap()
}

fn template() -> ChatTemplate {
    ChatTemplate::new(TEMPLATE, &[]).unwrap()
}

fn render(messages: &Value, variables: &[(&str, &Value)]) -> plimsoll_base::Result<String> {
    let messages = messages.as_array().unwrap();
    template().render_json(&Conversation { messages, variables, add_generation_prompt: true })
}

/// Bytes, and the marks of the format as special tokens.
fn tokenizer() -> Tokenizer {
    let mut json: Value = serde_json::from_slice(include_bytes!("../turns/tokenizer.json")).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let first = added.iter().filter_map(|token| token["id"].as_u64()).max().unwrap() + 1;
    for (id, mark) in (first..).zip(cases()["ids"].as_object().unwrap().keys()) {
        let mut token = added[0].clone();
        (token["id"], token["content"]) = (json!(id), json!(mark));
        added.push(token);
    }
    let tokenizer_json = Some(json.to_string().into_bytes());
    let mut tokenizer =
        Tokenizer::from_files(&TokenizerFiles { tokenizer_json, ..TokenizerFiles::default() }, 300).unwrap();
    tokenizer.keep_marks(&template().kept_marks());
    tokenizer
}

#[test]
fn a_prompt_is_what_openais_library_writes() {
    let cases = cases();
    let variables = [("tools", &cases["tools"]), ("reasoning_effort", &json!("low"))];
    assert_eq!(render(&cases["messages"], &variables).unwrap(), cases["prompt"].as_str().unwrap());
}

/// What openai-harmony refuses stays text here.
#[test]
fn responses_are_read_as_openais_library_reads_them() {
    let (cases, template) = (cases(), template());
    let mut refused = 0;
    for case in cases["responses"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let tools = Tool::all(cases["tools"].as_array().unwrap());
        let said = joined(Calls::in_response(Some(&template), tools, text));
        let Some(messages) = case["messages"].as_array() else {
            refused += 1;
            let whole = text.trim_end_matches("<|return|>");
            assert_eq!(said, [Said::Text(whole.into())], "{text}");
            continue;
        };
        let mut expect: Vec<Said> = Vec::new();
        for message in messages.iter().filter(|message| message["content"] != "") {
            let content = message["content"].as_str().unwrap().to_string();
            let name = message["recipient"].as_str().and_then(|to| to.strip_prefix("functions."));
            expect.push(match (name, message["channel"].as_str()) {
                (Some(name), _) => Said::Call { name: name.into(), arguments: content },
                (None, Some("analysis")) => Said::Thought(content),
                // A result is no message of the assistant.
                _ if message["role"] == "tool" => {
                    let at = text.find("<|start|>functions").unwrap();
                    Said::Text(text[at..].trim_end_matches("<|end|>").into())
                }
                _ => Said::Text(content),
            });
        }
        assert_eq!(said, expect, "{text}");
    }
    assert_eq!(refused, 2);
}

#[test]
fn marks_stay_in_the_text_of_a_response_and_its_end_does_not() {
    let tokenizer = tokenizer();
    let text = "<|channel|>analysis<|message|>é<|end|><|start|>assistant to=functions.add<|channel|>commentary <|constrain|>json<|message|>{}";
    let ids = tokenizer.encode(&format!("{text}<|call|>")).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), text);
    let (mut decoder, mut streamed) = (StreamDecoder::new(true), String::new());
    ids.iter().for_each(|&id| decoder.push(&tokenizer, id, &mut streamed));
    assert_eq!(streamed, text);
    assert_eq!(template().ends(), ["<|return|>", "<|call|>"]);
}

/// Sampled tokens are kept, with the end that was sampled; a turn that was cut gets the end of a message.
#[test]
fn turns_go_on_from_sampled_tokens() {
    let result = |content: &str| json!({ "role": "tool", "content": content, "tool_call_id": "c" });
    let (user, add) =
        (json!({ "role": "user", "content": "and 4? turn-0-is-here" }), vec!["add".to_string()]);
    let asked = "<|start|>user<|message|>and 4? turn-0-is-here<|end|><|start|>assistant";
    let gave =
        "<|start|>functions.add to=assistant<|channel|>commentary<|message|>\"5\"<|end|><|start|>assistant";
    let two = vec!["add".to_string(), "now".to_string()];
    let gave_two = "<|start|>functions.add to=assistant<|channel|>commentary<|message|>\"5\"<|end|><|start|>functions.now to=assistant<|channel|>commentary<|message|>\"6\"<|end|><|start|>assistant";
    for (calls, said, last, expect) in [
        (&vec![], vec![user.clone()], Some("<|return|>"), asked.to_string()),
        (&vec![], vec![user.clone()], Some("<|end|>"), asked.to_string()),
        (&vec![], vec![user.clone()], Some("4"), format!("<|end|>{asked}")),
        (&vec![], vec![user.clone()], None, format!("<|end|>{asked}")),
        (&add, vec![result("5")], Some("<|call|>"), gave.to_string()),
        (&add, vec![result("5")], Some("}"), format!("<|call|>{gave}")),
        (&add, vec![user.clone()], Some("<|call|>"), asked.to_string()),
        (&two, vec![result("5"), result("6")], Some("<|call|>"), gave_two.to_string()),
        (&vec![], vec![], Some("<|return|>"), "<|start|>assistant".to_string()),
    ] {
        let after = template().after_sampled_turn(calls, &said, last).unwrap().unwrap();
        assert_eq!(after, expect, "{calls:?} {said:?} {last:?}");
    }
    let unknown = template().after_sampled_turn(&[], &[result("5")], Some("<|call|>")).unwrap().unwrap();
    assert!(unknown.starts_with("<|start|>functions.unknown to=assistant"), "{unknown}");
    let other = ChatTemplate::new("{{ messages[0].content }}<tool_call>", &[]).unwrap();
    assert!(other.after_sampled_turn(&add, &[user], None).is_none());
}

#[test]
fn a_history_is_arranged_as_the_template_reads_it() {
    let call = |id: &str, name: &str| json!({ "id": id, "function": { "name": name, "arguments": {} } });
    let shown = |messages: Value| {
        let text = render(&messages, &[]).unwrap();
        text.split_once("<|start|>user<|message|>?<|end|>").expect("a question").1.to_string()
    };
    let ask = json!({ "role": "user", "content": "?" });
    let result = |id: &str, content: &str| json!({ "role": "tool", "tool_call_id": id, "content": content });
    let of = |name: &str| {
        format!("<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{{}}<|call|>")
    };
    let gave = |name: &str, content: &str| {
        format!("<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>\"{content}\"<|end|>")
    };
    let thought = "<|start|>assistant<|channel|>analysis<|message|>";
    // Two calls of one answer, whose results come in the other order; thinking under another server's name.
    let answer = json!({ "role": "assistant", "content": "I add.", "reasoning_content": "hm", "tool_calls": [call("a", "add"), call("b", "now")] });
    let text = shown(json!([ask, answer, result("b", "noon"), result("a", "5")]));
    let expect = [
        format!("{thought}hm\n\nI add.<|end|>"),
        of("add"),
        gave("add", "5"),
        of("now"),
        gave("now", "noon"),
        "<|start|>assistant".into(),
    ];
    assert_eq!(text, expect.concat());
    // Results without ids are in the order of the calls; an empty list of calls is none.
    let answer =
        json!({ "role": "assistant", "content": "", "tool_calls": [call("a", "add"), call("b", "now")] });
    let plain = |content: &str| json!({ "role": "function", "content": content });
    let text = shown(json!([ask, answer, plain("5"), plain("noon")]));
    assert_eq!(
        text,
        [of("add"), gave("add", "5"), of("now"), gave("now", "noon"), "<|start|>assistant".into()].concat()
    );
    let text = shown(
        json!([ask, { "role": "assistant", "content": "4", "reasoning": "hm", "tool_calls": [] }, ask]),
    );
    assert!(text.starts_with("<|start|>assistant<|channel|>final<|message|>4<|end|>"), "{text}");
    // Instructions later on would be left out.
    let later = json!([ask, { "role": "system", "content": "Be brief.", "name": "x" }]);
    let error = render(&later, &[]).unwrap_err();
    assert!(
        error.slug == "chat-template-invalid" && error.message.contains("message 2 is the system's"),
        "{error}"
    );
    let plain = [Message::new("user", "?"), Message::new("system", "Be brief.")];
    assert_eq!(template().render(&plain, true).unwrap_err().slug, "chat-template-invalid");
}

/// A supervised answer has its thinking, under whichever name, and ends as the model ends it.
#[test]
fn the_last_answer_is_learnt_with_its_thinking() {
    let mut answer = Message::new("assistant", "4");
    answer.fields.insert("reasoning_content".into(), "hm".into());
    let text = template().render_row(&[Message::new("user", "?"), answer], &Map::new(), false).unwrap();
    let expect =
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>";
    assert!(text.ends_with(expect), "{text}");
}

/// The day of a prompt does not depend on the clock.
#[test]
fn the_day_is_fixed_unless_a_run_names_another() {
    let ask = json!([{ "role": "user", "content": "?" }]);
    let day = |value: Option<&str>| {
        let value = value.map(Value::from);
        let variables: Vec<(&str, &Value)> = value.iter().map(|value| ("current_date", value)).collect();
        render(&ask, &variables)
    };
    let fixed = std::env::var("SOURCE_DATE_EPOCH").is_err();
    assert!(!fixed || day(None).unwrap().contains("Current date: 2025-06-28\n"));
    assert!(day(Some("2026-02-03")).unwrap().contains("Current date: 2026-02-03\n"));
    assert!(!day(Some("today")).unwrap().contains("Current date: 2025-06-28\n"));
    let error = day(Some("June 28")).unwrap_err();
    assert!(
        error.slug == "chat-template-invalid" && error.message.contains("current_date is \"June 28\""),
        "{error}"
    );
    // Templates of other families have the clock's day, unless a day is named.
    let other = ChatTemplate::new("{{ strftime_now('%F') }}{{ messages[0].content }}", &[]).unwrap();
    let arguments = [("current_date".to_string(), json!("2026-02-03"))].into();
    let text = other.with_arguments(&arguments).render(&[Message::new("user", "?")], true).unwrap();
    assert_eq!(text, "2026-02-03?");
}
