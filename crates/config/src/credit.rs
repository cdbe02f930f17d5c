//! `environment.credit`: whether a method can credit the rewards of single turns, and what it compares then.

use super::limits::contradiction;
use super::provenance::Provenance;
use super::sections::{Environment, RunFile};
use super::values::Credit;
use crate::RunSpec;
use plimsoll_algo::advantage::Advantage;
use plimsoll_algo::turns::TurnCredit;
use plimsoll_base::Result;

/// Refuses to credit turns where the run's advantage has no meaning for them.
pub(super) fn check(run: &RunFile, environment: &Environment, at: &Provenance) -> Result<()> {
    let (credit, advantage) = (environment.credit, run.loss.baseline());
    if credit == Credit::Episode || (credit == Credit::Turn && !advantage.compares_group()) {
        return Ok(());
    }
    let why = match (credit, advantage) {
        (_, advantage) if !advantage.compares_group() => "which compares no group",
        (_, Advantage::Gpg) => "which counts the whole samples of a step that have a reward of 0",
        (_, Advantage::Lead) => "which pays the best whole sample of a group and no other",
        (_, Advantage::Decoupled) => "which compares each reward of a whole sample by itself",
        (Credit::Process, Advantage::Rloo) => {
            "which leaves a sample out of its own baseline, and here an episode's other turns stay in it"
        }
        (Credit::Process, Advantage::LengthWeighted) => "which weighs whole samples by their lengths",
        _ => return discount(run, credit, at),
    };
    let message = format!("environment.credit = \"{credit}\" with advantage `{advantage}`, {why}");
    let takes = match credit {
        Credit::Process => "\"group_norm\" or \"mean_baseline\"",
        _ => "\"group_norm\", \"mean_baseline\", \"rloo\" or \"length_weighted\"",
    };
    Err(contradiction(at, "environment.credit", &message)
        .hint(format!("set loss.advantage = {takes}, or environment.credit = \"episode\"")))
}

/// Refuses a discount: it is one of tokens, and rewards of turns are compared undiscounted.
fn discount(run: &RunFile, credit: Credit, at: &Provenance) -> Result<()> {
    let gamma = run.loss.gamma;
    if gamma == 1.0 {
        return Ok(());
    }
    let message = format!(
        "loss.gamma = {gamma} with environment.credit = \"{credit}\", where a group is compared turn by turn"
    );
    Err(contradiction(at, "loss.gamma", &message).hint("remove loss.gamma, which discounts tokens"))
}

impl RunSpec {
    /// Returns how the turns of a group's episodes are compared; `None` where whole samples are, or where a turn's
    /// reward is placed on its last token as it is.
    pub fn turn_credit(&self) -> Option<TurnCredit> {
        let group = Advantage::of_shaping(self.objective?.shaping.group);
        match self.environment.as_ref()?.credit {
            Credit::Turn if group.compares_group() => Some(TurnCredit::Returns),
            Credit::Process => Some(TurnCredit::Process),
            Credit::Turn | Credit::Episode => None,
        }
    }
}
