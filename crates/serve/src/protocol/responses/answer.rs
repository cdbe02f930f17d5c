//! Writes a response of OpenAI's API: thinking, text and calls as items, whole or as events. The whole response has the
//! items with which its events end.

use super::counted::ThinkingTokens;
use crate::outbox::{End, Part};
use crate::protocol::refusal::Refusal;
use crate::protocol::reply::{EventStyle, Form, Head, Usage};
use plimsoll_text::ResponseReader;
use plimsoll_text::said::Said;
use serde_json::{Map, Value, json};

pub struct ItemsForm {
    head: Head,
    usage: Usage,
    thinking: ThinkingTokens,
    reader: ResponseReader,
    /// What the answer repeats of the request, as the text of an object.
    about: String,
    /// Items that are complete.
    items: Vec<Value>,
    open: Option<Words>,
    /// White space that belongs to the next text, if such comes.
    gap: String,
    events: u64,
    end: Option<End>,
}

/// The item of words that is being written.
struct Words {
    is_thought: bool,
    text: String,
}

impl Words {
    /// Returns the names of the item, of its part and of the events of its words.
    fn names(&self) -> (&'static str, &'static str, &'static str) {
        if self.is_thought {
            ("reasoning", "reasoning_text", "response.reasoning_text")
        } else {
            ("message", "output_text", "response.output_text")
        }
    }

    fn part(&self, text: &str) -> Value {
        let (_, part, _) = self.names();
        if self.is_thought {
            json!({ "type": part, "text": text })
        } else {
            json!({ "type": part, "text": text, "annotations": [], "logprobs": [] })
        }
    }

    fn item(&self, id: &str, content: Vec<Value>, status: &str) -> Value {
        let (kind, _, _) = self.names();
        if self.is_thought {
            json!({ "id": id, "type": kind, "summary": [], "content": content, "status": status })
        } else {
            json!({ "id": id, "type": kind, "role": "assistant", "content": content, "status": status })
        }
    }
}

impl ItemsForm {
    /// `readers`: of the answer, and one that counts thinking and needs no functions.
    pub fn new(
        head: Head,
        usage: Usage,
        [reader, counting]: [ResponseReader; 2],
        about: String,
    ) -> ItemsForm {
        ItemsForm {
            thinking: ThinkingTokens::new(counting),
            head,
            usage,
            reader,
            about,
            items: Vec::new(),
            open: None,
            gap: String::new(),
            events: 0,
            end: None,
        }
    }

    fn response(&self) -> Value {
        let cut = matches!(self.end, Some(End::Length));
        let status = match &self.end {
            None => "in_progress",
            Some(_) if cut => "incomplete",
            Some(_) => "completed",
        };
        let usage = json!({
            "input_tokens": self.usage.prompt_tokens, "input_tokens_details": { "cached_tokens": self.usage.cached_tokens },
            "output_tokens": self.usage.drawn_tokens,
            "output_tokens_details": { "reasoning_tokens": self.thinking.count() },
            "total_tokens": self.usage.prompt_tokens + self.usage.drawn_tokens,
        });
        let mut response = json!({
            "id": self.head.id, "object": "response", "created_at": self.head.created, "status": status,
            "background": false, "error": null,
            "incomplete_details": if cut { json!({ "reason": "max_output_tokens" }) } else { Value::Null },
            "model": self.head.model(), "output": self.items, "parallel_tool_calls": true,
            "previous_response_id": null, "store": false, "text": { "format": { "type": "text" } },
            "top_logprobs": 0, "truncation": "disabled",
            "usage": if self.end.is_some() { usage } else { Value::Null },
        });
        let about = serde_json::from_str::<Map<String, Value>>(&self.about).unwrap_or_default();
        if let Value::Object(response) = &mut response {
            response.extend(about);
        }
        response
    }

