//! The page of the record, `bench/results/ci.md`: steps as rows and runs as columns, the newest first.

use super::record::{Kind, Run, last};

/// Path of the page from the root.
pub const PATH: &str = "bench/results/ci.md";

/// Columns of runs in a table; the record has all.
const RUNS_MAX: usize = 8;

const INTRODUCTION: &str = "\
# How long CI takes

Seconds of each step of `.ci/run`, a column for each landing, the newest first. What was tried to make it faster, and what it gave,
is in [ci_build.md](ci_build.md). `cargo xtask ci-times LOG` adds a run to `ci.json` and writes this page.
";

/// Returns the page of these runs, which are oldest first.
pub fn page(runs: &[Run]) -> String {
    let mut text = INTRODUCTION.to_string();
    let table_of = |kind| table(&runs.iter().rev().filter(|run| run.kind == kind).collect::<Vec<_>>());
    text += &match last(runs, Kind::Run) {
        Some(_) => table_of(Kind::Run),
        None => "\nNo run is on record.\n".into(),
    };
    text += "\n## Full runs\n\n";
    text += &match last(runs, Kind::Full) {
        Some(Run { date, commit, .. }) => {
            format!("The last run of `.ci/full` was on {date}, at {commit}.\n{}", table_of(Kind::Full))
        }
        None => "No full run is on record.\n".into(),
    };
    text
}

/// Returns the table of runs, which are newest first.
fn table(runs: &[&Run]) -> String {
    let before = before(runs);
    let runs = &runs[..runs.len().min(RUNS_MAX)];
    let mut rows = vec![row("step", before.map(|before| format!("since {}", before.commit)), runs, |run| {
        run.date.clone()
    })];
    rows.push(format!("|---|{}", "---|".repeat(runs.len() + usize::from(before.is_some()))));
    for step in steps(runs) {
        let change = before.map(|before| change(seconds(runs[0], &step), seconds(before, &step)));
        let cell = |run: &Run| seconds(run, &step).map_or(String::new(), |seconds| format!("{seconds} s"));
        rows.push(row(&step, change, runs, cell));
    }
    let whole = before.map(|before| change(Some(runs[0].total_seconds), Some(before.total_seconds)));
    rows.push(row("**in all**", whole, runs, |run| format!("**{}**", total(run))));
    let none = before.map(|_| String::new());
    rows.push(row("machine", none.clone(), runs, |run| run.machine.clone()));
    rows.push(row("commit", none, runs, |run| run.commit.clone()));
    format!("\n{}\n", rows.join("\n"))
}

/// Returns the run to compare the newest with: the last one before it on the same machine. Both are whole.
fn before<'r>(runs: &[&'r Run]) -> Option<&'r Run> {
    let (newest, older) = runs.split_first()?;
    let is_like = |run: &&&Run| run.machine == newest.machine && !run.ended_early && !newest.ended_early;
    older.iter().find(is_like).copied()
}

/// Returns a row of the table, with the comparison after the newest run.
fn row(name: &str, change: Option<String>, runs: &[&Run], cell: impl Fn(&Run) -> String) -> String {
    let mut cells: Vec<String> =
        std::iter::once(name.to_string()).chain(runs.iter().map(|run| cell(run))).collect();
    if let Some(change) = change {
        cells.insert(2, change);
    }
    cells.iter().fold("|".to_string(), |row, cell| row + &format!(" {} |", cell.replace('|', "\\|")))
}

/// Returns names of steps, in the order of the newest run; those of older ones follow the step that they followed.
fn steps(runs: &[&Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let mut next = 0;
        for index in 0..run.steps.len() {
            let name = name(run, index);
            let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.insert(next, name);
                next
            });
            next = at + 1;
        }
    }
    names
}

/// Returns the name that a step keeps between landings: its text before the first `:`, `;` or `,`. Where a run has
/// several of one name, each keeps its whole text.
fn name(run: &Run, index: usize) -> String {
    let short = |index: usize| run.steps[index].step.split([':', ';', ',']).next().unwrap_or_default().trim();
    let is_unique = (0..run.steps.len()).filter(|other| short(*other) == short(index)).count() == 1;
    if is_unique { short(index).to_string() } else { run.steps[index].step.clone() }
}

fn seconds(run: &Run, step: &str) -> Option<u64> {
    (0..run.steps.len()).find(|index| name(run, *index) == step).map(|index| run.steps[index].seconds)
}

fn total(run: &Run) -> String {
    let (minutes, seconds) = (run.total_seconds / 60, run.total_seconds % 60);
    let early = if run.ended_early { ", ended early" } else { "" };
    format!("{minutes} min {seconds} s{early}")
}

/// Compares seconds: the difference, and its share of what was before.
fn change(now: Option<u64>, before: Option<u64>) -> String {
    match (now, before) {
        (Some(now), Some(before)) if now == before => "same".into(),
        (Some(now), Some(before)) => {
            let difference = now as i64 - before as i64;
            let percent = 100.0 * difference as f64 / before.max(1) as f64;
            format!("{difference:+} s ({percent:+.0} %)")
        }
        (Some(_), None) => "new".into(),
        (None, Some(_)) => "gone".into(),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::record;
    use crate::ci::tests::run;

    #[test]
    fn the_page_is_that_of_the_record() {
        let root = crate::repository_root();
        let runs = record::read(root).expect("the record is readable");
        let tree = crate::tree::Tree::read(root).expect("the workspace is readable");
        assert_eq!(tree.text(PATH), Some(&page(&runs)[..]));
    }

    #[test]
    fn runs_are_compared_step_by_step() {
        let mut runs = vec![
            run(
                Kind::Run,
                "a1",
                &[("format", 2), ("tidy: edges", 40), ("the book: built", 30), ("tests", 600)],
            ),
            run(Kind::Full, "a1", &[("tests: avx2", 700), ("tests: scalar", 900)]),
            run(
                Kind::Run,
                "b2",
                &[("format", 2), ("tidy; links, words", 10), ("keys", 5), ("tests: all", 300)],
            ),
        ];
        let text = page(&runs);
        for line in [
            "| step | 2026-11-28 | since a1 | 2026-11-28 |",
            "|---|---|---|---|",
            "| format | 2 s | same | 2 s |\n| tidy | 10 s | -30 s (-75 %) | 40 s |\n| the book |  | gone | 30 s |\n| keys | 5 s | new |  |",
            "| tests | 300 s | -300 s (-50 %) | 600 s |\n| **in all** | **5 min 17 s** | -355 s (-53 %) | **11 min 12 s** |",
            "| machine | m |  | m |\n| commit | b2 |  | a1 |",
            "The last run of `.ci/full` was on 2026-11-28, at a1.",
            "| tests: avx2 | 700 s |\n| tests: scalar | 900 s |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        runs[2].ended_early = true;
        assert!(page(&runs).contains("| **in all** | **5 min 17 s, ended early** | **11 min 12 s** |"));
        (runs[2].ended_early, runs[0].machine) = (false, "another".into());
        assert!(page(&runs).contains("| step | 2026-11-28 | 2026-11-28 |"));
    }

    #[test]
    fn the_newest_runs_are_shown() {
        let runs: Vec<Run> = (0..20).map(|i| run(Kind::Run, &format!("c{i}"), &[("format", i)])).collect();
        let text = page(&runs);
        assert!(text.contains("| format | 19 s | +1 s (+6 %) | 18 s |"), "{text}");
        assert!(text.contains("| commit | c19 |  | c18 |") && text.contains("c12") && !text.contains("c11"));
    }
}
