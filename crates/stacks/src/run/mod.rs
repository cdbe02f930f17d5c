//! The plan of a run of another framework: what each role holds on its card and on its host in each phase, by that
//! framework's own rules, and the first phase that does not fit.
//!
//! Settings come as plain text with their lines; who reads files is the caller. Each number has a formula and names the
//! framework's file and version that it was read in (`docs/stacks.md` explains them). What is not known is listed, never
//! guessed over: an option without a rule here moves nothing, and is said.

mod cases;
mod deepspeed;
mod hazards;
mod ledger;
mod limits;
mod model;
mod openrlhf;
mod options;
mod orz;
mod report;
mod torch;
mod torchrl;
mod trl;
mod verdict;
mod verl;
mod vllm;

pub use ledger::{Cluster, Group, Item, Per, Phase, Pool};
pub use limits::{Known, Limits};
pub use model::{ModelOf, preset_of};
pub use options::Setting;
pub use verdict::{Over, Remedy, Verdict};

use hazards::Hazard;
use options::Options;
use plimsoll_base::{Error, Result};
use serde_json::Value;

/// A framework whose runs can be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// `train_ppo_ray` of OpenRLHF, from 0.1 to 0.11.
    OpenRlhf,
    /// Open-Reasoner-Zero.
    Orz,
    /// verl, and simpleRL-reason's fork of it.
    Verl,
    /// TRL's GRPO and RLOO.
    Trl,
    /// Collectors of TorchRL.
    TorchRl,
}

impl Stack {
    /// All, in the order of the help.
    pub const ALL: [Stack; 5] = [Stack::OpenRlhf, Stack::Orz, Stack::Verl, Stack::Trl, Stack::TorchRl];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Stack::OpenRlhf => "openrlhf",
            Stack::Orz => "orz",
            Stack::Verl => "verl",
            Stack::Trl => "trl",
            Stack::TorchRl => "torchrl",
        }
    }

    /// The stack of this name.
    pub fn named(name: &str) -> Option<Stack> {
        Stack::ALL.into_iter().find(|stack| stack.name() == name)
    }
}

/// What one stack's rules make of its settings.
#[derive(Clone, Debug, Default)]
struct Draft {
    cluster: Cluster,
    items: Vec<Item>,
    hazards: Vec<Hazard>,
    /// What a reader should know: how a setting was read, what is left out.
    notes: Vec<String>,
    /// (role, parameters).
    models: Vec<(&'static str, u64)>,
    /// Phases that the run goes through.
    phases: Vec<Phase>,
}

impl Draft {
    /// Adds rows of a component under a role.
    fn add(&mut self, items: impl IntoIterator<Item = Item>) {
        self.items.extend(items);
    }
}

/// The plan of a run of another framework.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// Whose.
    pub stack: Stack,
    /// The framework's version whose rules were applied, and where it was said.
    pub version: Known<String>,
    /// The machine that it was held against.
    pub limits: Limits,
    /// What comes out.
    pub verdict: Verdict,
    draft: Draft,
    unknown: Vec<String>,
    defaults: Vec<String>,
}

impl RunPlan {
    /// One object.
    pub fn to_json(&self) -> Value {
        report::json(self)
    }

    /// In words, for a terminal.
    pub fn in_words(&self) -> String {
        report::words(self)
    }

    /// True if something would not fit, or would bite.
    pub fn bites(&self) -> bool {
        self.verdict.over.is_some() || self.draft.hazards.iter().any(Hazard::bites)
    }

    /// All rows.
    pub fn items(&self) -> &[Item] {
        &self.draft.items
    }
}

/// Plans a run of `stack` as `settings` start it, on the machine of `limits`.
///
/// `version`: the framework's version where the caller knows it; `models` finds the shape of a model by its name.
/// Errors, exit code 2: `run-value-invalid`, `run-settings-contradict`, `run-machine-unknown`, those of `models`; `size-overflow`.
pub fn plan(
    stack: Stack,
    settings: Vec<Setting>,
    version: Option<&str>,
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<RunPlan> {
    let limits = limits.with_settings(&settings)?;
    let options = Options::new(names(stack), settings);
    let version = limits::version(stack, version, &options)?;
    let draft = draft(stack, &options, &version.value, &limits, models)?;
    let over = verdict::first_over(&draft, &limits)?;
    let remedies = match &over {
        Some(over) => {
            let again = |changed: &Options| self::draft(stack, changed, &version.value, &limits, models);
            verdict::remedies(over, &options, changes(stack), &again, &limits)
        }
        None => Vec::new(),
    };
    let verdict = Verdict { peaks: verdict::peaks(&draft)?, over, remedies };
    let (unknown, defaults) = (options.unknown(), options.defaults());
    Ok(RunPlan { stack, version, limits, verdict, draft, unknown, defaults })
}

fn draft(
    stack: Stack,
    options: &Options,
    version: &str,
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<Draft> {
    let version = limits::numbers(version);
    match stack {
        Stack::OpenRlhf => openrlhf::draft(options, version, limits, models),
        Stack::Orz => orz::draft(options, limits, models),
        Stack::Verl => verl::draft(options, version, limits, models),
        Stack::Trl => trl::draft(options, limits, models),
        Stack::TorchRl => torchrl::draft(options, version, limits),
    }
}

fn names(stack: Stack) -> &'static options::Names {
    match stack {
        Stack::OpenRlhf => &openrlhf::NAMES,
        Stack::Orz => &orz::NAMES,
        Stack::Verl => &verl::NAMES,
        Stack::Trl => &trl::NAMES,
        Stack::TorchRl => &torchrl::NAMES,
    }
}

fn changes(stack: Stack) -> &'static [verdict::Change] {
    match stack {
        Stack::OpenRlhf => openrlhf::CHANGES,
        Stack::Orz => orz::CHANGES,
        Stack::Verl => verl::CHANGES,
        Stack::Trl => trl::CHANGES,
        Stack::TorchRl => torchrl::CHANGES,
    }
}

/// Two settings that cannot both hold.
fn contradiction(message: impl Into<String>, hint: &str) -> Error {
    Error::usage("run-settings-contradict", message).hint(hint)
}