    /// Returns the id of the item that is written now.
    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}_{}", self.head.id.trim_start_matches("resp_"), self.items.len())
    }

    /// Returns an event: its type, then its number and fields.
    fn event(&mut self, kind: &str, fields: Value) -> Value {
        let mut event = json!({ "type": kind, "sequence_number": self.events });
        self.events += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        event
    }

    /// Returns an event about the words that are being written.
    fn about_words(&mut self, kind: &str, name: &str, value: Value) -> Value {
        let is_thought = self.open.as_ref().is_some_and(|words| words.is_thought);
        let id = self.item_id(if is_thought { "rs" } else { "msg" });
        let mut fields = json!({ "item_id": id, "output_index": self.items.len(), "content_index": 0 });
        fields[name] = value;
        if kind.starts_with("response.output_text") {
            fields["logprobs"] = json!([]);
        }
        self.event(kind, fields)
    }

    fn say(&mut self, said: Said, events: &mut Vec<Value>) {
        match said {
            Said::Thought(text) => self.write(true, text, events),
            Said::Text(text) if self.open.as_ref().is_some_and(|words| !words.is_thought) => {
                self.write(false, text, events);
            }
            Said::Text(text) => {
                self.gap.push_str(&text);
                if !self.gap.trim().is_empty() {
                    let text = std::mem::take(&mut self.gap);
                    self.write(false, text, events);
                }
            }
            Said::Call { name, arguments } => self.call(&name, &arguments, events),
        }
    }

    /// Adds words to the item of their kind, which is begun if another is open.
    fn write(&mut self, is_thought: bool, text: String, events: &mut Vec<Value>) {
        if self.open.as_ref().is_none_or(|words| words.is_thought != is_thought) {
            self.end_words(events);
            let words = Words { is_thought, text: String::new() };
            let id = self.item_id(if is_thought { "rs" } else { "msg" });
            let (item, part) = (words.item(&id, Vec::new(), "in_progress"), words.part(""));
            self.open = Some(words);
            let index = self.items.len();
            events.push(
                self.event("response.output_item.added", json!({ "output_index": index, "item": item })),
            );
            events.push(self.about_words("response.content_part.added", "part", part));
        }
        let Some(words) = &mut self.open else { return };
        words.text.push_str(&text);
        let (_, _, name) = words.names();
        events.push(self.about_words(&format!("{name}.delta"), "delta", Value::from(text)));
    }

    fn end_words(&mut self, events: &mut Vec<Value>) {
        let Some(words) = &self.open else { return };
        let (_, _, name) = words.names();
        let (text, part) = (words.text.clone(), words.part(&words.text));
        let id = self.item_id(if words.is_thought { "rs" } else { "msg" });
        let status = if matches!(self.end, Some(End::Length)) { "incomplete" } else { "completed" };
        let item = words.item(&id, vec![part.clone()], status);
        events.push(self.about_words(&format!("{name}.done"), "text", Value::from(text)));
        events.push(self.about_words("response.content_part.done", "part", part));
        self.open = None;
        self.end_item(item, events);
    }

    fn call(&mut self, name: &str, arguments: &str, events: &mut Vec<Value>) {
        self.end_words(events);
        self.gap.clear();
        let (id, call_id, index) = (self.item_id("fc"), self.item_id("call"), self.items.len());
        let item = |arguments: &str, status: &str| {
            json!({
                "id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments,
                "status": status,
            })
        };
        let begun = json!({ "output_index": index, "item": item("", "in_progress") });
        events.push(self.event("response.output_item.added", begun));
        let delta = json!({ "item_id": id, "output_index": index, "delta": arguments });
        events.push(self.event("response.function_call_arguments.delta", delta));
        let done = json!({ "item_id": id, "output_index": index, "name": name, "arguments": arguments });
        events.push(self.event("response.function_call_arguments.done", done));
        self.end_item(item(arguments, "completed"), events);
    }

    fn end_item(&mut self, item: Value, events: &mut Vec<Value>) {
        let done = json!({ "output_index": self.items.len(), "item": item });
        self.items.push(item);
        events.push(self.event("response.output_item.done", done));
    }
}

impl Form for ItemsForm {
    const EVENTS: EventStyle = EventStyle::Named;

    fn whole(&mut self, parts: Vec<Part>) -> Value {
        for part in parts {
            self.part(0, part);
        }
        self.response()
    }

    fn begin(&mut self) -> Vec<Value> {
        let response = self.response();
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({ "response": response })))
            .to_vec()
    }

    fn part(&mut self, _: usize, part: Part) -> Vec<Value> {
        self.usage.add(&part);
        self.thinking.push(&self.head.state.texts.tokenizer, &part.ids);
        let mut said = self.reader.push(&part.text);
        if part.end.is_some() {
            said.extend(self.reader.finish());
        }
        let mut events = Vec::new();
        said.into_iter().for_each(|one| self.say(one, &mut events));
        if part.end.is_some() {
            self.end = part.end;
            self.end_words(&mut events);
        }
        events
    }

    fn end(&mut self) -> Vec<Value> {
        let response = self.response();
        let kind =
            if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        vec![self.event(kind, json!({ "response": response }))]
    }

    fn failed(&mut self, refusal: &Refusal) -> Value {
        let fields =
            json!({ "code": refusal.error.slug, "message": refusal.message(), "param": refusal.param });
        self.event("error", fields)
    }
}
