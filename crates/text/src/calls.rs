//! Parses tool calls in a response. Models write one of some forms, which their chat templates teach: Qwen and Hermes
//! `<tool_call>{"name": ..., "arguments": ...}</tool_call>`; Qwen3-Coder and Qwen3.5 tags for the function and its
//! parameters within `<tool_call>` (`calls_xml`); GLM-4.5 and later the name, and tags for keys and values, within it
//! (`calls_keys`); Mistral, DeepSeek, Kimi and Gemma 4 marks around a call (`calls_sections`); gpt-oss messages
//! to a function (`harmony`); Llama 3 the whole response as `{"name": ..., "parameters": ...}`.
//! Text that looks like a call but is not one stays text.

use crate::ChatTemplate;
use crate::call_end::{CLOSE, CallEnd, OPEN};
use crate::calls_form::Form;
use crate::calls_keys;
use crate::calls_sections::Sections;
use crate::calls_xml::{self, Tool};
use crate::harmony::Harmony;
use crate::said::{Said, arguments_of, overlap, push_text, written_arguments};
use plimsoll_base::json_marked;
use serde_json::{Map, Value};

/// Most calls of a response whose end is searched for again, because what was found is none.
const AGAIN_MAX: u32 = 64;
/// Marker that Llama 3 may write before a call.
const PYTHON_TAG: &str = "<|python_tag|>";

/// Finds the calls in one response, piece by piece, in time linear in the text.
#[derive(Clone, Debug)]
pub enum Calls {
    /// Calls between tags, anywhere in the response.
    Tagged(Tagged),
    /// Calls from a mark on.
    Sections(Sections),
    /// Messages of which some are calls.
    Harmony(Harmony),
    /// A response that is calls, with `;` between them, or has none.
    BareCalls(BareCalls),
}

impl Calls {
    /// Looks for calls of these functions, in the form that the template teaches.
    pub fn new(template: Option<&ChatTemplate>, tools: Vec<Tool>) -> Calls {
        match form_of(template) {
            Form::Harmony => Calls::Harmony(Harmony::new(!tools.is_empty())),
            Form::Tagged { has_keys } => Calls::Tagged(Tagged { tools, has_keys, ..Tagged::default() }),
            Form::Sections(marks) => Calls::Sections(Sections::new(marks)),
            Form::Bare => Calls::BareCalls(BareCalls { tools, ..BareCalls::default() }),
        }
    }

    /// Returns true if a response is parsed: functions may be called, or the format tells thinking from text.
    pub fn are_in(template: Option<&ChatTemplate>, has_tools: bool) -> bool {
        has_tools || form_of(template) == Form::Harmony
    }

    /// Finds the calls in a whole response.
    pub fn in_response(template: Option<&ChatTemplate>, tools: Vec<Tool>, response: &str) -> Vec<Said> {
        let mut calls = Calls::new(template, tools);
        let mut said = calls.push(response);
        said.extend(calls.finish());
        said
    }

    /// Takes more of the response. Returns the pieces that are certain.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        let mut said = Vec::new();
        match self {
            Calls::Tagged(calls) => calls.push(text, &mut said),
            Calls::Sections(calls) => calls.push(text, &mut said),
            Calls::Harmony(calls) => calls.push(text, &mut said),
            Calls::BareCalls(calls) => calls.push(text, &mut said),
        }
        said
    }

    /// Returns the text held back, at the end of the response.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        match self {
            Calls::Tagged(calls) => calls.finish(&mut said),
            Calls::Sections(calls) => calls.finish(&mut said),
            Calls::Harmony(calls) => calls.finish(&mut said),
            Calls::BareCalls(calls) => {
                let held = std::mem::take(&mut calls.held);
                let found = if calls.inside { calls.calls_of(&held) } else { None };
                match found {
                    Some(found) => said = found,
                    None => push_text(&mut said, &held),
                }
            }
        }
        said
    }
}

