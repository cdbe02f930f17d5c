//! What a shake found: a row for each condition, a line for each test that failed, and what was not run.

use super::conditions::Condition;
use super::play::{Failure, Run};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// All that is known so far.
#[derive(Default)]
pub struct Report {
    /// Names of conditions and what they are, in their order.
    pub conditions: Vec<(&'static str, &'static str)>,
    /// Why a condition was skipped, by its name.
    pub skipped: BTreeMap<&'static str, String>,
    pub runs: Vec<Run>,
    /// Steps that have not begun: round, condition, number of programs.
    pub rest: Vec<(usize, &'static str, usize)>,
    pub num_programs: usize,
    pub seconds: f64,
    /// Folder of the outputs of failures.
    pub outputs: PathBuf,
}

/// A test that failed, and where.
#[derive(Debug, Default, PartialEq)]
struct Fault<'a> {
    /// Times that its program ran, in all conditions.
    runs: usize,
    /// By condition: times that it failed, and that its program ran.
    by_condition: BTreeMap<&'static str, (usize, usize)>,
    failures: Vec<&'a Failure>,
}

impl Report {
    pub fn new<'c>(conditions: impl Iterator<Item = &'c Condition>, num_programs: usize) -> Report {
        let conditions = conditions.map(|condition| (condition.name, condition.what)).collect();
        Report { conditions, num_programs, ..Report::default() }
    }

    pub fn has_failures(&self) -> bool {
        self.runs.iter().any(|run| !run.failures.is_empty())
    }

    /// Returns the page with the table and the lists.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Tests under shaking\n\n{} runs of {} programs in {:.0} s; outputs of failures are in {}.\n\n\
             | condition | what it does | rounds | programs | tests | failed |\n|---|---|---:|---:|---:|---:|\n",
            self.runs.len(),
            self.num_programs,
            self.seconds,
            self.outputs.display()
        );
        for (name, what) in &self.conditions {
            let row = match self.skipped.get(name) {
                Some(reason) => format!("| `{name}` | skipped: {reason} | | | | |\n"),
                None => {
                    let [rounds, programs, tests, failed] = self.counts(name);
                    format!("| `{name}` | {what} | {rounds} | {programs} | {tests} | {failed} |\n")
                }
            };
            text += &row;
        }
        self.faults().iter().for_each(|(test, fault)| text += &fault.markdown(test));
        if !self.has_failures() {
            text += "\nNo test failed.\n";
        }
        if !self.rest.is_empty() {
            text += "\nNot run:\n\n";
        }
        for (name, _) in &self.conditions {
            let rest = self.rest.iter().filter(|(_, condition, _)| condition == name);
            let (parts, wholes): (Vec<_>, Vec<_>) = rest.partition(|(_, _, n)| *n < self.num_programs);
            for (round, _, programs) in parts {
                let _ = writeln!(
                    text,
                    "- round {round} of `{name}`: {programs} of {} programs",
                    self.num_programs
                );
            }
            if let (Some((first, ..)), Some((last, ..))) = (wholes.first(), wholes.last()) {
                let _ = writeln!(text, "- rounds {first} to {last} of `{name}`");
            }
        }
        text
    }

    pub fn json(&self) -> Value {
        let condition = |(name, what): &(&'static str, &'static str)| {
            let [rounds, programs, tests, failed] = self.counts(name);
            let skipped = self.skipped.get(name);
            json!({
                "name": name, "what": what, "skipped": skipped,
                "rounds": rounds, "programs": programs, "tests": tests, "failed": failed,
            })
        };
        let faults = self.faults();
        let failure = |(test, fault): (&&str, &Fault)| {
            let by: BTreeMap<_, _> = fault
                .by_condition
                .iter()
                .map(|(name, (failed, runs))| (name, json!({ "failed": failed, "runs": runs })))
                .collect();
            json!({
                "test": test, "failed": fault.failures.len(), "runs": fault.runs, "conditions": by,
                "failures": fault.failures,
            })
        };
        let rest = self
            .rest
            .iter()
            .map(|(round, name, n)| json!({ "round": round, "condition": name, "programs": n }));
        json!({
            "seconds": self.seconds,
            "outputs": self.outputs,
            "programs": self.num_programs,
            "conditions": self.conditions.iter().map(condition).collect::<Vec<_>>(),
            "failures": faults.iter().map(failure).collect::<Vec<_>>(),
            "not_run": rest.collect::<Vec<_>>(),
            "runs": self.runs,
        })
    }

    /// Returns the rounds that began in a condition, its program runs, its tests, and those that failed.
    fn counts(&self, condition: &str) -> [usize; 4] {
        let runs: Vec<&Run> = self.runs.iter().filter(|run| run.condition == condition).collect();
        let rounds: BTreeSet<usize> = runs.iter().map(|run| run.round).collect();
        let tests = runs.iter().map(|run| run.tests).sum();
        let failed = runs.iter().map(|run| run.failures.len()).sum();
        [rounds.len(), runs.len(), tests, failed]
    }

    /// Returns what failed, by its name.
    fn faults(&self) -> BTreeMap<&str, Fault<'_>> {
        let mut faults: BTreeMap<&str, Fault> = BTreeMap::new();
        let mut programs: BTreeMap<&str, &str> = BTreeMap::new();
        for run in &self.runs {
            for failure in &run.failures {
                let fault = faults.entry(&failure.test).or_default();
                fault.failures.push(failure);
                fault.by_condition.entry(run.condition).or_default().0 += 1;
                programs.insert(&failure.test, &run.program);
            }
        }
        for (test, fault) in &mut faults {
            for run in self.runs.iter().filter(|run| run.program == programs[test]) {
                fault.runs += 1;
                if let Some((_, runs)) = fault.by_condition.get_mut(run.condition) {
                    *runs += 1;
                }
            }
        }
        faults
    }
}

