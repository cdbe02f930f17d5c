//! Size of the product: lines of Rust and CUDA code in `src/`, a crate at a time, next to those of the last landing.
//! Code is what is neither blank nor only a comment nor a test. Limits a crate's share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::{self, Read};
use std::path::Path;

use crate::ci::record;
use crate::finding::Finding;
use crate::git;
use crate::tree::{File, Tree};

/// Suffixes of product files.
const SUFFIXES: [&str; 3] = [".rs", ".cu", ".cuh"];

/// Largest share of the product for one crate, in percent.
const CRATE_PERCENT_MAX: usize = 16;

/// Functions of the workspace that may have more arguments than clippy's limit.
const MANY_ARGUMENTS_MAX: usize = 8;

#[derive(Default)]
struct Room {
    /// Lines of code.
    lines: usize,
    files: usize,
    /// The longest file: lines of code and path.
    longest: (usize, String),
}

/// A commit to compare with, and its product files.
pub struct Landing {
    commit: String,
    tree: Tree,
}

/// Reports crates or a number of exceptions above the limit.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rooms = rooms(tree);
    let total: usize = rooms.values().map(|room| room.lines).sum();
    let mut findings = Vec::new();
    let mut refuse = |path: &str, message: String| findings.push(Finding::new(path, 1, message));
    for (name, room) in rooms.iter().filter(|(_, room)| room.lines * 100 > total * CRATE_PERCENT_MAX) {
        let percent = room.lines * 100 / total;
        let message =
            format!("{percent} % of the product's code, and a crate has at most {CRATE_PERCENT_MAX} %");
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

/// Returns the table of crates, largest first, with totals; next to each what it was at the landing.
pub fn report(tree: &Tree, landing: Option<&Landing>) -> String {
    let rooms_now = rooms(tree);
    let rooms_then = landing.map(|landing| rooms(&landing.tree));
    let lines = |rooms: &BTreeMap<&str, Room>, name: &str| rooms.get(name).map_or(0, |room| room.lines);
    let sum = |rooms: &BTreeMap<&str, Room>| rooms.values().map(|room| room.lines).sum::<usize>();
    let compared = |now: usize, then: Option<usize>| match then {
        Some(then) => format!(" {then:>6} {:>+6}", now as i64 - then as i64),
        None => String::new(),
    };
    let total = sum(&rooms_now);
    let names: BTreeSet<&str> =
        rooms_now.keys().chain(rooms_then.iter().flat_map(BTreeMap::keys)).copied().collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| std::cmp::Reverse(lines(&rooms_now, name)));
    let heads = if landing.is_some() { "   then   diff" } else { "" };
    let mut text =
        format!("{:<10} {:>6}{heads} {:>6} {:>6}  longest file\n", "crate", "code", "share", "files");
    for name in names {
        let none = Room::default();
        let Room { lines: now, files, longest: (longest, path) } = rooms_now.get(name).unwrap_or(&none);
        let then = compared(*now, rooms_then.as_ref().map(|then| lines(then, name)));
        let share = 100.0 * *now as f64 / total as f64;
        let _ = writeln!(text, "{name:<10} {now:>6}{then} {share:>4.1} % {files:>6}  {longest} {path}");
    }
    let _ = writeln!(text, "{:<10} {total:>6}{}", "all", compared(total, rooms_then.as_ref().map(sum)));
    if let Some(Landing { commit, .. }) = landing {
        let _ = writeln!(text, "then: at {commit}");
    }
    let _ = writeln!(text, "{} too_many_arguments of at most {MANY_ARGUMENTS_MAX}", many_arguments(tree));
    text
}

/// Reads the product files of `commit`, else of the last landing on record; `None` where there is none.
///
/// Errors: those of git, and those of reading the record.
pub fn landing(root: &Path, commit: Option<&str>) -> io::Result<Option<Landing>> {
    let commit = match commit {
        Some(commit) => Some(commit.to_string()),
        None => record::landing(&record::read(root)?, root),
    };
    let Some(commit) = commit else { return Ok(None) };
    let bytes = git::bytes(root, ["archive", "--format=tar", &commit, ":(glob)crates/*/src/**"])?;
    let mut files = Vec::new();
    for entry in tar::Archive::new(&bytes[..]).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        if room_of(&path).is_some() {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            files.push(File { path, bytes: text.len() as u64, text: Some(text) });
        }
    }
    Ok(Some(Landing { commit, tree: Tree { files } }))
}