/// Returns the form that a template teaches.
fn form_of(template: Option<&ChatTemplate>) -> Form {
    template.map_or(Form::Bare, ChatTemplate::form)
}

#[derive(Clone, Debug, Default)]
pub struct Tagged {
    tools: Vec<Tool>,
    /// True if the template teaches tags for keys and values.
    has_keys: bool,
    /// White space after the last text: it separates a call, or belongs to the next text.
    gap: String,
    /// The possible beginning of a tag; or an open tag and the text after it.
    held: String,
    /// How far the text after an open tag was searched for its end.
    inside: Option<CallEnd>,
    /// How often an end was searched for again.
    again: u32,
}

impl Tagged {
    fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        let mut held = std::mem::take(&mut self.held);
        held.push_str(text);
        let mut from = 0;
        loop {
            let rest = &held[from..];
            if let Some(search) = &mut self.inside {
                let Some(end) = search.find(&rest[OPEN.len()..]).map(|end| OPEN.len() + end) else { break };
                from += self.call(&rest[..end], said);
            } else if let Some(start) = rest.find(OPEN) {
                self.text(&rest[..start], said);
                let again = self.again < AGAIN_MAX;
                self.inside = Some(if again { CallEnd::default() } else { CallEnd::first() });
                from += start;
            } else {
                let solid = rest.len() - overlap(rest, OPEN);
                self.text(&rest[..solid], said);
                from += solid;
                break;
            }
        }
        held.drain(..from);
        self.held = held;
    }

    /// Takes the text of a tag that no tag closed: a call whose object is complete, or as far as the first closing tag.
    fn finish(&mut self, said: &mut Vec<Said>) {
        while self.again < AGAIN_MAX && self.inside.take().is_some() {
            let held = std::mem::take(&mut self.held);
            if let Some(call) = self.tagged_call(&held[OPEN.len()..]) {
                self.gap.clear();
                said.push(call);
                return;
            }
            let Some(at) = held.find(CLOSE) else {
                self.held = held;
                break;
            };
            let (whole, rest) = held.split_at(at + CLOSE.len());
            self.again += 1;
            self.call(whole, said);
            self.push(rest, said);
        }
        self.inside = None;
        push_text(said, &std::mem::take(&mut self.gap));
        push_text(said, &std::mem::take(&mut self.held));
    }

    fn text(&mut self, text: &str, said: &mut Vec<Said>) {
        let solid = text.trim_end();
        if !solid.is_empty() {
            push_text(said, &std::mem::take(&mut self.gap));
            push_text(said, solid);
        }
        self.gap.push_str(&text[solid.len()..]);
    }

    /// Takes the text from tag to tag; if it is no call, only as far as the first closing tag. Returns its length.
    fn call(&mut self, whole: &str, said: &mut Vec<Said>) -> usize {
        self.inside = None;
        let gap = std::mem::take(&mut self.gap);
        match self.tagged_call(&whole[OPEN.len()..whole.len() - CLOSE.len()]) {
            Some(call) => {
                said.push(call);
                whole.len()
            }
            None => {
                let first = whole.find(CLOSE).map_or(whole.len(), |at| at + CLOSE.len());
                self.again += u32::from(first < whole.len());
                push_text(said, &gap);
                push_text(said, &whole[..first]);
                first
            }
        }
    }
}

impl Tagged {
    /// Reads a call between two tags. Numbers in it keep their digits.
    fn tagged_call(&self, text: &str) -> Option<Said> {
        let written = |arguments: &Value| written_arguments(text, arguments);
        let by_keys = || calls_keys::call(text, &self.tools).filter(|_| self.has_keys);
        if let Some((name, arguments)) = calls_xml::call(text, &self.tools).or_else(by_keys) {
            return Some(Said::Call { name, arguments: written(&Value::Object(arguments)) });
        }
        let Value::Object(mut call) = json_marked(text).ok()? else { return None };
        let name = call.remove("name")?.as_str().filter(|name| !name.is_empty())?.to_string();
        let arguments = arguments_of(&mut call)?;
        arguments.is_object().then(|| Said::Call { name, arguments: written(&arguments) })
    }
}

