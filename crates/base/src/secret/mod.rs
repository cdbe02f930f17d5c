//! What may not leave this machine, nor be shown: keys and passwords. This is the one place that decides it, for run files that are
//! published or go to trackers, for model cards, and for what `import` and `doctor --run` repeat of a launch file.
//!
//! A secret is known by the name of what holds it (`names`), by its own form (`keys`), or by its place: after an option of a command
//! (`words`), behind a name in any notation (`named`), in an address (`addresses`). What has neither name, form nor place is not known.

mod addresses;
mod keys;
mod named;
mod names;
#[cfg(test)]
mod tests;
mod words;

pub use names::is_name_of_secret;
pub use words::CommandWords;

/// What is written instead of a secret.
pub const WITHHELD: &str = "(not shown)";
/// Longest text of letters and digits that cannot be a key in any form.
const PLAIN_BYTES_MAX: usize = 8;
/// Quotes within quotes that are opened.
const DEPTH_MAX: u32 = 4;

/// Returns text without secrets: `(not shown)` is written in their place, and addresses lose users, passwords and queries.
///
/// Text is read as a shell would (quotes, escapes, `NAME=value`, `--name value`), then as JSON, YAML, Python and headers write names and
/// values, whatever it is.
pub fn without_secrets(text: &str) -> String {
    let is_plain = text.len() <= PLAIN_BYTES_MAX && text.chars().all(|c| c.is_ascii_alphanumeric());
    if is_plain { text.to_string() } else { within(text, 0) }
}

fn within(text: &str, depth: u32) -> String {
    let text = keys::without_blocks(text);
    let text = addresses::without_users(&text);
    let text = keys::without_keys(&text);
    let text = named::without_values(&text);
    if depth < DEPTH_MAX { words::without_arguments(&text, depth) } else { text }
}

/// True if a value tells nothing: a switch, nothing at all, or what is already withheld.
fn is_open(value: &str) -> bool {
    let value = value.trim();
    let switches = ["", "true", "false", "none", "null", "~", "yes", "no", "on", "off"];
    value.trim_end_matches([',', ';', ')', ']', '}']) == WITHHELD.trim_end_matches(')')
        || switches.iter().any(|switch| value.eq_ignore_ascii_case(switch))
        || is_reference(value)
}

/// True for `$HF_TOKEN`, `${HF_TOKEN}`, `{token}`, `{{ token }}` and `<token>`: where a secret is, not the secret.
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
fn is_mixed(word: &str) -> bool {
    let inner = word.chars().skip(1);
    word.len() >= 20
        || (word.len() >= 6
            && (word.contains(|c: char| c.is_ascii_digit()) || inner.clone().any(|c| c.is_ascii_uppercase())))
}
