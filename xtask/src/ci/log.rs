//! Reads how long each step took from what a script of `.ci` printed: a line for each, and one for all.
//!
//! ```text
//!     2 s  format
//!    31 s  tidy: crate edges, import cycles
//!    33 s  in all
//! ```

use super::record::Step;

/// Begins the last line of the table. Words after it say that the last step failed.
const IN_ALL: &str = "in all";
/// Begins the line that a script prints before a step.
const HEADING: &str = "== ";

/// The table at the end of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    pub steps: Vec<Step>,
    pub total_seconds: u64,
    pub ended_early: bool,
}

/// Reads the last table of a log.
///
/// Errors: a log without one, and one that lacks lines.
pub fn read(log: &str) -> Result<Table, String> {
    let lines: Vec<&str> = log.lines().collect();
    let is_last = |line: &&str| row(line).is_some_and(|row| row.step.starts_with(IN_ALL));
    let Some(end) = lines.iter().rposition(is_last) else {
        let begun = lines.iter().filter(|line| line.starts_with(HEADING)).count();
        return Err(match begun {
            0 => format!("has no table of steps, which ends with a line `N s  {IN_ALL}`"),
            _ => format!("is cut: {begun} steps began, and the table of how long they took is missing"),
        });
    };
    let last = row(lines[end]).expect("it was found as a row");
    let mut steps: Vec<Step> = lines[..end].iter().rev().map_while(|line| row(line)).collect();
    steps.reverse();
    let sum: u64 = steps.iter().map(|step| step.seconds).sum();
    // Each step may begin a second after the one before it has ended.
    if sum + (steps.len() as u64) < last.seconds || steps.is_empty() {
        let (count, total) = (steps.len(), last.seconds);
        return Err(format!("is cut: its {count} steps took {sum} s, of {total} s in all"));
    }
    Ok(Table { steps, total_seconds: last.seconds, ended_early: last.step != IN_ALL })
}

/// Reads a line of the table.
fn row(line: &str) -> Option<Step> {
    let (seconds, step) = line.trim().split_once(" s  ")?;
    Some(Step { step: step.to_string(), seconds: seconds.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\n== format\n\n== tidy: crate edges, links\ntidy: 2 files, 0 findings\n\n    2 s  format\n   31 s  \
                       tidy: crate edges, links\n   34 s  in all\n";

    #[test]
    fn steps_are_those_of_the_last_table() {
        let step = |step: &str, seconds| Step { step: step.into(), seconds };
        let steps = vec![step("format", 2), step("tidy: crate edges, links", 31)];
        let table = Table { steps, total_seconds: 34, ended_early: false };
        assert_eq!(read(LOG).as_ref(), Ok(&table));
        assert_eq!(read(&format!("    9 s  tests\n    9 s  in all\n{LOG}\nmore\n")).as_ref(), Ok(&table));
        let failed = LOG.replace("in all", "in all: the last step failed");
        assert_eq!(read(&failed), Ok(Table { ended_early: true, ..table }));
    }

    #[test]
    fn a_log_without_its_table_is_refused() {
        for (log, expect) in [
            ("", "has no table of steps, which ends with a line `N s  in all`"),
            ("took 3 s  or so\n", "has no table of steps, which ends with a line `N s  in all`"),
            (&LOG[..40], "is cut: 2 steps began, and the table of how long they took is missing"),
            ("   31 s  tidy\n   34 s  in all\n", "is cut: its 1 steps took 31 s, of 34 s in all"),
            ("   34 s  in all\n", "is cut: its 0 steps took 0 s, of 34 s in all"),
        ] {
            assert_eq!(read(log), Err(expect.to_string()), "{log}");
        }
    }
}
