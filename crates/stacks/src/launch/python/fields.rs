//! Reads `key: type = value` in the classes of a Python file, the form of Open-Reasoner-Zero's configuration.

use super::EXPRESSION;
use crate::launch::config::strip_comment;
use crate::launch::shell::word::VALUE_BYTES_MAX;
use crate::setting::{Setting, number, split, unquote};

/// Returns `key: type = value` and `key = value` inside the classes of a file.
pub(crate) fn class_fields(text: &str) -> Vec<Setting> {
    let mut given = Vec::new();
    let (mut inside, mut lines) = (false, text.lines().enumerate().peekable());
    while let Some((at, line)) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let content = strip_comment(line).trim().to_string();
        if indent == 0 && !content.is_empty() {
            inside = content.starts_with("class ") && content.contains("Config");
            continue;
        }
        // Fields are at the first level; deeper lines belong to functions.
        if !inside || indent != 4 {
            continue;
        }
        let Some((left, right)) = content.split_once('=') else { continue };
        let key = left.split(':').next().unwrap_or_default().trim();
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let mut value = right.trim().to_string();
        let mut depth = depth_of(&value);
        while depth > 0 && value.len() < VALUE_BYTES_MAX {
            let Some((_, more)) = lines.next() else { break };
            let more = strip_comment(more).trim();
            depth += depth_of(more);
            value += " ";
            value += more;
        }
        given.push(Setting { line: at + 1, ..literal(key, &value) });
    }
    given
}

/// Returns the number of brackets that a text opens, less those that it closes.
fn depth_of(text: &str) -> i64 {
    let brackets = text.chars().map(|c| match c {
        '[' | '(' | '{' => 1,
        ']' | ')' | '}' => -1,
        _ => 0,
    });
    brackets.sum()
}

/// Reads a Python literal; of Open-Reasoner-Zero's `A if not DEBUG_MODE else B`, A.
fn literal(key: &str, value: &str) -> Setting {
    let value = value.split(" if not DEBUG_MODE else ").next().unwrap_or_default().trim();
    let inner =
        value.strip_prefix("ListConfig(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(value).trim();
    let is_text = |text: &str| unquote(text) != text && !unquote(text).contains(['"', '\'', '\\']);
    let is_atom =
        |text: &str| is_text(text) || number(text).is_some() || matches!(text, "True" | "False" | "None");
    let bracketed = inner.starts_with(['[', '(']) && inner.ends_with([']', ')']);
    let items = if bracketed { split(&inner[1..inner.len() - 1], ',') } else { Vec::new() };
    let taken = is_atom(inner)
        || (bracketed && items.iter().map(|item| item.trim()).all(|item| item.is_empty() || is_atom(item)));
    if taken {
        Setting::new(key, unquote(inner), 0)
    } else {
        Setting { unreadable: Some(EXPRESSION), ..Setting::new(key, value, 0) }
    }
}
