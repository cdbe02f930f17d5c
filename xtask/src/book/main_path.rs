//! Holds the lengths of README.md, and of the book's main path: the pages of the table of contents before its first
//! appendix. What a user needs to begin is there; formulas, limits and measurements in detail are in the appendices.

use crate::{finding::Finding, tree::Tree};

const SUMMARY: &str = "docs/SUMMARY.md";
/// Words of the main path, in code and tables too; about two hours of reading.
const WORDS_MAX: usize = 25_000;
const README: &str = "README.md";
/// Words of the README, counted in the same way.
const README_WORDS_MAX: usize = 1_200;
/// Begins the titles of parts that are not read from end to end.
const APPENDIX: &str = "# Appendix";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let long = |page: &str, words: usize, max: usize, what: &str| {
        let message = format!(
            "{what} has {words} words, and the limit is {max}: shorten it, or move detail to an appendix"
        );
        (words > max).then(|| Finding::new(page, 1, message))
    };
    let readme = tree.text(README).map_or(0, |text| text.split_whitespace().count());
    let readme = long(README, readme, README_WORDS_MAX, "it");
    let main = long(SUMMARY, words(tree).unwrap_or(0), WORDS_MAX, "its main path");
    readme.into_iter().chain(main).collect()
}

/// Counts what white space separates on the pages before the first appendix.
fn words(tree: &Tree) -> Option<usize> {
    tree.text(SUMMARY)?;
    let text = |page: &String| tree.text(page).unwrap_or_default();
    Some(pages(tree).iter().map(|page| text(page).split_whitespace().count()).sum())
}

/// Returns the pages before the first appendix, by path from the root.
pub fn pages(tree: &Tree) -> Vec<String> {
    let summary = tree.text(SUMMARY).unwrap_or_default();
    let main = summary.lines().take_while(|line| !line.starts_with(APPENDIX));
    let pages = main.filter_map(|line| line.split_once("](")?.1.strip_suffix(')'));
    pages.map(|page| format!("docs/{page}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn pages_of_the_main_path_are_counted_and_those_of_appendices_are_not() {
        let summary = "# Summary\n\n[Introduction](a.md)\n\n# Start\n\n- [B](b/b.md)\n\n# Appendix: more\n\n- [C](c.md)\n";
        let check_with = |long: usize| {
            let page = "word ".repeat(long);
            let more = "word ".repeat(2 * WORDS_MAX);
            let files = [
                ("docs/SUMMARY.md", summary),
                ("docs/a.md", page.as_str()),
                ("docs/b/b.md", "# Two words\n"),
                ("docs/c.md", more.as_str()),
            ];
            check(&tree(&files)).iter().map(|finding| finding.to_string()).collect::<String>()
        };
        assert_eq!(check_with(WORDS_MAX - 3), "");
        let found = check_with(WORDS_MAX - 2);
        assert!(found.contains("25001 words, and the limit is 25000"), "{found}");
        let found = check(&tree(&[("README.md", "word ".repeat(README_WORDS_MAX + 1).as_str())]));
        assert_eq!(found.len(), 1);
    }
}
