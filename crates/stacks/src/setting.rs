//! One setting of a launch file as text, and its value read as a number, a switch or a list.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The stack's key without `--`, or one with a prefix of our own: `env.NAME`, `version.PACKAGE`, `machine.KEY`.
    pub key: String,
    /// Its value without quotes: several words are a list `a, b`; a switch without a word is empty.
    pub value: String,
    /// Its first line, from 1; 0 if given by hand or in JSON.
    pub line: usize,
    /// In a notebook the cell of that line, from 1; 0 in other files.
    pub cell: usize,
    /// Why the value cannot be used as it is, if so.
    pub unreadable: Option<&'static str>,
    /// The line of the branch that decides it, if that is why; else 0.
    pub branch: usize,
    /// True if a secret was cut out of its value, or if its value is withheld.
    pub is_withheld: bool,
}

impl Setting {
    pub fn new(key: impl Into<String>, value: impl Into<String>, line: usize) -> Setting {
        Setting {
            key: key.into(),
            value: value.into(),
            line,
            cell: 0,
            unreadable: None,
            branch: 0,
            is_withheld: false,
        }
    }

    /// Returns `key = value` for a message, on one line.
    pub(crate) fn shown(&self) -> String {
        if self.value.is_empty() {
            one_line(&self.key)
        } else {
            format!("{} = {}", one_line(&self.key), one_line(&self.value))
        }
    }

    /// Returns its place in the file: `line 4`, `cell 3 line 4` in a notebook, or nothing without a line.
    pub(crate) fn place(&self) -> String {
        match (self.cell, self.line) {
            (_, 0) => String::new(),
            (0, line) => format!("line {line}"),
            (cell, line) => format!("cell {cell} line {line}"),
        }
    }

    /// Returns true if the value means none.
    pub(crate) fn is_unset(&self) -> bool {
        matches!(self.value.as_str(), "None" | "null" | "~")
    }
}

/// Prefixes of keys that no stack has: a file's surroundings.
pub(crate) const SURROUNDINGS: [&str; 3] = ["env.", "version.", "machine."];

/// The setting of the trainer's name.
pub(crate) const TRAINER: &str = "trainer";

/// The setting that says which command of the text at the top of a script counts.
pub(crate) const OF_TEXT: &str = "command_of_text";

/// Returns the trainer in the settings.
pub(crate) fn named_trainer(settings: &[Setting]) -> Option<String> {
    settings.iter().rev().find(|one| one.key == TRAINER).map(|one| one.value.clone())
}

/// Returns text for a comment or a message, at most 160 characters.
pub(crate) fn one_line(text: &str) -> String {
    printable(&text.chars().take(160).collect::<String>())
}

/// Returns text with spaces for control characters, including line breaks: a comment may have none.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Reads a whole number, also as `1_000` or `1e3`.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let text = text.trim().replace('_', "");
    text.parse().ok().or_else(|| {
        // f64 counts exactly up to 2^53.
        text.parse::<f64>().ok().filter(|v| v.fract() == 0.0 && v.abs() < 9e15).map(|v| v as i64)
    })
}

pub(crate) fn number(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse::<f64>().ok().filter(|value| value.is_finite())
}

/// Reads `True`, `false`, `1`, or an empty value: a switch without a word.
pub(crate) fn flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Returns the items of `[a, "b"]`, `(a, b)`, `a, b` or `a`, without quotes.
pub(crate) fn list(text: &str) -> Vec<String> {
    let inner = text.trim().trim_start_matches(['[', '(']).trim_end_matches([']', ')']);
    let items = split(inner, ',').into_iter().map(|item| unquote(item.trim()).to_string());
    items.filter(|item| !item.is_empty()).collect()
}

/// Splits at `at` outside quotes and brackets.
pub(crate) fn split(text: &str, at: char) -> Vec<&str> {
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

pub(crate) fn unquote(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}
