//! What may not leave this machine, nor be shown: keys and passwords. This is the one place that decides it, for run files that are
//! published or go to trackers, for model cards, and for what `import` and `doctor --run` repeat of a launch file.
//!
//! A secret is known by the name of what holds it (`names`), by its own form (`keys`), or by its place: after an option of a command
//! (`words`), after a name in any notation (`named`), in an address (`addresses`). What has neither name, form nor place is not known.

mod addresses;
mod keys;
mod named;
mod names;
#[cfg(test)]
mod tests;
mod values;
mod words;

pub use names::is_name_of_secret;
pub use values::WITHHELD;
pub use words::CommandWords;

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
    if depth < DEPTH_MAX { words::without_arguments(&text, &|held| within(held, depth + 1)) } else { text }
}

impl CommandWords {
    /// Returns the next word of a list without secrets.
    pub fn next(&mut self, word: &str) -> String {
        self.replaced(word, word).unwrap_or_else(|| without_secrets(word))
    }
}
