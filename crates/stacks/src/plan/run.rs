//! Plans a run: a stack's rules turn settings into rows, which are compared with a machine; plans each remedy again.

use super::hazards::Hazard;
use super::ledger::{Item, Ledger};
use super::limits::{self, Known, Limits};
use super::model::ModelOf;
use super::verdict::{self, Comparison, Verdict};
use crate::stack::{Planned, Stack};
use crate::{options::Options, setting::Setting};
use plimsoll_base::{Error, Result};
use std::cell::Cell;

/// Says what a plan of a model with experts ignores.
const EXPERTS: &str = "experts: all of a layer's are planned with it, activations for those that a token goes to, by formula; expert \
    parallelism and experts that get more tokens than others are not looked at";

#[derive(Clone, Debug)]
pub struct RunPlan {
    pub stack: &'static Stack,
    /// The framework's version whose rules apply, and its source.
    pub version: Known<String>,
    pub limits: Limits,
    pub verdict: Verdict,
    pub comparisons: Vec<Comparison>,
    pub(super) ledger: Ledger,
    pub(super) unknown: Vec<String>,
    pub(super) defaults: Vec<String>,
}

impl RunPlan {
    /// Returns true if something does not fit, or would end or spoil the run.
    pub fn has_problem(&self) -> bool {
        self.verdict.over.is_some() || self.ledger.hazards.iter().any(Hazard::is_problem)
    }

    pub fn items(&self) -> &[Item] {
        &self.ledger.items
    }
}

/// Plans a run of `stack` with `settings` on the machine of `limits`.
///
/// `version` is the framework's version if known; `models` finds the shape of a model by name.
/// Errors, exit code 2: `run-trainer-not-planned`, `run-value-invalid`, `run-settings-contradict`,
/// `run-machine-unknown`, those of `models`; `size-overflow`.
pub fn plan(
    stack: &'static Stack,
    settings: Vec<Setting>,
    version: Option<&str>,
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<RunPlan> {
    let planned = planned_trainer(stack, &settings)?;
    let limits = limits.with_settings(&settings)?;
    let options = Options::new(stack.table, settings);
    let version = version_of(stack, planned, version, &options)?;
    let has_experts = Cell::new(false);
    let models =
        |name: &str| models(name).inspect(|spec| has_experts.set(has_experts.get() || spec.has_experts()));
    let rows =
        |options: &Options| (planned.rules)(options, limits::numbers(&version.value), &limits, &models);
    let mut ledger = rows(&options)?;
    if has_experts.get() {
        ledger.note(EXPERTS);
    }
    let peaks = verdict::peaks(&ledger)?;
    let over = verdict::first_over(&ledger, &limits)?;
    let remedies = match &over {
        Some(over) => verdict::remedies(over, &options, planned.changes, &rows, &limits),
        None => Vec::new(),
    };
    let comparisons = (planned.comparisons)(&ledger, &peaks);
    let verdict = Verdict { peaks, over, remedies };
    let (unknown, defaults) = (options.unknown(), options.defaults());
    Ok(RunPlan { stack, version, limits, verdict, comparisons, ledger, unknown, defaults })
}

/// Refuses a trainer whose memory has no rule: another one's rules would plan another run.
fn planned_trainer(stack: &'static Stack, settings: &[Setting]) -> Result<&'static Planned> {
    // Whose defaults a trainer has, as in `unsloth grpo`, moves no memory.
    let trainer = (stack.trainer)(settings).unwrap_or_default();
    let trainer = trainer.rsplit(' ').next().unwrap_or_default().to_string();
    let planned = stack.planned.as_ref();
    if let Some(planned) =
        planned.filter(|planned| trainer.is_empty() || planned.trainers.contains(&trainer.as_str()))
    {
        return Ok(planned);
    }
    let message =
        format!("the file starts {}'s trainer `{trainer}`, whose memory no rule here knows", stack.name);
    let error = Error::usage("run-trainer-not-planned", message).fact(match planned {
        Some(planned) => format!("rules know its trainers {}", planned.trainers.join(", ")),
        None => "rules know none of its trainers".into(),
    });
    Err(error.hint(format!(
        "plimsoll import {} FILE makes a run file of the job, whose memory plimsoll plan computes",
        stack.name
    )))
}

/// Returns the framework's version: by hand, pinned in the file, or the newest with the file's names.
fn version_of(
    stack: &Stack,
    planned: &Planned,
    by_hand: Option<&str>,
    options: &Options,
) -> Result<Known<String>> {
    let known =
        |value: &str, source: String| Known { value: value.into(), source, by_hand: by_hand.is_some() };
    if let Some(version) = by_hand {
        if !version.starts_with(|c: char| c.is_ascii_digit()) {
            let message = format!("--stack-version {version}: not a version");
            return Err(Error::usage("run-value-invalid", message).hint("give numbers, as in 0.8.1"));
        }
        return Ok(known(version, "--stack-version".into()));
    }
    Ok(match options.version(stack.name) {
        Some(one) => known(&one.value, format!("{} of the file", one.place())),
        None => {
            let (newest, why) = (planned.newest)(options);
            known(newest, why.into())
        }
    })
}
