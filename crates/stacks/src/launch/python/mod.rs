//! Literals of Python: arguments of calls, and fields of configuration classes. Every other expression is named as one.

use super::{config::strip_comment, shell::VALUE_BYTES_MAX};
use crate::setting::{Setting, number, split, unquote};

const EXPRESSION: &str = "an expression, which is not run";

/// The keyword arguments of every call whose name ends in one of `names`: `key=literal`.
pub(crate) fn calls(text: &str, names: &[&str]) -> Vec<Setting> {
    let clean: String = text.lines().map(|line| format!("{}\n", strip_comment(line))).collect();
    let mut given = Vec::new();
    for name in names {
        for (at, _) in clean.match_indices(&format!("{name}(")) {
            let start = at + name.len() + 1;
            let arguments = &clean[start..];
            let arguments = &arguments[..closing(arguments)];
            for part in split(arguments, ',') {
                let (key, value) = part.split_once('=').unwrap_or((part, ""));
                // A part is a slice of the text, so its place in it is the distance of their starts.
                let begins =
                    part.len() - part.trim_start().len() + (part.as_ptr() as usize - clean.as_ptr() as usize);
                let line = clean[..begins].matches('\n').count() + 1;
                if !key.trim().is_empty() {
                    given.push(Setting { line, ..literal(key.trim(), value.trim()) });
                }
            }
        }
    }
    given
}

/// Where the bracket that is open before `text` closes, or the end.
fn closing(text: &str) -> usize {
    let (mut depth, mut quote) = (0, None);
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, ')') if depth == 0 => return index,
            (None, '[' | '(' | '{') => depth += 1,
            (None, ']' | ')' | '}') => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// `key: type = value` and `key = value` inside the classes of a file.
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
        // Fields stand at the first level; deeper lines are of functions.
        if !inside || indent != 4 {
            continue;
        }
        let Some((left, right)) = content.split_once('=') else { continue };
        let key = left.split(':').next().unwrap_or_default().trim();
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let mut value = right.trim().to_string();
        let open =
            |value: &str| value.matches(['[', '(', '{']).count() > value.matches([']', ')', '}']).count();
        while open(&value) && value.len() < VALUE_BYTES_MAX {
            let Some((_, more)) = lines.next() else { break };
            value += " ";
            value += strip_comment(more).trim();
        }
        given.push(Setting { line: at + 1, ..literal(key, &value) });
    }
    given
}

/// A literal of Python; of `A if not DEBUG_MODE else B`, which Open-Reasoner-Zero writes, A.
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
    match taken {
        true => Setting::new(key, unquote(inner), 0),
        false => Setting { unreadable: Some(EXPRESSION), ..Setting::new(key, value, 0) },
    }
}
