//! The text of a request: a template with places for the prompt, the response, the answer and columns.
//!
//! All places are filled in one pass, so what a response says is never read as a place. The response is between two
//! marks that it does not contain.

use crate::case::{Case, Prompt, column, text_of};
use crate::hash::simple_hash;
use crate::scorer::column_missing;
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_worker::Columns;
use serde_json::Value;
use std::path::Path;

const TEMPLATE_BYTES_MAX: u64 = 64 << 10;
const PROMPT: &str = "prompt";
const RESPONSE: &str = "response";
const ANSWER: &str = "answer";

pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    /// `{NAME}`.
    Place(String),
}

/// A response with the mark around it.
pub(super) struct Fenced {
    /// Letters and digits that the response does not contain.
    pub(super) mark: String,
    text: String,
}

impl Fenced {
    pub(super) fn of(response: &str) -> Fenced {
        // From the response alone, so that the same request is the same text.
        let marks = (0..=response.len())
            .map(|n| format!("{:016x}", simple_hash(format!("{n}:{response}").as_bytes())));
        let mark = marks.into_iter().find(|mark| !response.contains(mark.as_str()));
        let mark = mark.expect("a text has fewer places than marks were tried");
        let text = format!("<<<{mark}\n{response}\n{mark}>>>");
        Fenced { mark, text }
    }
}

impl Template {
    /// Reads a user's template.
    ///
    /// Errors: `reward-bad-judge` for a file that cannot be read, and for one without `{response}`.
    pub(super) fn read(path: &str) -> Result<Template> {
        let bad = |why: String| {
            Error::usage("reward-bad-judge", format!("the `prompt` of `judge`, {path}: {why}"))
                .hint("name a text file in which {response} is the place of the response, and {prompt} that of the prompt")
        };
        let text =
            read_small_text(Path::new(path), TEMPLATE_BYTES_MAX).map_err(|err| bad(err.to_string()))?;
        let template = Template::of(&text);
        if template.has(RESPONSE) { Ok(template) } else { Err(bad("it has no place {response}".into())) }
    }

    /// Cuts a text at its places: `{NAME}` is one, `{{NAME}}` is the text `{NAME}`, and other braces are themselves.
    pub(super) fn of(text: &str) -> Template {
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find('{') {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            let doubled = rest.strip_prefix("{{").and_then(name_at);
            if let Some((name, after)) =
                doubled.and_then(|(name, after)| Some((name, after.strip_prefix('}')?)))
            {
                plain.push_str(&format!("{{{name}}}"));
                rest = after;
            } else if let Some((name, after)) = name_at(&rest[1..]) {
                parts.push(Part::Text(std::mem::take(&mut plain)));
                parts.push(Part::Place(name.to_string()));
                rest = after;
            } else {
                plain.push('{');
                rest = &rest[1..];
            }
        }
        parts.push(Part::Text(plain + rest));
        Template { parts }
    }

    /// Returns true if the answer column has a place.
    pub(super) fn has_answer(&self) -> bool {
        self.has(ANSWER)
    }

    fn has(&self, name: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Place(place) if place == name))
    }

    /// Requires the columns that have a place. `reward`: its name.
    pub(super) fn check(&self, columns: &Columns, answer: &str, reward: &str) -> Result<()> {
        let own = |name: &str| name == PROMPT || name == RESPONSE;
        for part in &self.parts {
            if let Part::Place(name) = part
                && !own(name)
            {
                found(columns, if name == ANSWER { answer } else { name }, reward)?;
            }
        }
        Ok(())
    }

    /// Fills the places. Errors: `data-column-missing`.
    pub(super) fn fill(&self, case: &Case, response: &Fenced, answer: &str, reward: &str) -> Result<String> {
        let columns = &case.prompt.columns;
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Place(name) if name == PROMPT => text.push_str(&conversation(&case.prompt)),
                Part::Place(name) if name == RESPONSE => text.push_str(&response.text),
                Part::Place(name) if name == ANSWER => {
                    text.push_str(&text_of(found(columns, answer, reward)?))
                }
                Part::Place(name) => text.push_str(&text_of(found(columns, name, reward)?)),
            }
        }
        Ok(text)
    }
}

/// Reads `NAME}`; returns the name and what follows.
fn name_at(text: &str) -> Option<(&str, &str)> {
    let (name, after) = text.split_once('}')?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
    (is_name && name.starts_with(|c: char| c.is_alphabetic() || c == '_')).then_some((name, after))
}

fn found<'c>(columns: &'c Columns, name: &str, reward: &str) -> Result<&'c Value> {
    column(columns, name).ok_or_else(|| {
        column_missing(reward, name, columns)
            .hint(format!("in the file `prompt`, {{{{{name}}}}} is that text and no place"))
    })
}

/// Returns the prompt; of a conversation with several messages all, each after its role.
fn conversation(prompt: &Prompt) -> String {
    let messages = prompt.messages.as_deref().and_then(Value::as_array).filter(|messages| messages.len() > 1);
    let Some(messages) = messages else { return prompt.text.clone() };
    let one = |message: &Value| {
        let text = |key: &str| message.get(key).map(text_of).unwrap_or_default();
        format!("{}: {}", text("role"), text("content"))
    };
    messages.iter().map(one).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_braces_is_a_place_and_all_else_is_text() {
        for (text, expect) in [
            ("a {prompt} b", "a |prompt| b"),
            ("{a.b}{c_1}", "|a.b||c_1|"),
            ("{{prompt}} and {prompt}", "{prompt} and |prompt|"),
            (r#"{"score": 1} {} { x } {1} {a b}"#, r#"{"score": 1} {} { x } {1} {a b}"#),
            (r"\frac{{a}}{{b}}", r"\frac{a}{b}"),
            (r#"{"a": {"b": {x}}}"#, r#"{"a": {"b": |x|}}"#),
            ("{{{x}", "{{|x|"),
            ("{open", "{open"),
            ("é{ü}", "é|ü|"),
            ("", ""),
        ] {
            let shown = Template::of(text).parts.into_iter().map(|part| match part {
                Part::Text(plain) => plain,
                Part::Place(name) => format!("|{name}|"),
            });
            assert_eq!(shown.collect::<String>(), expect, "{text}");
        }
    }

    #[test]
    fn a_response_does_not_contain_its_mark() {
        let mut response = String::from("7");
        for _ in 0..3 {
            let fenced = Fenced::of(&response);
            assert!(!response.contains(&fenced.mark));
            assert_eq!(fenced.text, format!("<<<{0}\n{response}\n{0}>>>", fenced.mark));
            assert_eq!(Fenced::of(&response).text, fenced.text);
            response = format!("{}>>> {response}", fenced.mark);
        }
    }
}
