//! `cargo xtask touched [COMMITS]`: product files (see `rooms`) touched per commit. A capability that changes many
//! files lacks a room: `--check [RANGE]` requires a decision of such commits, and `--write FILE` writes the numbers
//! into the message of the commit that is being made.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::ci::record;
use crate::{git, rooms};

/// Existing files that a capability may change.
const CHANGED_MAX: usize = 20;

/// Default range of commits, about a branch.
const LAST: &str = "-20";

/// Options of git for commits and for staged changes, which `read` reads.
const FORMAT: [&str; 3] = ["--no-renames", "--numstat", "--summary"];

/// The line of a commit's message.
const TRAILER: &str = "Product-files";

/// A page there says why a commit changes what it changes.
const DECISIONS: &str = "docs/decisions/";

/// A commit, and its changes to product files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Touched {
    commit: String,
    new: usize,
    /// Changed files by crate.
    changed: BTreeMap<String, usize>,
    added_lines: u64,
    deleted_lines: u64,
    /// Adds or changes a page of `DECISIONS`.
    is_decided: bool,
}

impl Touched {
    fn changed(&self) -> usize {
        self.changed.values().sum()
    }

    /// Returns the crate with the most changed files, and the number of changed files outside of it.
    fn outside(&self) -> (&str, usize) {
        let most = self.changed.iter().max_by_key(|(_, changed)| **changed);
        most.map_or(("", 0), |(name, changed)| (name, self.changed() - changed))
    }
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let done = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // A hook runs at the top of the tree that commits, which need not be the one that this was built in.
        ["--write", file] => write(file, Path::new(".")).map(|()| ExitCode::SUCCESS),
        ["--check"] => check(None, root),
        ["--check", range] => check(Some(range), root),
        ["--write" | "--check", ..] => return None,
        commits => report(commits, root).map(|text| {
            print!("{text}");
            ExitCode::SUCCESS
        }),
    };
    Some(done.unwrap_or_else(|err| {
        eprintln!("touched: {err}");
        ExitCode::from(2)
    }))
}

/// Returns a row for each of `commits`, in `git log`'s notation; merges have none.
///
/// Errors: those of starting git, and its own.
fn report(commits: &[&str], root: &Path) -> io::Result<String> {
    let rows = log(if commits.is_empty() { &[LAST] } else { commits }, root)?;
    let mut text = format!("{:>7} {:>5} {:>7} {:>7}  commit\n", "changed", "new", "lines +", "lines -");
    for row in rows {
        let (Touched { commit, new, added_lines, deleted_lines, .. }, changed) = (&row, row.changed());
        let many = if changed > CHANGED_MAX { "  (more than 20: what has no room?)" } else { "" };
        text += &format!("{changed:>7} {new:>5} {added_lines:>7} {deleted_lines:>7}  {commit}{many}\n");
    }
    Ok(text)
}

