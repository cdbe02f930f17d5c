//! Parses tool calls between marks of their own: each has the function's name, a mark, and the arguments as JSON.
//!
//! ```text
//! [TOOL_CALLS]add[ARGS]{"a":2}
//! [TOOL_CALLS][{"name":"add","arguments":{"a":2}}]
//!
//! <｜tool▁calls▁begin｜>
//! <｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a":2}\n```<｜tool▁call▁end｜>
//! <｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a":2}<｜tool▁call▁end｜>
//!
//! <|tool_calls_section_begin|>
//! <|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a":2}<|tool_call_end|>
//!
//! <|tool_call>call:add{a:2}<tool_call|>
//! ```
//!
//! The first is Mistral's and the second that of its models before v11; then DeepSeek V3's and that of V3.1; then
//! Kimi K2's, and Gemma 4's (`calls_gemma`). A call that breaks off or is no JSON stays text, with its marks. Source:
//! the models' chat templates, and vLLM's parsers of these names.

use crate::calls_gemma;
use crate::said::{Said, arguments_of, overlap, push_text, written_arguments};
use plimsoll_base::json_marked;
use serde_json::Value;

/// The marks of a family's calls.
#[derive(Debug, PartialEq)]
pub(crate) struct Marks {
    /// Begins the calls of a response.
    pub(crate) section: &'static str,
    /// Begins a call; that of the section if there is no other.
    call: &'static str,
    /// Separates the name from the arguments.
    middle: &'static str,
    /// Ends a call, and all of them; empty where the next call or the end of the response does.
    end: &'static str,
    section_end: &'static str,
    /// Further marks that a response may have, and that stay in its text.
    others: &'static [&'static str],
}

pub(crate) const MISTRAL: Marks = Marks {
    section: "[TOOL_CALLS]",
    call: "[TOOL_CALLS]",
    middle: "[ARGS]",
    end: "",
    section_end: "",
    others: &["[CALL_ID]", "[THINK]", "[/THINK]"],
};

pub(crate) const DEEPSEEK: Marks = Marks {
    section: "<｜tool▁calls▁begin｜>",
    call: "<｜tool▁call▁begin｜>",
    middle: "<｜tool▁sep｜>",
    end: "<｜tool▁call▁end｜>",
    section_end: "<｜tool▁calls▁end｜>",
    others: &[],
};

pub(crate) const KIMI: Marks = Marks {
    section: "<|tool_calls_section_begin|>",
    call: "<|tool_call_begin|>",
    middle: "<|tool_call_argument_begin|>",
    end: "<|tool_call_end|>",
    section_end: "<|tool_calls_section_end|>",
    others: &[],
};

pub(crate) const GEMMA: Marks = Marks {
    section: "<|tool_call>",
    call: "<|tool_call>",
    middle: "",
    end: "<tool_call|>",
    section_end: "<tool_call|>",
    others: &[calls_gemma::QUOTE, "<|channel>", "<channel|>"],
};

impl Marks {
    /// Returns all of its marks.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static str> {
        let own = [self.section, self.call, self.middle, self.end, self.section_end];
        own.into_iter().chain(self.others.iter().copied()).filter(|mark| !mark.is_empty())
    }
}

/// Finds the calls in one response: those from the first mark on, which are held back to their end.
#[derive(Clone, Debug)]
pub struct Sections {
    marks: &'static Marks,
    /// White space after the last text: it separates the calls, or belongs to the next text.
    gap: String,
    /// The possible beginning of the first mark; or that mark and the text after it.
    held: String,
    is_inside: bool,
    /// Bytes of `held` that have no end of a section.
    searched: usize,
}

impl Sections {
    pub(crate) fn new(marks: &'static Marks) -> Sections {
        Sections { marks, gap: String::new(), held: String::new(), is_inside: false, searched: 0 }
    }

    pub(crate) fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        self.held.push_str(text);
        loop {
            if self.is_inside {
                let end = self.marks.section_end;
                let found = self.held[self.searched..].find(end).filter(|_| !end.is_empty());
                let Some(at) = found else {
                    let solid = self.held.len().saturating_sub(end.len());
                    self.searched = self.held.floor_char_boundary(solid).max(self.searched);
                    return;
                };
                self.section(self.searched + at + end.len(), said);
            } else if let Some(at) = self.held.find(self.marks.section) {
                self.text(at, said);
                (self.is_inside, self.searched) = (true, self.marks.section.len());
            } else {
                return self.text(self.held.len() - overlap(&self.held, self.marks.section), said);
            }
        }
    }

    /// Says what is held, at the end of the response: calls that no mark closed, or text.
    pub(crate) fn finish(&mut self, said: &mut Vec<Said>) {
        if self.is_inside {
            self.section(self.held.len(), said);
        }
        push_text(said, &std::mem::take(&mut self.gap));
        push_text(said, &std::mem::take(&mut self.held));
    }

    /// Says the first `bytes` of what is held. White space at their end waits for what follows.
    fn text(&mut self, bytes: usize, said: &mut Vec<Said>) {
        let text: String = self.held.drain(..bytes).collect();
        let solid = text.trim_end();
        if !solid.is_empty() {
            push_text(said, &std::mem::take(&mut self.gap));
            push_text(said, solid);
        }
        self.gap.push_str(&text[solid.len()..]);
    }

    /// Takes the calls in the first `bytes` of what is held. What is none of them stays text.
    fn section(&mut self, bytes: usize, said: &mut Vec<Said>) {
        let whole: String = self.held.drain(..bytes).collect();
        (self.is_inside, self.searched) = (false, 0);
        let (before, gap) = (said.len(), std::mem::take(&mut self.gap));
        let rest = self.marks.calls(&whole, said);
        if said.len() == before {
            // Nothing in it is a call.
            push_text(said, &gap);
            push_text(said, &whole);
        } else {
            push_text(said, rest);
        }
    }
}

