//! The one place that finds keys and passwords, which must not leave this machine or be shown: in run files that are
//! published or sent to trackers, in model cards, and in what `import` and `doctor --run` repeat of a launch file.
//!
//! A secret is known by its holder's name (`names`), by its form (`keys`), or by its place: after an option of a
//! command (`words`), after a name in any notation (`named`), in an address (`addresses`). Others are missed.

mod addresses;
mod keys;
mod mark;
mod named;
mod names;
#[cfg(test)]
mod tests;
mod values;
mod words;

pub use mark::{unmarked, withheld};
pub use names::is_name_of_secret;
pub use values::WITHHELD;
pub use words::CommandWords;

/// Longest text of letters and digits that cannot be a key in any form.
const PLAIN_BYTES_MAX: usize = 8;
/// Quotes within quotes that are opened.
const DEPTH_MAX: u32 = 4;

/// Returns text with `(not shown)` in place of secrets, and addresses without users, passwords and queries.
///
/// Reads text as shell words (quotes, escapes, `NAME=value`, `--name value`), then as JSON, YAML, Python and headers.
pub fn without_secrets(text: &str) -> String {
    let is_plain = text.len() <= PLAIN_BYTES_MAX && text.chars().all(|c| c.is_ascii_alphanumeric());
    if is_plain { text.to_string() } else { within(text, 0) }
}

fn within(text: &str, depth: u32) -> String {
    let text = keys::without_blocks(text);
    let text = addresses::without_users(&text);
    let text = keys::without_keys(&text);
    let text = named::without_values(&text);
    if depth < DEPTH_MAX { words::without_arguments(&text, &|held| within(held, depth + 1)) } else { text }
}

impl CommandWords {
    /// Returns the next word of a list without secrets.
    pub fn next(&mut self, word: &str) -> String {
        self.replaced(word, word).unwrap_or_else(|| without_secrets(word))
    }
}