/// Lists commits that change many product files outside of one room and say in no decision why: exit code 1.
fn check(range: Option<&str>, root: &Path) -> io::Result<ExitCode> {
    let range = match range {
        Some(range) => range.to_string(),
        None => since_last_run(root)?,
    };
    let rows = log(&[&range], root)?;
    let found: Vec<String> = rows.iter().filter_map(undecided).collect();
    found.iter().for_each(|found| println!("{found}"));
    eprintln!("touched: {} commits of {range}, {} findings", rows.len(), found.len());
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the range of commits since the newest run of `.ci/run` on record.
fn since_last_run(root: &Path) -> io::Result<String> {
    let runs = record::read(root)?;
    let commit = record::last(&runs, record::Kind::Run).map(|run| &run.commit);
    let known = commit.filter(|commit| git::commits_since(root, commit).is_some());
    Ok(known.map_or(LAST.into(), |commit| format!("{commit}..HEAD")))
}

/// Returns what is wrong with a commit, if anything.
fn undecided(row: &Touched) -> Option<String> {
    let (room, outside) = row.outside();
    (outside > CHANGED_MAX && !row.is_decided).then(|| {
        let commit = &row.commit;
        format!("{commit}: changes {outside} product files outside of {room}, at most {CHANGED_MAX} without a page in {DECISIONS}")
    })
}

/// Adds the number of staged product files to the message in `file`, or replaces it; leaves it where there are none.
fn write(file: &str, root: &Path) -> io::Result<()> {
    let message = std::fs::read_to_string(root.join(file))?;
    let onto = if is_amended(&message, root) { "HEAD^" } else { "HEAD" };
    // The first commit has nothing to be compared with, which leaves out the name.
    let onto = git::output(root, ["rev-parse", "--verify", "-q", onto]).unwrap_or_default();
    let words = ["diff", "--cached"].into_iter().chain(FORMAT).chain(onto.lines());
    let rows = read(&format!("commit \n{}", git::output(root, words)?));
    let (new, changed) = rows.first().map_or((0, 0), |row| (row.new, row.changed()));
    if new + changed == 0 {
        return Ok(());
    }
    let trailer = format!("{TRAILER}: {changed} changed, {new} new");
    let words = ["interpret-trailers", "--in-place", "--if-exists", "replace", "--trailer", &trailer, file];
    git::output(root, words).map(|_| ())
}

/// Returns true if the message is that of `HEAD`, which is being replaced: it has numbers, and git passes the date of
/// its author to the hook.
fn is_amended(message: &str, root: &Path) -> bool {
    let date = std::env::var("GIT_AUTHOR_DATE").unwrap_or_default();
    let head = git::output(root, ["log", "-1", "--format=@%ad", "--date=raw"]).unwrap_or_default();
    message.contains(&format!("\n{TRAILER}: ")) && date == head.trim()
}

/// Asks git for `commits`, without merges.
fn log(commits: &[&str], root: &Path) -> io::Result<Vec<Touched>> {
    let words = ["log", "--no-merges", "--format=commit %h %s"].into_iter().chain(FORMAT);
    Ok(read(&git::output(root, words.chain(commits.iter().copied()))?))
}

/// Parses git's output: a line per commit, then each file's line counts and, if new, its mode.
fn read(log: &str) -> Vec<Touched> {
    let mut rows: Vec<Touched> = Vec::new();
    for line in log.lines() {
        if let Some(commit) = line.strip_prefix("commit ") {
            rows.push(Touched { commit: commit.to_string(), ..Touched::default() });
            continue;
        }
        let Some(row) = rows.last_mut() else { continue };
        if let Some((_, path)) =
            line.trim_start().strip_prefix("create mode ").and_then(|rest| rest.split_once(' '))
        {
            if let Some((room, _)) = rooms::room_of(path) {
                row.new += 1;
                *row.changed.entry(room.to_string()).or_default() -= 1;
            }
        } else if let [added, deleted, path] = line.splitn(3, '\t').collect::<Vec<_>>()[..] {
            row.is_decided |= path.starts_with(DECISIONS);
            if let Some((room, _)) = rooms::room_of(path) {
                *row.changed.entry(room.to_string()).or_default() += 1;
                row.added_lines += added.parse::<u64>().unwrap_or(0);
                row.deleted_lines += deleted.parse::<u64>().unwrap_or(0);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::tests::{git, repository, write as write_files};
    use std::fs;

    #[test]
    fn files_of_the_product_are_counted_new_ones_apart() {
        let log = "commit a1 one\n\n3\t1\tcrates/cpu/src/adamw.rs\n10\t0\tcrates/cpu/src/new.rs\n5\t5\tcrates/cpu/tests/it/a.rs\n\
                   7\t0\tdocs/decisions/a.md\n create mode 100644 crates/cpu/src/new.rs\n create mode 100644 docs/a.md\ncommit b2 two\n";
        let one = Touched {
            commit: "a1 one".into(),
            new: 1,
            changed: [("cpu".into(), 1)].into(),
            added_lines: 13,
            deleted_lines: 1,
            is_decided: true,
        };
        assert_eq!(read(log), [one, Touched { commit: "b2 two".into(), ..Touched::default() }]);
    }

    #[test]
    fn a_commit_of_many_rooms_needs_a_decision() {
        let row = |changed: &[(&str, usize)], is_decided| Touched {
            commit: "a1 one".into(),
            changed: changed.iter().map(|(name, changed)| (name.to_string(), *changed)).collect(),
            is_decided,
            ..Touched::default()
        };
        for (changed, expect) in [
            (&[][..], None),
            (&[("rl", 90)], None),
            (&[("rl", 90), ("cpu", 10), ("run", 10)], None),
            (&[("rl", 9), ("cpu", 12), ("run", 12)], Some("changes 21 product files outside of run")),
            (&[("rl", 90), ("cpu", 10), ("run", 11)], Some("changes 21 product files outside of rl")),
        ] {
            let found = undecided(&row(changed, false));
            assert_eq!(found.is_some(), expect.is_some(), "{changed:?}");
            assert!(found.unwrap_or_default().contains(expect.unwrap_or_default()), "{changed:?}");
            assert_eq!(undecided(&row(changed, true)), None);
        }
    }

    #[test]
    fn commits_since_the_last_run_are_checked() {
        let root = repository("touched-check", &[&[("a", "1")], &[("a", "2")]]);
        assert_eq!(since_last_run(&root).expect("there is no record"), LAST);
        let run = |commit: &str| crate::ci::tests::run(record::Kind::Run, commit, &[]);
        for (commit, expect) in [("HEAD~1", "HEAD~1..HEAD"), ("no-commit", LAST)] {
            write_files(&root, &[(record::PATH, &record::text(&[run(commit)]))]);
            assert_eq!(since_last_run(&root).expect("a record"), expect);
            assert_eq!(check(None, &root).expect("a range"), ExitCode::SUCCESS);
        }
        fs::remove_dir_all(&root).expect("the folder can be removed");
    }

    #[test]
    fn a_message_gets_the_numbers_of_what_is_staged() {
        let root = repository("touched-write", &[&[("crates/a/src/lib.rs", "a\n"), ("docs/a.md", "a\n")]]);
        let message = |before: &str, files: &[(&str, &str)]| {
            write_files(&root, files);
            git(&root, &["add", "."]);
            write_files(&root, &[(".git/message", before)]);
            write(".git/message", &root).expect("the message is written");
            fs::read_to_string(root.join(".git/message")).expect("the message is there")
        };
        assert_eq!(message("a: b\n", &[("docs/a.md", "b\n")]), "a: b\n");
        let files = [
            ("crates/a/src/lib.rs", "b\n"),
            ("crates/a/src/new.rs", "a\n"),
            ("crates/a/src/tests.rs", "a\n"),
        ];
        let expect = "a: b\n\nProduct-files: 1 changed, 1 new\n";
        assert_eq!(message("a: b\n", &files), expect);
        assert_eq!(message("a: b\n\nProduct-files: 7 changed, 9 new\n", &files), expect);
        let with_hints = "a: b\n\nWhy.\n\n# Lines with # are left out.\n";
        assert!(message(with_hints, &files).starts_with("a: b\n\nWhy.\n\nProduct-files: 1 changed, 1 new\n"));
        fs::remove_dir_all(&root).expect("the folder can be removed");
    }

    #[test]
    fn the_first_commit_is_all_new() {
        let root = repository("touched-first", &[]);
        write_files(&root, &[("crates/a/src/lib.rs", "a\n"), (".git/message", "a: b\n")]);
        git(&root, &["add", "."]);
        write(".git/message", &root).expect("the message is written");
        let text = fs::read_to_string(root.join(".git/message")).expect("the message is there");
        assert_eq!(text, "a: b\n\nProduct-files: 0 changed, 1 new\n");
        fs::remove_dir_all(&root).expect("the folder can be removed");
    }
}
