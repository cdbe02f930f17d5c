//! Keys and passwords in launch files: their values are replaced as soon as a file is read, so that nothing after it can repeat them.

use crate::setting::Setting;
use crate::table::Table;
use plimsoll_base::{WITHHELD, is_key, is_name_of_secret};

/// Replaces the values of secrets: of options that the table marks, of unknown options and variables with the name of a secret, and
/// of both within expressions. A switch stays as it is.
pub(crate) fn withhold(table: &Table, settings: Vec<Setting>) -> Vec<Setting> {
    let one = |given: Setting| match table.is_secret(&given.key) {
        true if is_switch(&given.value) => given,
        // What it holds is not read, so that it does not matter whether it can be.
        true => Setting { value: WITHHELD.into(), unreadable: None, ..given },
        false => Setting { key: scrubbed(&given.key), value: scrubbed(&given.value), ..given },
    };
    settings.into_iter().map(one).collect()
}

fn is_switch(value: &str) -> bool {
    ["", "true", "false", "none", "null", "~"].contains(&value.trim().to_ascii_lowercase().as_str())
}

/// Text without keys of well-known services, and without what `token="..."` is set to.
fn scrubbed(text: &str) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            clean.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        clean += if is_key(word) { WITHHELD } else { word };
        rest = after;
        if is_name_of_secret(word)
            && let Some((before, value, after)) = quoted_value(after)
        {
            clean += before;
            clean += if value.is_empty() { "" } else { WITHHELD };
            rest = after;
        }
    }
    clean
}

/// Cuts ` = "value" and more` before and after the value; `None` if it is no quoted value.
fn quoted_value(text: &str) -> Option<(&str, &str, &str)> {
    // `"token": "value"` of a dictionary closes the name's own quote first.
    let named = text.trim_start_matches(['"', '\'']).trim_start();
    let opened = named.strip_prefix(['=', ':'])?.trim_start();
    let quote = opened.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let value = &opened[1..];
    let end = value.find(quote).unwrap_or(value.len());
    Some((&text[..text.len() - value.len()], &value[..end], &value[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_within_expressions_are_replaced() {
        for (text, expect) in [
            (
                "load(make(), token=\"abc\", split=\"train\")",
                "load(make(), token=\"(not shown)\", split=\"train\")",
            ),
            ("{'api_key': 'abc', 'b': 'c'}", "{'api_key': '(not shown)', 'b': 'c'}"),
            ("f(hf_0123456789abcdefXYZ)", "f((not shown))"),
            ("hf_models/small", "hf_models/small"),
            ("token=os.environ[\"HF_TOKEN\"]", "token=os.environ[\"HF_TOKEN\"]"),
            ("token=\"never closed", "token=\"(not shown)"),
            ("eine Größe = 'ö'", "eine Größe = 'ö'"),
        ] {
            assert_eq!(scrubbed(text), expect);
        }
    }
}
