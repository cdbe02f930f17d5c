//! Conversations of gpt-oss: arranges messages as its chat template reads them, says which day it writes, and finds
//! what it writes after a sampled turn. Refuses what the template would leave out.
//!
//! Its template writes the words of an answer that calls as thinking, one call of each turn, and instructions at the
//! beginning alone. It leaves earlier thinking out and writes another end of a turn than the model does, so that a turn
//! that was sampled is never rendered: only what comes after it is.

use crate::calls_form::Form;
use crate::harmony::{END, ENDS, START};
use crate::message::THINKING;
use crate::strftime::seconds_of_day;
use plimsoll_base::{Error, Result, shown};
use serde_json::{Map, Value, json};

/// The variable that names the day of `strftime_now`, as `2025-06-28`; `today` is the clock's.
const DAY: &str = "current_date";
/// The day that the format's own documentation writes: prompts are the same every day.
const USUAL_DAY: &str = "2025-06-28";

/// Returns the moment of `strftime_now`, if it is not the clock's.
///
/// Errors: words on a day that is none.
pub(crate) fn moment(form: Form, variables: &[(&str, &Value)]) -> std::result::Result<Option<u64>, String> {
    let of_run = variables.iter().find(|(name, _)| *name == DAY).map(|(_, value)| *value);
    let is_harmony = form == Form::Harmony;
    match of_run.map(|value| value.as_str().unwrap_or_default()) {
        Some("today") => Ok(None),
        None => {
            Ok(is_harmony.then(|| crate::strftime::fixed_seconds().or(seconds_of_day(USUAL_DAY))).flatten())
        }
        // Templates of other families may have a variable of that name.
        Some(day) => match seconds_of_day(day) {
            None if is_harmony => {
                Err(format!(": {DAY} is {:?}: it can be a day, such as {USUAL_DAY}", shown(day)))
            }
            seconds => Ok(seconds),
        },
    }
}

/// Returns messages as the template of gpt-oss reads them: thinking under its name, and one call in each turn, with its
/// results after it.
///
/// Errors: words on instructions after the beginning, which the template leaves out.
pub(crate) fn arranged(messages: &[Value]) -> std::result::Result<Vec<Value>, String> {
    let mut list = Vec::with_capacity(messages.len());
    let mut rest = messages.iter().enumerate().peekable();
    while let Some((index, message)) = rest.next() {
        check_role(index, message["role"].as_str().unwrap_or_default())?;
        let turn = with_thinking(message);
        let calls = turn["tool_calls"].as_array().cloned().unwrap_or_default();
        if calls.len() < 2 {
            list.push(turn);
            continue;
        }
        let mut results = Vec::new();
        while let Some((_, result)) = rest.next_if(|(_, next)| is_result(next)) {
            results.push(with_thinking(result));
        }
        for (number, call) in calls.iter().enumerate() {
            let mut one =
                if number == 0 { turn.clone() } else { json!({ "role": "assistant", "content": "" }) };
            one["tool_calls"] = json!([call]);
            list.push(one);
            let id = call["id"].as_str();
            let found =
                results.iter().position(|result| id.is_some() && result["tool_call_id"].as_str() == id);
            let unnamed = || results.first().filter(|result| result["tool_call_id"].is_null()).map(|_| 0);
            list.extend(found.or_else(unnamed).map(|at| results.remove(at)));
        }
        list.extend(results);
    }
    Ok(list)
}

/// Requires that a message of this role is written.
pub(crate) fn check_role(index: usize, role: &str) -> std::result::Result<(), String> {
    if index > 0 && ["system", "developer"].contains(&role) {
        return Err(format!(
            ": message {} is the {role}'s, and the template writes such a message at the beginning alone",
            index + 1
        ));
    }
    Ok(())
}

fn is_result(message: &Value) -> bool {
    ["tool", "function"].iter().any(|role| message["role"] == *role)
}

/// Returns a message with its thinking in the field that the template reads. An answer that calls has one text there.
fn with_thinking(message: &Value) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let mut fields = fields.clone();
    if fields.get("role").is_some_and(|role| role == "function") {
        fields.insert("role".into(), "tool".into());
    }
    let thoughts = THINKING.map(|name| fields.shift_remove(name));
    let mut thought =
        thoughts.iter().flatten().filter_map(Value::as_str).find(|text| !text.trim().is_empty());
    let calls = fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    if !calls {
        fields.shift_remove("tool_calls");
    }
    let words = fields.get("content").and_then(Value::as_str).unwrap_or_default();
    let joined =
        thought.filter(|_| calls && !words.is_empty()).map(|thought| format!("{thought}\n\n{words}"));
    if let Some(joined) = &joined {
        thought = Some(joined);
        fields.insert("content".into(), "".into());
    }
    if let Some(thought) = thought {
        fields.insert("thinking".into(), thought.into());
    }
    Value::Object(fields)
}

/// Returns what follows a sampled turn: the end of its message if it has none, `said`, and the opening of the next
/// turn. `render` writes a conversation; `calls`: the functions that the turn calls; `last`: its last token's text.
///
/// Errors: those of `render`; `chat-template-invalid` where the template leaves the turn out.
pub(crate) fn after_turn(
    calls: &[String],
    said: &[Value],
    last: Option<&str>,
    render: impl FnOnce(&[Value]) -> Result<String>,
) -> Result<String> {
    let whole = Value::from(said).to_string();
    let mark = (0..).map(|n| format!("turn-{n}-is-here")).find(|mark| !whole.contains(mark));
    let mark = mark.expect("one of them is in no message");
    let rendered = render(&around(calls, said, &mark))?;
    let lost = || {
        Error::new("chat-template-invalid", "chat template: an earlier turn of the assistant is left out")
            .hint("set data.chat_template to one that writes every turn")
    };
    let mut text = String::new();
    for (number, part) in rendered.split(&mark).skip(1).enumerate() {
        let ends = [END, ENDS[0], ENDS[1]];
        let find = |end: &&'static str| Some((part.find(*end)?, *end));
        let (at, end) = ends.iter().filter_map(find).min().ok_or_else(lost)?;
        match number {
            0 if last.is_some_and(|last| ends.contains(&last)) => {}
            0 => text.push_str(end),
            // The turn was rendered once more, for the name of the next result.
            _ => text.truncate(text.rfind(START).ok_or_else(lost)?),
        }
        text.push_str(&part[at + end.len()..]);
    }
    if text.is_empty() { Err(lost()) } else { Ok(text) }
}

/// Returns a conversation with a marked turn, and what was said after it. A result follows a call of its function.
fn around(calls: &[String], said: &[Value], mark: &str) -> Vec<Value> {
    let calling = |name: &str| {
        let function = json!({ "name": name, "arguments": mark });
        json!({ "role": "assistant", "content": "", "tool_calls": [{ "type": "function", "function": function }] })
    };
    let mut messages = vec![json!({ "role": "user", "content": "?" })];
    if !said.first().is_some_and(is_result) {
        let answer = json!({ "role": "assistant", "content": mark });
        messages.push(calls.first().map_or(answer, |name| calling(name)));
    }
    let mut names = calls.iter();
    for message in said {
        if is_result(message) {
            let name = names.next().map(String::as_str).or(message["name"].as_str());
            messages.push(calling(name.or(calls.last().map(String::as_str)).unwrap_or("unknown")));
        }
        let mut plain: Map<String, Value> = message.as_object().cloned().unwrap_or_default();
        plain.shift_remove("tool_call_id");
        messages.push(Value::Object(plain));
    }
    messages
}
