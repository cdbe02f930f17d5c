//! Names a failure by what its message means: an intent (an unknown name, only if, must divide, absent …) and the
//! object that it is about. A fall-back for messages of no class, below the exact signs and above the page that only
//! says that something was raised.

use super::data::INTENTS;
use super::possibilities::listed;
use super::signatures::Pattern;
use serde::Deserialize;
use std::sync::LazyLock;

/// Pages that say only that something was raised, by its kind.
const RAISED: [&str; 3] = ["exception-raised", "value-refused", "assertion-failed"];
/// An exception whose name says that its authors refused something, and whose page only says that code is missing.
const REFUSES: &str = "NotImplementedError: ";

static TABLE: LazyLock<Vec<Intent>> = LazyLock::new(|| {
    let file: IntentFile =
        toml::from_str(INTENTS).expect("data/signatures/intents.toml has the shape of `IntentRow`");
    file.intent.into_iter().map(Intent::new).collect()
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IntentRow {
    name: String,
    regex: String,
    object: Option<String>,
    unless: Option<String>,
    class: String,
    #[serde(default)]
    anywhere: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IntentFile {
    intent: Vec<IntentRow>,
}

/// A row of the table.
#[derive(Debug)]
pub struct Intent {
    pub name: String,
    /// The slug of a class.
    pub class: String,
    pattern: Pattern,
    /// Must be in the message too.
    object: Option<Pattern>,
    unless: Option<Pattern>,
    /// True if it holds for a line that is no exception, as a complaint or the last words of a log.
    is_anywhere: bool,
}

impl Intent {
    fn new(row: IntentRow) -> Intent {
        Intent {
            name: row.name,
            class: row.class,
            pattern: Pattern::new(&row.regex),
            object: row.object.as_deref().map(Pattern::new),
            unless: row.unless.as_deref().map(Pattern::new),
            is_anywhere: row.anywhere,
        }
    }

    fn means(&self, message: &str, lists: &[(usize, usize)]) -> bool {
        let is_fact =
            |found: regex::Match| !lists.iter().any(|(from, to)| (*from..*to).contains(&found.start()));
        self.pattern.regex().find_iter(message).any(is_fact)
            && self.object.as_ref().is_none_or(|object| object.is_match(message))
            && !self.unless.as_ref().is_some_and(|unless| unless.is_match(message))
    }
}

/// Returns the rows of the table, in order.
pub fn intents() -> &'static [Intent] {
    &TABLE
}

/// Returns true if a page with this slug says less of a message than an intent does.
pub fn may_refine(slug: Option<&str>, message: &str) -> bool {
    let refuses = |slug: &str| slug == "code-broken" && message.contains(REFUSES);
    slug.is_none_or(|slug| RAISED.contains(&slug) || refuses(slug))
}

/// Returns the number of the first intent of a message. `is_fault` is false for lines that are no exception.
pub fn meant(message: &str, is_fault: bool) -> Option<usize> {
    let lists = listed(message);
    TABLE.iter().position(|intent| (is_fault || intent.is_anywhere) && intent.means(message, &lists))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::signatures::Signatures;

    #[test]
    fn every_intent_compiles_and_names_a_class() {
        for intent in intents() {
            let all = [Some(&intent.pattern), intent.object.as_ref(), intent.unless.as_ref()];
            all.into_iter().flatten().for_each(|pattern| drop(pattern.regex().clone()));
            Signatures::embedded().class(&intent.class);
        }
    }
}
