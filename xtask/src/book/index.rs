//! The list of error pages, in `docs/errors/README.md` and in the table of contents. `cargo xtask index` writes both;
//! tidy compares them with what it would write.

use super::{themes::PAGES, themes::themes};
use crate::{finding::Finding, tree::Tree};
use std::fs;
use std::io;
use std::path::Path;

/// The table of contents that mdBook reads.
const SUMMARY: &str = "docs/SUMMARY.md";

pub const INDEX: &str = "docs/errors/README.md";

/// Line of the table of contents above all error pages.
const ERRORS: &str = "- [Errors](errors/README.md)";
/// The command that updates both.
const HOW: &str = "run `cargo xtask index`";

const INTRODUCTION: &str = "\
# Errors

Every Plimsoll error has a name, shown in brackets as in `error[host-pool-exceeded]`, and a page in this list. `plimsoll explain NAME`
prints the page in the terminal, and `plimsoll explain --search WORDS` searches all pages. The groups called *In a log* are the causes
that [`plimsoll doctor --log`](../doctor.md) finds in the logs of other frameworks; the last group is what [`plimsoll doctor`](../doctor.md)
checks on a machine.
";

/// Writes the lists that `check` expects.
pub fn write(tree: &Tree, root: &Path) -> io::Result<()> {
    fs::write(root.join(INDEX), list(tree))?;
    let summary = tree.text(SUMMARY).unwrap_or_default();
    fs::write(root.join(SUMMARY), with_errors(summary, tree))
}

/// Checks both lists against the pages, and that each page of the book is in the table of contents once.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(summary) = tree.text(SUMMARY) else { return findings };
    if tree.text(INDEX) != Some(&list(tree)) {
        findings.push(Finding::new(INDEX, 1, format!("is not the list of the error pages: {HOW}")));
    }
    if summary != with_errors(summary, tree) {
        findings.push(Finding::new(SUMMARY, 1, format!("does not hold the error pages as they are: {HOW}")));
    }
    let linked: Vec<&str> = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    for (path, _) in tree.texts(".md") {
        let Some(page) = path.strip_prefix("docs/").filter(|_| path != SUMMARY) else { continue };
        match linked.iter().filter(|link| **link == page).count() {
            1 => {}
            0 => findings.push(Finding::new(path, 1, format!("is not in {SUMMARY}"))),
            _ => findings.push(Finding::new(path, 1, format!("is in {SUMMARY} more than once"))),
        }
    }
    findings
}

fn list(tree: &Tree) -> String {
    let mut text = INTRODUCTION.to_string();
    for (title, slugs) in themes(tree) {
        text += &format!("\n## {title}\n\n");
        for slug in slugs {
            let page = tree.text(&format!("{PAGES}{slug}.md")).unwrap_or_default();
            text += &format!("- [{slug}]({slug}.md): {}\n", sentence(page));
        }
    }
    text
}

/// Returns the table of contents with the pages below its line for errors.
fn with_errors(summary: &str, tree: &Tree) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut is_below = false;
    for line in summary.lines() {
        // Indented lines below it are our own.
        is_below &= line.starts_with(' ');
        if !is_below {
            lines.push(line.to_string());
        }
        if line == ERRORS {
            is_below = true;
            for (title, slugs) in themes(tree) {
                lines.push(format!("  - [{title}]()"));
                lines.extend(slugs.iter().map(|slug| format!("    - [{slug}](errors/{slug}.md)")));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn sentence(page: &str) -> String {
    let paragraph = page.lines().skip_while(|line| line.starts_with('#') || line.trim().is_empty());
    let text: Vec<&str> = paragraph.take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let text = text.join(" ");
    match text.find(". ") {
        Some(end) => text[..=end].to_string(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const PAGE: (&str, &str) = ("docs/errors/a-b.md", "# a-b\n\nIt is full. And more.\n");

    #[test]
    fn the_lists_follow_the_pages() {
        let old = "# Summary\n\n[Start](README.md)\n\n- [Errors](errors/README.md)\n  - [Old]()\n    - [x](errors/x.md)\n- [End](end.md)\n";
        let summary = with_errors(old, &tree(&[PAGE]));
        let expect = "# Summary\n\n[Start](README.md)\n\n- [Errors](errors/README.md)\n  - [Everything else]()\n    - [a-b](errors/a-b.md)\n- [End](end.md)\n";
        assert_eq!(summary, expect);
        let index = list(&tree(&[PAGE]));
        assert!(index.ends_with("\n## Everything else\n\n- [a-b](a-b.md): It is full.\n"), "{index}");
        let files = [PAGE, ("docs/README.md", ""), ("docs/end.md", ""), (INDEX, &index), (SUMMARY, &summary)];
        assert_eq!(check(&tree(&files)), []);
        let stale = [PAGE, ("docs/README.md", ""), ("docs/end.md", ""), (INDEX, &index), (SUMMARY, old)];
        assert_eq!(check(&tree(&stale)).len(), 2, "the list, and a page that no link reaches");
    }

    #[test]
    fn a_page_outside_of_the_table_is_found() {
        let summary = with_errors("- [Errors](errors/README.md)\n", &tree(&[]));
        let index = list(&tree(&[]));
        let files = [(INDEX, &index[..]), (SUMMARY, &summary[..]), ("docs/lost.md", "")];
        let found: Vec<String> = check(&tree(&files)).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["docs/lost.md:1: is not in docs/SUMMARY.md"]);
    }
}
