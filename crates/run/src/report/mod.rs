//! The report of a run: `curves.svg`, and responses to the same prompts before and after in `samples/side_by_side.md`.
//! Both are made from the run directory, so they are complete for resumed runs.

mod curves;
mod drawing;
mod samples;

pub use curves::{Curves, Points};
pub use samples::{Pair, Shown};

use crate::run_dir::{RunDir, step_name};
use plimsoll_base::Result;
use std::path::Path;

pub(crate) const CURVES_SVG: &str = "curves.svg";
pub(crate) const SIDE_BY_SIDE: &str = "samples/side_by_side.md";

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub curves: Curves,
    /// Responses to the same prompts in the first and the last evaluation, or in the first and the last step.
    pub pairs: Vec<Pair>,
    /// True if samples exist from before and after, with or without a common prompt.
    has_both: bool,
}

impl Report {
    /// Reads the directory of a run of `steps` steps.
    ///
    /// Errors: `run-dir-unreadable`.
    pub fn read(dir: &Path, steps: u32) -> Result<Report> {
        let curves = Curves::read(&dir.join("events.jsonl"))?;
        let sets: Vec<&str> = curves.evals.keys().map(String::as_str).collect();
        let name = |step: u32, set: &&str| eval_samples_name(step, (sets.len() > 1).then_some(*set));
        let evaluated = sets.iter().map(|set| (name(0, set), name(steps, set)));
        let files = evaluated.chain([(step_name(1), step_name(steps))]);
        let folder = dir.join("samples");
        let (mut pairs, mut has_both) = (Vec::new(), false);
        for (first, last) in files.filter(|(first, last)| first != last) {
            if pairs.is_empty()
                && let Some(found) = samples::pairs(&folder, &first, &last)?
            {
                (pairs, has_both) = (found, true);
            }
        }
        Ok(Report { curves, pairs, has_both })
    }
}

/// Writes both files.
///
/// Errors: `run-dir-unreadable`, `write-failed`, `disk-full`.
pub fn write(dir: &RunDir, title: &str, steps: u32) -> Result<()> {
    let report = Report::read(dir.path(), steps)?;
    dir.write_text(CURVES_SVG, &drawing::draw(&report.curves, title))?;
    if !report.has_both {
        return Ok(());
    }
    dir.write_text(SIDE_BY_SIDE, &samples::markdown(&report.pairs, title))
}

/// Returns the name of an evaluation's samples; `set` where there are several sets.
pub fn eval_samples_name(step: u32, set: Option<&str>) -> String {
    match set {
        None => format!("eval-{step:06}"),
        Some(set) => format!("eval-{step:06}-{set}"),
    }
}
