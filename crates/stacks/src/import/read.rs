//! Settings as text: shell command lines, flat YAML, JSON, and literals of Python. Nothing is run.

use super::draft::Given;
use std::collections::BTreeMap;

/// Longest value after a variable is filled in: variables may name each other, and must not grow without end.
const VALUE_BYTES_MAX: usize = 1 << 16;
const EXPRESSION: &str = "an expression, which is not run";
const VARIABLE: &str = "holds a variable that the file does not set";

/// A whole number, also as `1_000` or `1e3`.
pub(super) fn integer(text: &str) -> Option<i64> {
    let text = text.trim().replace('_', "");
    text.parse().ok().or_else(|| {
        // f64 counts exactly up to 2^53.
        text.parse::<f64>().ok().filter(|v| v.fract() == 0.0 && v.abs() < 9e15).map(|v| v as i64)
    })
}

/// A finite number.
pub(super) fn number(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse::<f64>().ok().filter(|value| value.is_finite())
}

/// `True`, `false`, `1`, or an empty value: a switch without a word behind it.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// The items of `[a, "b"]`, `(a, b)`, `a, b` or `a`, without quotes.
pub(super) fn list(text: &str) -> Vec<String> {
    let inner = text.trim().trim_start_matches(['[', '(']).trim_end_matches([']', ')']);
    split(inner, ',')
        .into_iter()
        .map(|item| unquote(item.trim()).to_string())
        .filter(|item| !item.is_empty())
        .collect()
}