fn rooms(tree: &Tree) -> BTreeMap<&str, Room> {
    let mut rooms: BTreeMap<&str, Room> = BTreeMap::new();
    for (path, text) in SUFFIXES.into_iter().flat_map(|suffix| tree.texts(suffix)) {
        let Some((name, file)) = room_of(path) else { continue };
        let (lines, room) = (code_lines(text), rooms.entry(name).or_default());
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

/// Counts lines of code: outside items marked `#[cfg(test)]`, neither blank nor only a comment. Relies on rustfmt's
/// indentation, and on a comment of several lines beginning on a line of its own.
fn code_lines(text: &str) -> usize {
    let (mut lines, mut count, mut is_comment) = (text.lines(), 0, false);
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
            count += usize::from(is_code(line, &mut is_comment));
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

/// Returns true if a line has code. `is_comment`: whether it begins, and then whether it ends, within `/* */`.
fn is_code(line: &str, is_comment: &mut bool) -> bool {
    // CUDA's macros continue lines.
    let mut rest = line.trim().trim_end_matches('\\').trim_end();
    loop {
        *is_comment |= rest.starts_with("/*");
        if !*is_comment {
            return !rest.is_empty() && !rest.starts_with("//");
        }
        let Some((_, after)) = rest.split_once("*/") else { return false };
        (*is_comment, rest) = (false, after.trim_start());
    }
}

fn many_arguments(tree: &Tree) -> usize {
    let lint = concat!("clippy::too_many", "_arguments");
    tree.texts(".rs").map(|(_, text)| text.matches(lint).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::tests::repository;
    use crate::tree::tests::tree;

    #[test]
    fn this_workspace_keeps_its_size() {
        let tree = Tree::read(crate::repository_root()).expect("the workspace is readable");
        println!("{}", report(&tree, None));
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn tests_are_no_product() {
        for (text, expect) in [
            ("use a;\nfn f() {}\n", 2),
            ("a\n#[cfg(test)]\nmod tests;\nb\n", 2),
            ("a\n#[cfg(test)]\n#[path = \"t.rs\"]\nmod tests {\n    mod b {\n    }\n}\nb\n", 2),
            ("impl A {\n    #[cfg(test)]\n    fn f() {\n    }\n    fn g() {}\n}\n", 3),
            ("struct A {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n", 3),
        ] {
            assert_eq!(code_lines(text), expect, "{text}");
        }
    }

    #[test]
    fn comments_are_not_counted() {
        for (text, expect) in [
            ("//! a\n\n/// b\nfn f() {} // c\n    // d\n", 1),
            ("/* a */\n/* b\n c\n\n d */\ne\n", 1),
            ("/* a */ b\n/* c\n*/ d /* e */\n/* f */ /* g */ // h\n", 2),
            ("    /* a */   \\\n    b(); \\\n    \\\n", 1),
            ("let a = \"crates/*/src\";\nlet b = 2;\n", 2),
        ] {
            assert_eq!(code_lines(text), expect, "{text}");
        }
    }

    #[test]
    fn crates_are_compared_with_the_last_landing() {
        let now = tree(&[("crates/a/src/lib.rs", "a\n// why\nb\nc\n"), ("crates/b/src/lib.rs", "a\n")]);
        let then = tree(&[("crates/a/src/lib.rs", "a\nb\nc\nd\n"), ("crates/c/src/lib.rs", "a\n")]);
        assert_eq!(
            report(&now, None),
            "crate        code  share  files  longest file\n\
             a               3 75.0 %      1  3 lib.rs\n\
             b               1 25.0 %      1  1 lib.rs\n\
             all             4\n\
             0 too_many_arguments of at most 8\n"
        );
        assert_eq!(
            report(&now, Some(&Landing { commit: "a1".into(), tree: then })),
            "crate        code   then   diff  share  files  longest file\n\
             a               3      4     -1 75.0 %      1  3 lib.rs\n\
             b               1      0     +1 25.0 %      1  1 lib.rs\n\
             c               0      1     -1  0.0 %      0  0 \n\
             all             4      5     -1\n\
             then: at a1\n\
             0 too_many_arguments of at most 8\n"
        );
    }

    #[test]
    fn a_landing_is_read_from_git() {
        let old = [("crates/a/src/b/c.rs", "a\nb\n"), ("crates/a/tests/it.rs", "a\n"), ("docs/a.md", "a\n")];
        let root = repository("rooms", &[&old, &[("crates/a/src/b/c.rs", "a\n")]]);
        let found = landing(&root, Some("HEAD~1")).expect("git has it").expect("it was named");
        assert_eq!(found.tree.files.len(), 1);
        assert_eq!(found.tree.text("crates/a/src/b/c.rs"), Some("a\nb\n"));
        assert!(landing(&root, Some("no-commit")).is_err());
        assert!(landing(&root, None).expect("there is no record").is_none());
        std::fs::remove_dir_all(&root).expect("the folder can be removed");
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
