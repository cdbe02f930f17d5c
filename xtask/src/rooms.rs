//! Size of the product: Rust and CUDA lines in `src/` by crate, without tests. Limits a crate's share and the whole.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::finding::Finding;
use crate::tree::Tree;

/// Product lines of all crates: raised only with a page in docs/decisions, last by 95.
const PRODUCT_LINES_MAX: usize = 183_400;

/// Suffixes of product files.
const SUFFIXES: [&str; 3] = [".rs", ".cu", ".cuh"];

/// Largest share of the product for one crate, in percent.
const CRATE_PERCENT_MAX: usize = 16;

/// Functions of the workspace that may have more arguments than clippy's limit.
const MANY_ARGUMENTS_MAX: usize = 8;

#[derive(Default)]
struct Room {
    lines: usize,
    files: usize,
    /// The longest file: product lines and path.
    longest: (usize, String),
}

/// Reports crates, a product or a number of exceptions above the limit.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rooms = rooms(tree);
    let total: usize = rooms.values().map(|room| room.lines).sum();
    let mut findings = Vec::new();
    let mut refuse = |path: &str, message: String| findings.push(Finding::new(path, 1, message));
    if total > PRODUCT_LINES_MAX {
        refuse("Cargo.toml", format!("the product has {total} lines, and at most {PRODUCT_LINES_MAX}"));
    }
    for (name, room) in rooms.iter().filter(|(_, room)| room.lines * 100 > total * CRATE_PERCENT_MAX) {
        let percent = room.lines * 100 / total;
        let message =
            format!("{percent} % of the product's lines, and a crate has at most {CRATE_PERCENT_MAX} %");
        refuse(&format!("crates/{name}/Cargo.toml"), message);
    }
    let many = many_arguments(tree);
    if many > MANY_ARGUMENTS_MAX {
        let message =
            format!("{many} exceptions to clippy's too_many_arguments, and at most {MANY_ARGUMENTS_MAX}");
        refuse("Cargo.toml", message);
    }
    findings
}

/// Returns the table of crates, largest first, with totals.
pub fn report(tree: &Tree) -> String {
    let rooms = rooms(tree);
    let total: usize = rooms.values().map(|room| room.lines).sum();
    let mut rows: Vec<_> = rooms.iter().collect();
    rows.sort_by_key(|(_, room)| std::cmp::Reverse(room.lines));
    let mut text = format!("{:<10} {:>6} {:>6} {:>6}  longest file\n", "crate", "lines", "share", "files");
    for (name, Room { lines, files, longest: (longest, path) }) in rows {
        let share = 100.0 * *lines as f64 / total as f64;
        let _ = writeln!(text, "{name:<10} {lines:>6} {share:>4.1} % {files:>6}  {longest} {path}");
    }
    let _ = writeln!(text, "{total} lines of at most {PRODUCT_LINES_MAX}");
    let _ = writeln!(text, "{} too_many_arguments of at most {MANY_ARGUMENTS_MAX}", many_arguments(tree));
    text
}

fn rooms(tree: &Tree) -> BTreeMap<&str, Room> {
    let mut rooms: BTreeMap<&str, Room> = BTreeMap::new();
    for (path, text) in SUFFIXES.into_iter().flat_map(|suffix| tree.texts(suffix)) {
        let Some((name, file)) = room_of(path) else { continue };
        let (lines, room) = (product_lines(text), rooms.entry(name).or_default());
        room.lines += lines;
        room.files += 1;
        room.longest = room.longest.clone().max((lines, file.to_string()));
    }
    rooms
}

/// Returns the crate of a product file and its path there; `None` for other files.
pub fn room_of(path: &str) -> Option<(&str, &str)> {
    let (name, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test =
        file.split('/').any(|part| matches!(part, "tests" | "tests.rs")) || file.ends_with("_tests.rs");
    (!is_test && SUFFIXES.iter().any(|suffix| path.ends_with(suffix))).then_some((name, file))
}

/// Counts lines outside items marked `#[cfg(test)]`. Relies on rustfmt's indentation.
fn product_lines(text: &str) -> usize {
    let (mut lines, mut count) = (text.lines(), 0);
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
            count += 1;
            continue;
        }
        let Some(item) = lines.find(|line| !line.trim_start().starts_with("#[")) else { break };
        if !item.ends_with([';', '}', ',']) {
            let indent = item.len() - item.trim_start().len();
            let close = format!("{}}}", &item[..indent]);
            lines.find(|line| line.starts_with(&close));
        }
    }
    count
}

fn many_arguments(tree: &Tree) -> usize {
    let lint = concat!("clippy::too_many", "_arguments");
    tree.texts(".rs").map(|(_, text)| text.matches(lint).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn this_workspace_keeps_its_size() {
        let tree = Tree::read(crate::repository_root()).expect("the workspace is readable");
        println!("{}", report(&tree));
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn tests_are_no_product() {
        for (text, expect) in [
            ("//! a\nfn f() {}\n", 2),
            ("a\n#[cfg(test)]\nmod tests;\nb\n", 2),
            ("a\n#[cfg(test)]\n#[path = \"t.rs\"]\nmod tests {\n    mod b {\n    }\n}\nb\n", 2),
            ("impl A {\n    #[cfg(test)]\n    fn f() {\n    }\n    fn g() {}\n}\n", 3),
            ("struct A {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n", 3),
        ] {
            assert_eq!(product_lines(text), expect, "{text}");
        }
    }

    #[test]
    fn a_crate_above_its_share_is_found() {
        let many: Vec<(String, String)> =
            (0..10).map(|i| (format!("crates/c{i}/src/lib.rs"), "a\n".repeat(10))).collect();
        let with = |path: &str, lines: usize| {
            let text = "a\n".repeat(lines);
            let mut files: Vec<(&str, &str)> = many.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            files.push((path, &text));
            check(&tree(&files)).into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        assert_eq!(with("crates/a/src/b.rs", 19), [""; 0]);
        assert_eq!(with("crates/a/src/b.rs", 20), ["crates/a/Cargo.toml"]);
        assert_eq!(with("crates/a/src/tests.rs", 1000), [""; 0]);
        assert_eq!(with("crates/a/tests/b.rs", 1000), [""; 0]);
        assert_eq!(with("xtask/src/b.rs", 1000), [""; 0]);
    }
}