#[derive(Clone, Debug, Default)]
pub struct BareCalls {
    tools: Vec<Tool>,
    held: String,
    /// Bytes of `held` before a possible call: white space and one tag.
    lead: usize,
    has_tag: bool,
    /// True if it begins like a call.
    inside: bool,
    /// True once it cannot be a call.
    is_text: bool,
}

impl BareCalls {
    fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        if self.is_text {
            return push_text(said, text);
        }
        self.held.push_str(text);
        while !self.inside {
            let start = self.held[self.lead..].trim_start();
            self.lead = self.held.len() - start.len();
            if !self.has_tag && start.starts_with(PYTHON_TAG) {
                (self.has_tag, self.lead) = (true, self.lead + PYTHON_TAG.len());
                continue;
            }
            if start.is_empty() || (!self.has_tag && PYTHON_TAG.starts_with(start)) {
                return;
            }
            self.inside = start.starts_with('{');
            if !self.inside {
                self.is_text = true;
                return push_text(said, &std::mem::take(&mut self.held));
            }
        }
    }

    /// Returns the calls of a response that is nothing else.
    fn calls_of(&self, text: &str) -> Option<Vec<Said>> {
        let text = text.trim();
        let mut rest = text.strip_prefix(PYTHON_TAG).unwrap_or(text);
        let mut calls = Vec::new();
        while !rest.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Map<String, Value>>();
            values.next()?.ok()?;
            let (object, after) = rest.split_at(values.byte_offset());
            let Value::Object(mut call) = json_marked(object).ok()? else { return None };
            rest = after.trim();
            if !rest.is_empty() {
                rest = rest.strip_prefix(';')?.trim();
            }
            let name = call
                .get("name")?
                .as_str()
                .filter(|name| self.tools.iter().any(|tool| tool.name == *name))?
                .to_string();
            if !call.contains_key("parameters") && !call.contains_key("arguments") {
                return None;
            }
            let arguments = arguments_of(&mut call)?;
            let written = || written_arguments(object, &arguments);
            calls.push(Said::Call { name, arguments: arguments.is_object().then(written)? });
        }
        Some(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::said::joined;

    const TAGGED: &str = "{% if tools %}<tool_call>{% endif %}";
    const KEYS: &str = "{% if tools %}<tool_call>{name}<arg_key>{k}</arg_key>{% endif %}";
    const WHOLE: &str = "{% if tools %}{\"name\": 1, \"parameters\": 2}{% endif %}{{ messages }}";

    /// Returns what a response parses to in pieces of `size` bytes, with text joined.
    fn parse(template: &str, text: &str, size: usize) -> Vec<Said> {
        let template = ChatTemplate::new(template, &[]).unwrap();
        let mut calls = Calls::new(
            Some(&template),
            Tool::all(&["add", "now"].map(|name| serde_json::json!({ "function": { "name": name } }))),
        );
        let mut said: Vec<Said> = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            said.extend(calls.push(std::str::from_utf8(piece).unwrap()));
        }
        said.extend(calls.finish());
        joined(said)
    }

    fn check(template: &str, text: &str, expect: &[Said]) {
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(parse(template, text, size), expect, "{text:?} in pieces of {size}");
        }
    }

    fn words(text: &str) -> Said {
        Said::Text(text.into())
    }

    fn call(name: &str, arguments: &str) -> Said {
        Said::Call { name: name.into(), arguments: arguments.into() }
    }

    #[test]
    fn calls_with_tags_for_keys_are_found_where_the_template_has_them() {
        let text = "So:\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n<tool_call>now</tool_call>";
        check(KEYS, text, &[words("So:"), call("add", "{\"a\":[1,2]}"), call("now", "{}")]);
        check(KEYS, "<tool_call>later</tool_call>", &[words("<tool_call>later</tool_call>")]);
        check(KEYS, "<tool_call>add\n<arg_key>a</arg_key>", &[words("<tool_call>add\n<arg_key>a</arg_key>")]);
        check(TAGGED, "<tool_call>now</tool_call>", &[words("<tool_call>now</tool_call>")]);
    }

    #[test]
    fn tagged_calls_are_found_and_what_is_none_stays_text() {
        for (text, expect) in [
            ("2 < 3 <tool", vec![words("2 < 3 <tool")]),
            (
                "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": [2]}}\n</tool_call>",
                vec![words("Let me see."), call("add", "{\"b\":1,\"a\":[2]}")],
            ),
            (
                "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"x\"}</tool_call>",
                vec![call("add", "{}"), call("x", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call> done ",
                vec![call("add", "{\"a\":1}"), words(" done ")],
            ),
            ("<tool_call>not json</tool_call>", vec![words("<tool_call>not json</tool_call>")]),
            ("a \n<tool_call>[]</tool_call>\n", vec![words("a \n<tool_call>[]</tool_call>\n")]),
            (
                "<tool_call>{\"arguments\":{}}</tool_call>",
                vec![words("<tool_call>{\"arguments\":{}}</tool_call>")],
            ),
            ("<tool_call>{\"name\":\"add\"", vec![words("<tool_call>{\"name\":\"add\"")]),
            ("  \n", vec![words("  \n")]),
            (
                "So:\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n",
                vec![words("So:"), call("add", "{\"a\":\"1\"}"), words("\n")],
            ),
            (
                "<tool_call><function=add><parameter=a>1</tool_call>",
                vec![words("<tool_call><function=add><parameter=a>1</tool_call>")],
            ),
        ] {
            check(TAGGED, text, &expect);
        }
    }

    /// A closing tag in an argument ended the call, and a call had no arguments if they had another name.
    #[test]
    fn r_a_call_ended_before_its_object() {
        let inner = "{\"name\":\"edit\",\"arguments\":{\"text\":\"see </tool_call> \\\" here\"}}";
        let edit = call("edit", "{\"text\":\"see </tool_call> \\\" here\"}");
        let xml = "<function=edit>\n<parameter=text>\nsee </tool_call> here\n</parameter>\n</function>";
        let no_call = "<tool_call>{\"name\":\"edit\",\"args\":{\"text\":\"x\"}}</tool_call>";
        let flat = "<tool_call>{\"name\":\"edit\",\"arguments\":{},\"text\":\"x\"}</tool_call>";
        let broken = "<tool_call>{\"name\":\"a\"b\", \"arguments\":{}}</tool_call>";
        for (text, expect) in [
            (format!("<tool_call>{inner}</tool_call>"), vec![edit.clone()]),
            (format!("<tool_call>\n{inner}\n</tool_call> ok"), vec![edit.clone(), words(" ok")]),
            (format!("<tool_call>{inner}"), vec![edit.clone()]),
            (format!("so\n<tool_call>\n{inner}\n"), vec![words("so"), edit.clone()]),
            (
                format!("<tool_call>{xml}</tool_call>"),
                vec![call("edit", "{\"text\":\"see </tool_call> here\"}")],
            ),
            (
                "<tool_call>{\"name\":\"edit\",\"parameters\":{\"text\":\"x\"}}</tool_call>".into(),
                vec![call("edit", "{\"text\":\"x\"}")],
            ),
            (no_call.into(), vec![words(no_call)]),
            (
                "<tool_call>{\"name\":\"edit\",\"arguments\":{},\"parameters\":{\"text\":\"x\"}}</tool_call>".into(),
                vec![call("edit", "{\"text\":\"x\"}")],
            ),
            (
                "<tool_call>{\"name\":\"edit\",\"parameters\":null,\"arguments\":{\"text\":\"x\"}}</tool_call>".into(),
                vec![call("edit", "{\"text\":\"x\"}")],
            ),
            ("<tool_call>{\"name\":\"now\",\"arguments\":null}</tool_call>".into(), vec![call("now", "{}")]),
            ("<tool_call>{\"name\":\"now\",\"arguments\":\"\"}</tool_call>".into(), vec![call("now", "{}")]),
            ("<tool_call>{\"name\":\"now\",\"id\":\"1\"}</tool_call>".into(), vec![call("now", "{}")]),
            (flat.into(), vec![words(flat)]),
            (format!("{broken}\n<tool_call>{inner}</tool_call>"), vec![words(broken), edit.clone()]),
            (format!("{broken} <tool_call>{inner}</tool_call>"), vec![words(broken), edit.clone()]),
            (
                format!("<tool_call>{{\"a</tool_call>{inner}"),
                vec![words(&format!("<tool_call>{{\"a</tool_call>{inner}"))],
            ),
        ] {
            check(TAGGED, &text, &expect);
        }
    }

    #[test]
    fn r_arguments_lost_digits() {
        let digits = "{\"a\":12345678901234567890123,\"b\":0.12345678901234567890}";
        for (template, text) in [
            (TAGGED, format!("<tool_call>{{\"name\":\"add\",\"arguments\":{digits}}}</tool_call>")),
            (WHOLE, format!("{{\"name\":\"add\",\"parameters\":{digits}}}")),
        ] {
            check(template, &text, &[call("add", digits)]);
        }
    }

    /// A response of open tags was searched from its beginning for each of its tokens.
    #[test]
    fn r_an_open_tag_was_searched_again_and_again() {
        let template = ChatTemplate::new(TAGGED, &[]).unwrap();
        for text in [OPEN.repeat(100_000), format!("{OPEN}{}", " ".repeat(1 << 20)), " ".repeat(1 << 20)] {
            let mut calls = Calls::new(Some(&template), Vec::new());
            let mut said: Vec<Said> =
                text.as_bytes().chunks(1).flat_map(|c| calls.push(std::str::from_utf8(c).unwrap())).collect();
            said.extend(calls.finish());
            assert_eq!(joined(said), [Said::Text(text)]);
        }
    }

    #[test]
    fn a_whole_response_is_calls_of_known_functions_or_text() {
        for (text, expect) in [
            ("{\"name\": \"add\", \"parameters\": {\"a\": 1}}", vec![call("add", "{\"a\":1}")]),
            (" <|python_tag|>{\"name\": \"now\", \"arguments\": {}}", vec![call("now", "{}")]),
            (
                "{\"name\":\"add\",\"parameters\":{}}; {\"name\":\"now\",\"parameters\":{}}",
                vec![call("add", "{}"), call("now", "{}")],
            ),
            (
                "{\"name\": \"other\", \"parameters\": {}}",
                vec![words("{\"name\": \"other\", \"parameters\": {}}")],
            ),
            ("{\"answer\": 4}", vec![words("{\"answer\": 4}")]),
            (
                "{\"name\": \"add\", \"parameters\": {}, \"arguments\": {\"a\": 1}}",
                vec![call("add", "{\"a\":1}")],
            ),
            ("{\"name\": \"now\", \"parameters\": null}", vec![call("now", "{}")]),
            (
                "{\"name\": \"add\", \"parameters\": {}, \"a\": 1}",
                vec![words("{\"name\": \"add\", \"parameters\": {}, \"a\": 1}")],
            ),
            (
                "{\"name\": \"add\", \"parameters\": {}} and more",
                vec![words("{\"name\": \"add\", \"parameters\": {}} and more")],
            ),
            ("{\"name\": \"add\", \"param", vec![words("{\"name\": \"add\", \"param")]),
            ("<|python_tag|>print(1)", vec![words("<|python_tag|>print(1)")]),
            ("It is {4}.", vec![words("It is {4}.")]),
            ("<|py", vec![words("<|py")]),
        ] {
            check(WHOLE, text, &expect);
        }
    }
}
