//! Phrases that a native engineer would not write, and what to write instead: the list of STYLE.md, rule 20.
//!
//! It reads prose: comments and strings of code, and Markdown outside backticks and fences, which hold output.

use crate::{finding::Finding, tree::Tree};

/// A phrase, its replacement, and longer phrases in which it is correct.
struct Phrase(&'static str, &'static str, &'static [&'static str]);

const PHRASES: [Phrase; 18] = [
    Phrase("so many", "a number by its name: `n` requests", &[]),
    Phrase("is said", "is reported, or who says it", &[]),
    Phrase("are said", "are reported, or who says it", &[]),
    Phrase("is told", "who tells it, or: gets", &["is told apart"]),
    Phrase("are told", "who tells them, or: get", &["are told apart"]),
    Phrase("of ours", "in Plimsoll, our", &[]),
    Phrase("the same of", "the same for, or say it again", &[]),
    Phrase("what becomes of", "what happens to, what to do with", &[]),
    Phrase("in the place of", "instead of", &[]),
    Phrase("whoever", "the caller, the user", &[]),
    Phrase("nobody", "the passive: is not used", &[]),
    Phrase("bites", "is a problem", &[]),
    Phrase("is wanted", "expected", &[]),
    Phrase("are wanted", "expected", &[]),
    Phrase("beside", "next to, as well as", &[]),
    Phrase(
        "behind",
        "after",
        &[
            "leaves behind",
            "leave behind",
            "left behind",
            "fall behind",
            "behind a box",
            "behind a proxy",
            "behind the program's back",
            "behind these logs",
            "decisions behind",
        ],
    ),
    Phrase("stands", "is", &["stands for", "stands on"]),
    Phrase("stood", "was", &[]),
];

/// Suffixes of prose, and of code with comments.
const SUFFIXES: [&str; 9] = [".rs", ".md", ".toml", ".py", ".sh", ".cu", ".cuh", ".yml", ".js"];

/// Files with the list itself, and tables that commands write.
const EXEMPT: [&str; 4] = ["STYLE.md", "docs/style.md", "xtask/src/english.rs", "bench/results/"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    findings(tree, |path| !EXEMPT.iter().any(|start| path.starts_with(start)))
}

fn findings(tree: &Tree, is_read: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for suffix in SUFFIXES {
        for (path, text) in tree.texts(suffix).filter(|(path, _)| is_read(path)) {
            let mut is_fenced = false;
            for (index, line) in text.lines().enumerate() {
                let is_fence = suffix == ".md" && line.trim_start().starts_with("```");
                is_fenced ^= is_fence;
                if !is_fenced && !is_fence {
                    let found = faults(suffix, line).map(|message| Finding::new(path, index + 1, message));
                    findings.extend(found);
                }
            }
        }
    }
    findings
}

fn faults(suffix: &str, line: &str) -> impl Iterator<Item = String> {
    let prose = prose(suffix, line).to_lowercase();
    PHRASES.iter().filter_map(move |Phrase(phrase, instead, unless)| {
        let is_wrong = has(&prose, phrase) && !unless.iter().any(|longer| has(&prose, longer));
        is_wrong.then(|| format!("`{phrase}`: write {instead}"))
    })
}

/// Returns the prose of a line: comments and strings of code; Markdown without code spans.
fn prose(suffix: &str, line: &str) -> String {
    let mark = match suffix {
        ".md" => return line.split('`').step_by(2).collect::<Vec<_>>().join("`"),
        ".rs" | ".cu" | ".cuh" | ".js" => "//",
        _ => "#",
    };
    // A line that begins inside a string has zero or one quotes: it is read whole.
    if line.matches('"').count() == 1 {
        return line.to_string();
    }
    let (code, comment) = line.split_once(mark).unwrap_or((line, ""));
    let texts: Vec<&str> = code.split('"').skip(1).step_by(2).collect();
    format!("{} {comment}", texts.join(" "))
}

/// Returns true if `line` has the words of `phrase`, as whole words.
pub fn has(line: &str, phrase: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(start, _)| {
        !line[..start].ends_with(is_letter) && !line[start + phrase.len()..].starts_with(is_letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn phrases_are_found_in_prose_only() {
        for (path, line, expect) in [
            ("README.md", "Reads so many bytes.", 1),
            ("README.md", "It prints `bites`.", 0),
            ("README.md", "```\nbites  a\n```\nWhoever reads.", 1),
            ("crates/base/src/a.rs", "/// Lies beside it.", 1),
            ("crates/base/src/a.rs", "let nobody = beside(nobody); // fine", 0),
            ("crates/base/src/a.rs", "f(\"a number is wanted\");", 1),
            ("crates/base/src/a.rs", "    \"of a text that\n      nobody reads\",", 1),
            ("crates/base/src/a.rs", "/// What stands for the whole, left behind.", 0),
            ("crates/base/src/a.rs", "/// Standstill, besides; hindsight.", 0),
            ("bench/a.py", "# What becomes of it, in the place of b.", 2),
            ("crates/rl/src/a.rs", "/// An error of ours.", 1),
            ("STYLE.md", "Not: so many.", 0),
        ] {
            assert_eq!(check(&tree(&[(path, line)])).len(), expect, "{path}: {line}");
        }
    }
}
