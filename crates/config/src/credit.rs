//! `environment.credit` and `loss.step_credit`: whether a method can credit the rewards of single turns, or of steps of
//! a response, and what it compares then.

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
    let how = match environment.credit {
        Credit::Episode => return Ok(()),
        Credit::Turn if !run.loss.baseline().compares_group() => return Ok(()),
        Credit::Turn => TurnCredit::Returns,
        Credit::Process => TurnCredit::Process,
    };
    compared(run, "environment.credit", how, "environment.credit = \"episode\"", at)
}

/// Refuses to credit steps of responses where there are none, or where the run's advantage has no meaning for them.
pub(super) fn check_steps(run: &RunFile, at: &Provenance) -> Result<()> {
    let Some(how) = run.loss.step_credit else { return Ok(()) };
    let key = "loss.step_credit";
    let refuse = |why: &str, hint: &str| {
        Err(contradiction(at, key, &format!("`{key}` is set, but {why}")).hint(hint.to_string()))
    };
    if run.method.spec().sampling.is_none() {
        return refuse(&format!("method `{}` samples no responses", run.method), "remove loss.step_credit");
    }
    if run.environment.is_some() {
        return refuse("an [environment] has turns", "set environment.credit, and remove loss.step_credit");
    }
    let returns = |kind: &str| ["python:", "http:", "https:"].iter().any(|form| kind.starts_with(form));
    if !run.reward.iter().any(|reward| returns(&reward.kind)) {
        let hint = "add a [[reward]] with kind = \"python:FILE.py:FUNCTION\", or remove loss.step_credit";
        return refuse("no [[reward]] can return steps", hint);
    }
    if run.loss.overlong_buffer.is_some() {
        return refuse(
            "loss.overlong_buffer costs whole responses reward",
            "remove loss.overlong_buffer, and add a [[reward]] with kind = \"length\"",
        );
    }
    compared(run, key, how, "remove loss.step_credit", at)
}

/// Refuses the advantages that cannot be compared turn by turn. `else_set`: what a hint names otherwise.
fn compared(run: &RunFile, key: &str, how: TurnCredit, else_set: &str, at: &Provenance) -> Result<()> {
    let advantage = run.loss.baseline();
    let why = match (how, advantage) {
        (_, advantage) if !advantage.compares_group() => "which compares no group",
        (_, Advantage::Gpg) => "which counts the whole samples of a step that have a reward of 0",
        (_, Advantage::Lead) => "which pays the best whole sample of a group and no other",
        (_, Advantage::Decoupled) => "which compares each reward of a whole sample by itself",
        (_, Advantage::OptimalToken) => "which has a baseline of each token",
        (TurnCredit::Process, Advantage::Rloo) => {
            "which leaves a sample out of its own baseline, and here an episode's other turns stay in it"
        }
        (TurnCredit::Process, Advantage::LengthWeighted) => "which weighs whole samples by their lengths",
        _ => return discount(run, key, how, at),
    };
    let takes = match how {
        TurnCredit::Process => "\"group_norm\" or \"mean_baseline\"",
        TurnCredit::Returns => "\"group_norm\", \"mean_baseline\", \"rloo\" or \"length_weighted\"",
    };
    let message = format!("{key} = \"{how}\" with advantage `{advantage}`, {why}");
    Err(contradiction(at, key, &message).hint(format!("set loss.advantage = {takes}, or {else_set}")))
}

/// Refuses a discount: it is one of tokens, and rewards of turns are compared undiscounted.
fn discount(run: &RunFile, key: &str, how: TurnCredit, at: &Provenance) -> Result<()> {
    let gamma = run.loss.gamma;
    if gamma == 1.0 {
        return Ok(());
    }
    let message =
        format!("loss.gamma = {gamma} with {key} = \"{how}\", where a group is compared turn by turn");
    Err(contradiction(at, "loss.gamma", &message).hint("remove loss.gamma, which discounts tokens"))
}

impl RunSpec {
    /// Returns how the turns of a group's episodes, or the steps of its responses, are compared; `None` where whole
    /// samples are, or where a turn's reward is placed on its last token as it is.
    pub fn turn_credit(&self) -> Option<TurnCredit> {
        let objective = self.objective?;
        let Some(environment) = &self.environment else { return objective.steps };
        match environment.credit {
            Credit::Turn => {
                let group = Advantage::of_shaping(objective.shaping.group);
                group.compares_group().then_some(TurnCredit::Returns)
            }
            Credit::Process => Some(TurnCredit::Process),
            Credit::Episode => None,
        }
    }
}