/// Splits at `at` outside quotes and brackets.
fn split(text: &str, at: char) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_i32, None);
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[' | '(' | '{') => depth += 1,
            (None, ']' | ')' | '}') => depth -= 1,
            (None, _) if c == at && depth == 0 => {
                parts.push(&text[start..index]);
                start = index + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unquote(text: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    text
}

/// One word of a command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Word {
    pub text: String,
    /// True if a variable in it is not known.
    pub open: bool,
    /// Where it begins, from 1.
    pub line: usize,
}

/// What a script says: its commands, and the variables that it sets.
pub(super) struct Script {
    pub commands: Vec<Vec<Word>>,
    /// `NAME`, value, line.
    pub variables: Vec<(String, String, usize)>,
}

/// The commands of a shell script: words without quotes, the script's own variables filled in.
pub(super) fn commands(script: &str) -> Vec<Vec<Word>> {
    self::script(script).commands
}

/// The commands of a shell script and the variables that stand before or between them.
pub(super) fn script(script: &str) -> Script {
    let chars: Vec<char> = script.chars().collect();
    let mut line = 1;
    let lines = chars
        .iter()
        .map(|&c| {
            let own = line;
            line += u32::from(c == '\n');
            own
        })
        .collect();
    let mut shell = Shell { chars, lines, at: 0, variables: BTreeMap::new(), assigned: Vec::new() };
    let mut commands = Vec::new();
    while shell.at < shell.chars.len() {
        let words = shell.command();
        if !words.is_empty() {
            commands.push(words);
        }
    }
    Script { commands, variables: shell.assigned }
}

struct Shell {
    chars: Vec<char>,
    /// The line of each character.
    lines: Vec<u32>,
    at: usize,
    variables: BTreeMap<String, String>,
    /// Every assignment in its order.
    assigned: Vec<(String, String, usize)>,
}

impl Shell {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Up to the end of a line that is not continued, `;`, `&` or `|`.
    fn command(&mut self) -> Vec<Word> {
        let mut words: Vec<Word> = Vec::new();
        while let Some(c) = self.peek(0) {
            match c {
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' if self.peek(1) == Some('\r') && self.peek(2) == Some('\n') => self.at += 3,
                '\n' | ';' | '&' | '|' => {
                    self.at += 1;
                    break;
                }
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                c if c.is_whitespace() => self.at += 1,
                _ => {
                    let word = self.word();
                    let is_head = words.is_empty();
                    if !(is_head && (word.text == "export" || self.assigns(&word))) {
                        words.push(word);
                    }
                }
            }
        }
        words
    }

    /// Keeps `NAME=value` at the head of a command.
    fn assigns(&mut self, word: &Word) -> bool {
        let Some((name, value)) = word.text.split_once('=') else { return false };
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_name && !word.open {
            self.variables.insert(name.into(), value.into());
            self.assigned.push((name.into(), value.into(), word.line));
        }
        is_name
    }

    fn word(&mut self) -> Word {
        let line = self.lines.get(self.at).map_or(0, |&line| line as usize);
        let (mut word, mut quote) = (Word { line, ..Word::default() }, None);
        while let Some(c) = self.peek(0) {
            self.at += 1;
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (Some('\''), _) => word.text.push(c),
                (_, '$') => self.variable(&mut word),
                (_, '`') => {
                    word.open = true;
                    word.text.push(c);
                }
                (_, '\\') if self.peek(0) == Some('\n') => self.at += 1,
                (_, '\\') if quote.is_none() || self.peek(0).is_some_and(|c| "\"\\$`".contains(c)) => {
                    word.text.extend(self.peek(0));
                    self.at += 1;
                }
                (None, _) if c.is_whitespace() || matches!(c, ';' | '&' | '|') => {
                    self.at -= 1;
                    break;
                }
                _ => word.text.push(c),
            }
        }
        word
    }

    /// `$NAME`, `${NAME}`, `${NAME:-default}`; anything else stays as it is written.
    fn variable(&mut self, word: &mut Word) {
        let braced = self.peek(0) == Some('{');
        let start = self.at + usize::from(braced);
        let mut end = start;
        while self.chars.get(end).is_some_and(|&c| c.is_ascii_alphanumeric() || c == '_') {
            end += 1;
        }
        let name: String = self.chars[start.min(self.chars.len())..end].iter().collect();
        let mut default = None;
        if braced {
            let close = self.chars[end..].iter().take(VALUE_BYTES_MAX).position(|&c| c == '}');
            let Some(close) = close else {
                word.open = true;
                word.text.push('$');
                return;
            };
            let inside: String = self.chars[end..end + close].iter().collect();
            default = inside.strip_prefix(":-").or(inside.strip_prefix('-')).map(str::to_string);
            end += close + 1;
        }
        match self.variables.get(&name).cloned().or(default) {
            Some(value) if !name.is_empty() && word.text.len() + value.len() <= VALUE_BYTES_MAX => {
                word.text += &value;
            }
            _ => {
                word.open = true;
                word.text.push('$');
                word.text.extend(&self.chars[self.at..end]);
            }
        }
        self.at = end;
    }
}

/// `--flag value value`, `--flag=value` and `--switch`; words before the first flag keep their own name.
pub(super) fn flags(words: &[Word]) -> Vec<Given> {
    let mut given: Vec<Given> = Vec::new();
    for word in words {
        let unreadable = word.open.then_some(VARIABLE);
        match (word.text.strip_prefix("--").filter(|name| !name.is_empty()), given.last_mut()) {
            (Some(name), _) => {
                let (key, value) = name.split_once('=').unwrap_or((name, ""));
                given.push(Given { key: key.into(), value: value.into(), unreadable, line: word.line });
            }
            (None, Some(last)) => {
                last.value += if last.value.is_empty() { "" } else { ", " };
                last.value += &word.text;
                last.unreadable = last.unreadable.or(unreadable);
            }
            (None, None) => {
                let (key, line) = (word.text.clone(), word.line);
                given.push(Given { key, value: String::new(), unreadable, line });
            }
        }
    }
    given
}

/// `key=value`, `+key=value`; a word without `=` keeps its own name.
pub(super) fn overrides(words: &[Word]) -> Vec<Given> {
    let one = |word: &Word| {
        let (key, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
        Given {
            key: key.trim_start_matches('+').into(),
            value: unquote(value).into(),
            unreadable: word.open.then_some(VARIABLE),
            line: word.line,
        }
    };
    words.iter().map(one).collect()
}

/// `key: value`, lists in brackets or with dashes; a nested key is `outer.inner`.
pub(super) fn yaml(text: &str) -> Vec<Given> {
    let mut given: Vec<Given> = Vec::new();
    let mut outer: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (content, line) = (strip_comment(line), index + 1);
        let (indent, content) = (content.len() - content.trim_start().len(), content.trim());
        if content.is_empty() || content == "---" {
            continue;
        }
        if let Some(item) = content.strip_prefix("- ") {
            if let Some(last) = given.last_mut() {
                last.value += if last.value.is_empty() { "" } else { ", " };
                last.value += unquote(item.trim());
            }
            continue;
        }
        let Some((key, value)) = content.split_once(':') else {
            given.push(Given {
                key: content.into(),
                value: String::new(),
                unreadable: Some("not read as YAML"),
                line,
            });
            continue;
        };
        while outer.last().is_some_and(|(depth, _)| *depth >= indent) {
            outer.pop();
        }
        let path: Vec<&str> =
            outer.iter().map(|(_, name)| name.as_str()).chain([unquote(key.trim())]).collect();
        let value = unquote(value.trim());
        given.push(Given { key: path.join("."), value: value.into(), unreadable: None, line });
        if value.is_empty() {
            // A section, or a list: its own line goes if sections follow.
            outer.push((indent, unquote(key.trim()).into()));
        }
    }
    let sections: Vec<String> = given.iter().map(|one| format!("{}.", one.key)).collect();
    let is_section = |index: usize| {
        given[index].value.is_empty()
            && given.get(index + 1).is_some_and(|next| next.key.starts_with(&sections[index]))
    };
    let keep: Vec<bool> = (0..given.len()).map(|index| !is_section(index)).collect();
    given.into_iter().zip(keep).filter_map(|(one, keep)| keep.then_some(one)).collect()
}

/// A JSON object; nested keys are `outer.inner`.
pub(super) fn json(text: &str) -> Option<Vec<Given>> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let mut given = Vec::new();
    flatten("", value.as_object()?, &mut given);
    Some(given)
}

fn flatten(path: &str, object: &serde_json::Map<String, serde_json::Value>, given: &mut Vec<Given>) {
    use serde_json::Value;
    for (key, value) in object {
        let key = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let value = match value {
            Value::Object(inner) => {
                flatten(&key, inner, given);
                continue;
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        given.push(Given { key, value, unreadable: None, line: 0 });
    }
}

/// Fills in `${path.of.another}` and `${oc.select:path.of.another,default}` where they are a whole value, as OmegaConf
/// does; what names no value of the file stays as it is written, and is listed.
pub(super) fn interpolate(mut given: Vec<Given>) -> Vec<Given> {
    let values: BTreeMap<String, String> =
        given.iter().map(|one| (one.key.clone(), one.value.clone())).collect();
    for one in given.iter_mut().filter(|one| one.value.contains("${")) {
        match resolved(&one.value, &values) {
            Some(value) => one.value = value,
            None => one.unreadable = Some(VARIABLE),
        }
    }
    given
}

/// The value behind `text`, which may name another that names another, a few times over.
fn resolved(text: &str, values: &BTreeMap<String, String>) -> Option<String> {
    let mut text = text.to_string();
    for _ in 0..8 {
        if !text.contains("${") {
            return Some(text);
        }
        let inside = text.strip_prefix("${")?.strip_suffix('}')?;
        let (path, default) = match inside.strip_prefix("oc.select:") {
            Some(select) => select.split_once(',').map_or((select, None), |(path, rest)| (path, Some(rest))),
            None => (inside, None),
        };
        text = values.get(path.trim()).cloned().or(default.map(|text| text.trim().to_string()))?;
    }
    None
}

/// The text without a `#` comment that stands outside quotes, at the start or after a space.
fn strip_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (index, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            // An apostrophe within a word is no quote.
            (None, '\'' | '"') if !before.is_alphanumeric() => quote = Some(c),
            (None, '#') if before.is_whitespace() => return &line[..index],
            _ => {}
        }
        before = c;
    }
    line
}

/// The keyword arguments of every call whose name ends in one of `names`: `key=literal`.
pub(super) fn calls(text: &str, names: &[&str]) -> Vec<Given> {
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
                    given.push(Given { line, ..literal(key.trim(), value.trim()) });
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
pub(super) fn class_fields(text: &str) -> Vec<Given> {
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
        given.push(Given { line: at + 1, ..literal(key, &value) });
    }
    given
}

/// A literal of Python; of `A if not DEBUG_MODE else B`, which Open-Reasoner-Zero writes, A.
fn literal(key: &str, value: &str) -> Given {
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
    let given = |value: &str, unreadable| Given { key: key.into(), value: value.into(), unreadable, line: 0 };
    match taken {
        true => given(unquote(inner), None),
        false => given(value, Some(EXPRESSION)),
    }
}