impl Marks {
    /// Says the calls at the beginning of a section, one after the other. Returns the text after the last of them.
    fn calls<'t>(&self, whole: &'t str, said: &mut Vec<Said>) -> &'t str {
        let mut rest = whole;
        if self.section != self.call {
            rest = rest.strip_prefix(self.section).unwrap_or(rest);
        }
        while let Some(begun) = rest.trim_start().strip_prefix(self.call) {
            let after = if self.end.is_empty() {
                let listed = listed(begun, said);
                listed.or_else(|| self.named(begun, said))
            } else {
                let (words, after) = begun.split_once(self.end).unwrap_or((begun, ""));
                self.named(words, said).filter(|left| left.trim().is_empty()).map(|_| after)
            };
            let Some(after) = after else { return rest };
            rest = after;
        }
        let end = rest.trim_start();
        end.strip_prefix(self.section_end).filter(|_| !self.section_end.is_empty()).unwrap_or(end)
    }

    /// Says one call: the name, the mark between, and an object. Returns the text after the object.
    fn named<'t>(&self, text: &'t str, said: &mut Vec<Said>) -> Option<&'t str> {
        if *self == GEMMA {
            let (name, json, arguments) = calls_gemma::call(text)?;
            let (name, arguments) = (name.to_string(), written_arguments(&json, &arguments));
            said.push(Said::Call { name, arguments });
            return Some("");
        }
        // Mistral's models also leave the mark out.
        let middle = text.find(self.middle).map(|at| (at, self.middle.len()));
        let brace = text.find('{').filter(|_| self.end.is_empty()).map(|at| (at, 0));
        let (at, bytes) = middle.into_iter().chain(brace).min()?;
        let (head, body) = (&text[..at], &text[at + bytes..]);
        let (name, body) = self.name(head.trim(), body)?;
        let (arguments, object, after) = object_at(body)?;
        let after = after.trim_start().strip_prefix("```").unwrap_or(after);
        if self.end.is_empty() || after.trim().is_empty() {
            said.push(Said::Call { name, arguments: written_arguments(object, &arguments) });
            return Some(after);
        }
        None
    }

    /// Returns a call's name, and the text in which its arguments are.
    fn name<'t>(&self, head: &str, body: &'t str) -> Option<(String, &'t str)> {
        let (name, body) = if *self == DEEPSEEK && head == "function" && !body.trim_start().starts_with('{') {
            // The first form of DeepSeek: the kind of tool, the mark, the name, and a block of JSON.
            let (name, body) = body.split_once('\n')?;
            (name.trim(), body.trim_start().strip_prefix("```json").unwrap_or(body))
        } else if *self == KIMI {
            // `functions.NAME:NUMBER`, of which a model may leave out either end.
            let name = head.strip_prefix("functions.").unwrap_or(head);
            let numbered = name.rsplit_once(':').filter(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()));
            (numbered.map_or(name, |(name, _)| name), body)
        } else {
            (head.split_once("[CALL_ID]").map_or(head, |(name, _)| name), body)
        };
        let is_name = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "<[{".contains(c));
        is_name.then(|| (name.to_string(), body))
    }
}

/// Says the calls of a list, as Mistral's models before v11 write them, if all of them are calls. Returns the text
/// after it.
fn listed<'t>(text: &'t str, said: &mut Vec<Said>) -> Option<&'t str> {
    if !text.trim_start().starts_with('[') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    let (list, after) = text.split_at(values.byte_offset());
    let Value::Array(calls) = json_marked(list).ok()? else { return None };
    let mut found = Vec::with_capacity(calls.len());
    for call in calls {
        let Value::Object(mut call) = call else { return None };
        let name = call.remove("name")?.as_str().filter(|name| !name.is_empty())?.to_string();
        let arguments = arguments_of(&mut call).filter(Value::is_object)?;
        found.push(Said::Call { name, arguments: written_arguments(list, &arguments) });
    }
    (!found.is_empty()).then(|| {
        said.extend(found);
        after
    })
}

/// Reads the object at the beginning of a text. Returns it, its text and the text after it; no text is no argument.
fn object_at(text: &str) -> Option<(Value, &str, &str)> {
    if text.trim().is_empty() {
        return Some((Value::Object(serde_json::Map::new()), "", ""));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    let (object, after) = text.split_at(values.byte_offset());
    json_marked(object).ok().filter(Value::is_object).map(|value| (value, object, after))
}

#[cfg(test)]
#[path = "calls_sections_tests.rs"]
mod tests;
