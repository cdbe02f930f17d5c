//! The parts of an error page, in order: what happened, Example, Why it happens, What to do, and optionally What the
//! fix costs and See also. Other headings and empty parts are refused.

use super::{index::INDEX, themes::PAGES};
use crate::{finding::Finding, tree::Tree};

/// (heading, required).
const PARTS: [(&str, bool); 5] = [
    ("Example", true),
    ("Why it happens", true),
    ("What to do", true),
    ("What the fix costs", false),
    ("See also", false),
];
/// Prefix of pages on the doctor's checks, which report a state and not an event.
const CHECKS: &str = "docs/errors/machine-";
/// The second heading of those pages.
const WHY_OF_A_CHECK: &str = "Why it matters";

/// Checks the headings of every error page, and the content of each part.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.texts(".md").filter(|(path, _)| path.starts_with(PAGES) && *path != INDEX);
    pages.flat_map(|(path, text)| faults(path, text).map(|message| Finding::new(path, 1, message))).collect()
}

fn faults(path: &str, page: &str) -> impl Iterator<Item = String> {
    let mut parts = page.split("\n## ").map(|part| part.split_once('\n').unwrap_or((part, "")));
    let (_, what_happened) = parts.next().unwrap_or_default();
    let parts: Vec<(&str, &str)> = parts.map(|(heading, text)| (heading, text.trim())).collect();
    let names = PARTS.map(|(name, needed)| match name {
        "Why it happens" if path.starts_with(CHECKS) => (WHY_OF_A_CHECK, needed),
        _ => (name, needed),
    });
    let is_expected = |(name, needed): &&(&str, bool)| *needed || parts.iter().any(|part| part.0 == *name);
    let expected: Vec<&str> = names.iter().filter(is_expected).map(|(name, _)| *name).collect();
    let found: Vec<&str> = parts.iter().map(|part| part.0).collect();
    let mut faults = Vec::new();
    if found != expected {
        faults.push(format!("the headings are {found:?}, not {expected:?}"));
    }
    if !what_happened.trim().starts_with(|c: char| c.is_alphanumeric() || c == '`') {
        faults.push("the page does not begin with a sentence that says what happened".to_string());
    }
    for (heading, text) in parts {
        let begin = match heading {
            "Example" => "```",
            "What to do" => "1. ",
            "See also" => "* [",
            _ => "",
        };
        if text.is_empty() || !text.starts_with(begin) {
            faults.push(format!("`{heading}` is empty or does not begin with `{begin}`"));
        }
    }
    faults.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# a\n\nIt is full.\n\n## Example\n\n```\nerror[a]: b\n```\n\n## Why it happens\n\nBecause.\n\n\
                        ## What to do\n\n1. This.\n";

    fn number_of_faults(path: &str, page: &str) -> usize {
        faults(path, page).count()
    }

    #[test]
    fn pages_with_all_parts() {
        let more = format!("{PAGE}\n## What the fix costs\n\nNothing.\n\n## See also\n\n* [b](b.md)\n");
        assert_eq!(number_of_faults("docs/errors/a.md", PAGE), 0);
        assert_eq!(number_of_faults("docs/errors/a.md", &more), 0);
        let matters = PAGE.replace("happens", "matters");
        assert_eq!(number_of_faults("docs/errors/machine-a.md", &matters), 0);
        assert_eq!(number_of_faults("docs/errors/a.md", &matters), 1);
    }

    #[test]
    fn pages_that_lack_something() {
        for (from, to) in [
            ("It is full.\n\n", ""),
            ("## Example", "## Examples"),
            ("Because.\n\n", ""),
            ("1. This", "Do this"),
            ("```\nerror[a]: b\n```\n\n", ""),
            ("## What to do", "## Remedies"),
        ] {
            assert!(number_of_faults("docs/errors/a.md", &PAGE.replace(from, to)) > 0, "{from:?}");
        }
        let swapped = PAGE
            .replace("Example", "x")
            .replace("Why it happens", "Example")
            .replace("x\n", "Why it happens\n");
        assert!(number_of_faults("docs/errors/a.md", &swapped) > 0);
    }
}
