//! `cargo xtask touched [COMMITS]`: product files (see `rooms`) touched per commit. A capability that changes many
//! files lacks a room.

use std::io;
use std::path::Path;

use crate::{git, rooms};

/// Existing files that a capability may change.
const CHANGED_MAX: usize = 20;

/// Default range of commits, about a branch.
const LAST: &str = "-20";

/// A commit, and its changes to product files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Touched {
    commit: String,
    new: usize,
    changed: usize,
    added_lines: u64,
    deleted_lines: u64,
}

/// Returns a row for each of `commits`, in `git log`'s notation; merges have none.
///
/// Errors: those of starting git, and its own.
pub fn report(commits: &[String], root: &Path) -> io::Result<String> {
    let mut words =
        vec!["log", "--no-merges", "--no-renames", "--format=commit %h %s", "--numstat", "--summary"];
    match commits {
        [] => words.push(LAST),
        _ => words.extend(commits.iter().map(String::as_str)),
    }
    let rows = read(&git::output(root, words)?);
    let mut text = format!("{:>7} {:>5} {:>7} {:>7}  commit\n", "changed", "new", "lines +", "lines -");
    for Touched { commit, new, changed, added_lines, deleted_lines } in rows {
        let many = if changed > CHANGED_MAX { "  (more than 20: what has no room?)" } else { "" };
        text += &format!("{changed:>7} {new:>5} {added_lines:>7} {deleted_lines:>7}  {commit}{many}\n");
    }
    Ok(text)
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
            if rooms::room_of(path).is_some() {
                (row.new, row.changed) = (row.new + 1, row.changed - 1);
            }
        } else if let [added, deleted, path] = line.splitn(3, '\t').collect::<Vec<_>>()[..]
            && rooms::room_of(path).is_some()
        {
            row.changed += 1;
            row.added_lines += added.parse::<u64>().unwrap_or(0);
            row.deleted_lines += deleted.parse::<u64>().unwrap_or(0);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_product_are_counted_new_ones_apart() {
        let log = "commit a1 one\n\n3\t1\tcrates/cpu/src/adamw.rs\n10\t0\tcrates/cpu/src/new.rs\n5\t5\tcrates/cpu/tests/it/a.rs\n\
                   7\t0\tdocs/a.md\n create mode 100644 crates/cpu/src/new.rs\n create mode 100644 docs/a.md\ncommit b2 two\n";
        let one = Touched { commit: "a1 one".into(), new: 1, changed: 1, added_lines: 13, deleted_lines: 1 };
        assert_eq!(read(log), [one, Touched { commit: "b2 two".into(), ..Touched::default() }]);
    }
}