impl Fault<'_> {
    fn markdown(&self, test: &str) -> String {
        let by: Vec<String> = self
            .by_condition
            .iter()
            .map(|(name, (failed, runs))| format!("`{name}` {failed} of {runs}"))
            .collect();
        let mut text =
            format!("\n`{test}`: failed {} of {} ({})", self.failures.len(), self.runs, by.join(", "));
        let alone: Vec<bool> = self.failures.iter().filter_map(|failure| failure.failed_alone).collect();
        let failed = alone.iter().filter(|failed| **failed).count();
        text += &match alone.len() {
            0 => "; not tried alone\n\n".to_string(),
            tries => format!("; alone: failed {failed} of {tries}\n\n"),
        };
        for failure in &self.failures {
            let _ = write!(text, "- {}", file_name(&failure.output));
            if let Some(output) = &failure.output_alone {
                let _ = write!(text, ", {}", file_name(output));
            }
            if !failure.running.is_empty() {
                let _ = write!(text, "; perhaps running: `{}`", failure.running.join("`, `"));
            }
            text.push('\n');
        }
        text
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(condition: &'static str, round: usize, program: &str, failed: &[(&str, Option<bool>)]) -> Run {
        let failures = failed.iter().map(|(test, failed_alone)| Failure {
            test: format!("{program} {test}"),
            running: if test.starts_with('(') { vec!["x".into(), "y".into()] } else { Vec::new() },
            failed_alone: *failed_alone,
            output: format!("o/{condition}.{round}.txt").into(),
            output_alone: failed_alone.map(|_| "o/alone.txt".into()),
        });
        let failures = failures.collect();
        Run { condition, round, program: program.into(), tests: 5, seconds: 1.0, failures }
    }

    fn report() -> Report {
        Report {
            conditions: vec![("busy", "next to load"), ("isa-amx", "tiles"), ("writer", "next to a writer")],
            skipped: BTreeMap::from([("isa-amx", "the processor has no `amx_tile`".to_string())]),
            runs: vec![
                run("busy", 1, "a/lib", &[("t", Some(false))]),
                run("busy", 1, "b/lib", &[]),
                run("writer", 1, "a/lib", &[]),
                run("writer", 1, "b/lib", &[("(died: signal 9)", None)]),
                run("busy", 2, "a/lib", &[("t", Some(true))]),
            ],
            rest: [
                (2, "busy", 1),
                (2, "writer", 2),
                (3, "busy", 2),
                (3, "writer", 2),
                (4, "busy", 2),
                (4, "writer", 2),
            ]
            .into(),
            num_programs: 2,
            seconds: 61.0,
            outputs: "o".into(),
        }
    }

    #[test]
    fn the_table_counts_and_the_lists_name() {
        let expect = "# Tests under shaking\n\n5 runs of 2 programs in 61 s; outputs of failures are in o.\n\n\
            | condition | what it does | rounds | programs | tests | failed |\n|---|---|---:|---:|---:|---:|\n\
            | `busy` | next to load | 2 | 3 | 15 | 2 |\n\
            | `isa-amx` | skipped: the processor has no `amx_tile` | | | | |\n\
            | `writer` | next to a writer | 1 | 2 | 10 | 1 |\n\n\
            `a/lib t`: failed 2 of 3 (`busy` 2 of 2); alone: failed 1 of 2\n\n\
            - busy.1.txt, alone.txt\n- busy.2.txt, alone.txt\n\n\
            `b/lib (died: signal 9)`: failed 1 of 2 (`writer` 1 of 1); not tried alone\n\n\
            - writer.1.txt; perhaps running: `x`, `y`\n\n\
            Not run:\n\n- round 2 of `busy`: 1 of 2 programs\n- rounds 3 to 4 of `busy`\n- rounds 2 to 4 of `writer`\n";
        assert_eq!(report().markdown(), expect);
    }

    #[test]
    fn a_suite_that_passes_says_so() {
        let report = Report { runs: vec![run("busy", 1, "a/lib", &[])], ..Report::default() };
        assert!(report.markdown().ends_with("\nNo test failed.\n"));
        assert!(!report.has_failures());
    }

    #[test]
    fn the_json_has_the_same_numbers() {
        let json = report().json();
        assert_eq!(json["conditions"][0]["failed"], 2);
        assert_eq!(json["conditions"][1]["skipped"], "the processor has no `amx_tile`");
        let failure = &json["failures"][0];
        assert_eq!(
            (&failure["test"], &failure["failed"], &failure["runs"]),
            (&json!("a/lib t"), &json!(2), &json!(3))
        );
        assert_eq!(failure["conditions"]["busy"], json!({ "failed": 2, "runs": 2 }));
        assert_eq!(json["not_run"][1], json!({ "round": 2, "condition": "writer", "programs": 2 }));
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(5));
    }
}
