//! Finds values after names of secrets in any notation and within other text: `api_key="..."`, `"api_key": "..."`,
//! `Authorization: Bearer ...`, `token: ...`.

use super::names::is_name_of_secret;
use super::values::{WITHHELD, is_mixed, is_open};

/// Names of one word that prose too has before a colon: the value must look like a key.
const OF_PROSE: [&str; 9] =
    ["token", "key", "auth", "pass", "pat", "cookie", "bearer", "credential", "credentials"];
/// Prefixes of a header's value, before the secret.
const SCHEMES: [&str; 7] = ["bearer", "basic", "token", "digest", "apikey", "api-key", "negotiate"];
/// Names whose value may have several words, up to the end of the line.
const OF_LINES: [&str; 6] = ["authorization", "cookie", "passw", "passphrase", "passcode", "mnemonic"];
/// Lists what may follow a value without quotes.
const CLOSERS: [char; 5] = [',', ';', ')', ']', '}'];
const WANDB_KEY_CHARS: usize = 40;

pub(super) fn without_values(text: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(is_of_name) {
        let name = &rest[start..];
        let name = &name[..name.find(|c| !is_of_name(c)).unwrap_or(name.len())];
        let after = &rest[start + name.len()..];
        clean += &rest[..start + name.len()];
        rest = after;
        if let Some((before, value)) = value_of(name, after) {
            clean += &after[..before];
            clean += WITHHELD;
            rest = &after[before + value..];
        }
    }
    clean + rest
}

/// Returns true for the form of W&B's keys, which git commits have too.
pub(super) fn is_wandb_key(text: &str) -> bool {
    text.len() == WANDB_KEY_CHARS && text.chars().all(|c| c.is_ascii_hexdigit())
}

pub(super) fn is_of_wandb(name: &str) -> bool {
    name.to_ascii_lowercase().contains("wandb")
}

/// Returns the start in `after` of the value of `name`, and its length; `None` if there is none, or nothing secret.
fn value_of(name: &str, after: &str) -> Option<(usize, usize)> {
    let is_secret = is_name_of_secret(name);
    if !is_secret && !is_of_wandb(name) {
        return None;
    }
    // `"token": ...` and `os.environ["HF_TOKEN"] = ...` close the name first.
    let rest = after.trim_start_matches(['\\', '"', '\'', '`', ']']);
    let rest = rest.trim_start_matches([' ', '\t']);
    let colon = rest.starts_with(':') && !rest.starts_with(":=") && !rest.starts_with("://");
    let opened = [":=", "=>", "==", "=", ":"].iter().find_map(|sign| rest.strip_prefix(sign))?;
    if rest.starts_with("://") || opened.starts_with(':') {
        return None;
    }
    let has_blank = opened.starts_with([' ', '\t']);
    let value = opened.trim_start_matches([' ', '\t']);
    if is_secret && is_call(value) {
        return None;
    }
    // A word longer than a W&B key is not one.
    let end = if is_secret { value.len() } else { value.floor_char_boundary(2 * WANDB_KEY_CHARS) };
    let (opening, length) = extent(name, &value[..end], has_blank);
    let shown = &value[opening..opening + length];
    let is_prose =
        colon && has_blank && opening == 0 && OF_PROSE.contains(&name.to_ascii_lowercase().as_str());
    let is_cut =
        if is_secret { !is_open(shown) && (!is_prose || is_mixed(shown)) } else { is_wandb_key(shown) };
    (is_cut && length > 0).then_some((after.len() - value.len() + opening, length))
}

/// Returns the lengths of a value's opening quote and of the value. `has_blank`: it is a line, as of a header.
fn extent(name: &str, value: &str, has_blank: bool) -> (usize, usize) {
    // `f"..."` of Python, and `\"...\"` of JSON within a string.
    let bare = value.trim_start_matches(['f', 'r', 'b', 'u', 'F', 'R', 'B']);
    let quoted = bare.trim_start_matches('\\');
    let quote = quoted.chars().next().filter(|c| ['"', '\'', '`'].contains(c));
    if let Some(quote) = quote.filter(|_| value.len() - bare.len() <= 2) {
        let escapes = bare.len() - quoted.len();
        let inner = &quoted[1..];
        let triple = ["\"\"\"", "\'\'\'"].iter().find(|quotes| quoted.starts_with(**quotes));
        if let Some(quotes) = triple {
            let inner = &quoted[quotes.len()..];
            return (value.len() - inner.len(), inner.find(quotes).unwrap_or(inner.len()));
        }
        return (value.len() - inner.len(), closing(inner, quote, escapes));
    }
    let pairs = [("[", ']'), ("(", ')'), ("{", '}'), ("${", '}')];
    if let Some(close) = pairs.iter().find(|pair| value.starts_with(pair.0) && !value.starts_with(WITHHELD)) {
        let length = value.find(close.1).map_or(value.len(), |end| end + 1);
        let more = &value[length..];
        return (0, length + more[..word_end(more)].trim_end_matches(CLOSERS).len());
    }
    let lower = name.to_ascii_lowercase();
    let end_of_line = value.find(['\n', '\r', '"', '\'', '`']).unwrap_or(value.len());
    let is_line = OF_LINES.iter().any(|of| lower.contains(of)) && (has_blank || lower.ends_with("cookie"));
    if is_line {
        return (0, value[..end_of_line].trim_end().len());
    }
    if value.starts_with(WITHHELD) {
        return (0, WITHHELD.len());
    }
    let end = word_end(value);
    let is_scheme =
        SCHEMES.iter().any(|scheme| value[..end].trim_end_matches('\\').eq_ignore_ascii_case(scheme));
    let blanks = value[end..].len() - value[end..].trim_start_matches([' ', '\t']).len();
    let end = if is_scheme && blanks > 0 { end + blanks + word_end(&value[end + blanks..]) } else { end };
    (0, value[..end].trim_end_matches(CLOSERS).len())
}

/// Returns the length of the text before its closing quote: one with as many backslashes as the opening one.
fn closing(text: &str, quote: char, escapes: usize) -> usize {
    let mut backslashes = 0;
    for (at, c) in text.char_indices() {
        match c {
            '\\' => backslashes += 1,
            c if c == quote && (backslashes == escapes || (escapes == 0 && backslashes % 2 == 0)) => {
                return at - escapes;
            }
            _ => backslashes = 0,
        }
    }
    text.len()
}

/// Returns the end of a word: unescaped white space, or a quote; neither ends it within `(not shown)`.
fn word_end(text: &str) -> usize {
    let (mut is_escaped, mut within) = (false, 0);
    for (at, c) in text.char_indices() {
        if text[at..].starts_with(WITHHELD) {
            within = at + WITHHELD.len();
        }
        if at >= within && ((c.is_whitespace() && !is_escaped) || matches!(c, '"' | '\'' | '`')) {
            return at;
        }
        is_escaped = c == '\\';
    }
    text.len()
}

/// Returns true for `os.environ["HF_TOKEN"]`, `getenv('X')` and `get_token()`: Python code, not a value.
pub(super) fn is_call(value: &str) -> bool {
    let end = value.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(value.len());
    let opened = value[end..].strip_prefix(['(', '[']);
    value.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && opened.is_some_and(|rest| rest.starts_with(['"', '\'', ')']))
}
