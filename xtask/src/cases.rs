//! The page of cases: each of its rows names a test that holds the case, or a page with the words that it asked for.

use crate::finding::Finding;
use crate::tree::Tree;

/// The page, a table of a case, where it is held, and what was before and is after.
const PAGE: &str = "docs/internals/cases.md";
/// Cells of a row.
const CELLS: usize = 4;

/// Reports rows of the page whose test or words are not in the file that they name.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else { return Vec::new() };
    let rows =
        page.lines().enumerate().filter(|(_, line)| line.starts_with("| ") && !line.starts_with("| case"));
    rows.filter_map(|(at, line)| {
        let why = missing(tree, line)?;
        Some(Finding::new(PAGE, at + 1, why))
    })
    .collect()
}

/// Returns what is wrong with a row.
fn missing(tree: &Tree, line: &str) -> Option<String> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    if cells.len() != CELLS || cells.iter().any(|cell| cell.is_empty()) {
        return Some(format!("a row has {CELLS} cells: the case, its test, before, after"));
    }
    let mut places = cells[1].split("; ").peekable();
    places.peek()?;
    places.find_map(|place| {
        let found = match (place.split_once("::"), place.split_once(' ')) {
            (Some((file, name)), _) => {
                tree.text(plain(file)).is_some_and(|text| text.contains(&format!("fn {}(", plain(name))))
            }
            (None, Some((file, words))) => {
                tree.text(plain(file)).is_some_and(|text| text.contains(words.trim_matches('"')))
            }
            (None, None) => false,
        };
        (!found).then(|| format!("names {place}, which is not there"))
    })
}

fn plain(text: &str) -> &str {
    text.trim_matches('`')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn a_row_names_a_test_or_words_that_are_there() {
        let row = |place: &str| {
            format!("| case | test | before | after |\n|---|---|---|---|\n| a | {place} | b | c |\n")
        };
        for (place, count) in [
            ("`a/t.rs::holds_it`", 0),
            ("`a/t.rs::holds_it`; `d.md` \"as is\"", 0),
            ("`d.md` \"as is\"", 0),
            ("`a/t.rs::holds`", 1),
            ("`a/none.rs::holds_it`", 1),
            ("`d.md` \"as was\"", 1),
            ("`a/t.rs::holds_it`; `d.md` \"as was\"", 1),
            ("none", 1),
        ] {
            let page = row(place);
            let tree = tree(&[(PAGE, &page), ("a/t.rs", "fn holds_it() {}"), ("d.md", "It stays as is.")]);
            assert_eq!(check(&tree).len(), count, "{place}");
        }
        let page = "| a | `a/t.rs::holds_it` | b |\n";
        assert_eq!(
            check(&tree(&[(PAGE, page), ("a/t.rs", "fn holds_it() {}")])).len(),
            1,
            "a cell is missing"
        );
        assert_eq!(check(&tree(&[])), []);
    }
}
