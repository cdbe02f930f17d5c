//! Classes of values: those that reveal nothing, references to a secret, and possible keys.

use super::names::is_name_of_secret;

/// The text in place of a secret.
pub const WITHHELD: &str = "(not shown)";

/// Returns true if a value reveals nothing: a switch, an empty one, or one already withheld.
pub(super) fn is_open(value: &str) -> bool {
    let value = value.trim();
    let switches = ["", "true", "false", "none", "null", "~", "yes", "no", "on", "off"];
    value.trim_end_matches([',', ';', ')', ']', '}']) == WITHHELD.trim_end_matches(')')
        || switches.iter().any(|switch| value.eq_ignore_ascii_case(switch))
        || is_reference(value)
}

/// True for `$HF_TOKEN`, `${HF_TOKEN}`, `{token}`, `{{ token }}` and `<token>`: references to a secret.
fn is_reference(value: &str) -> bool {
    let is_word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    let between = |open, close| value.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
    let variable = between("${", "}").or_else(|| value.strip_prefix('$'));
    if let Some(name) = variable {
        let is_upper = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        return is_word(name) && is_upper && is_name_of_secret(name);
    }
    let named = between("{{", "}}").or_else(|| between("{", "}")).or_else(|| between("<", ">"));
    named.is_some_and(|name| {
        is_word(name.trim()) && name.chars().all(|c| !c.is_ascii_digit() && !c.is_ascii_uppercase())
    })
}

/// True if a word could be a key: long, or with digits or capitals within.
pub(super) fn is_mixed(word: &str) -> bool {
    let inner = word.chars().skip(1);
    word.len() >= 20
        || (word.len() >= 6
            && (word.contains(|c: char| c.is_ascii_digit()) || inner.clone().any(|c| c.is_ascii_uppercase())))
}
