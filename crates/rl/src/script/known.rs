//! Which runs a script can lead: what a run's own steps would do and a script is not offered is refused by its key,
//! before anything is allocated.

use super::peer::Script;
use super::room::ScriptLimits;
use plimsoll_algo::kl::KlController;
use plimsoll_algo::shaping::GroupShaping;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{LearnsFrom, Objective, RunSpec, SupplyKind};
use plimsoll_plan::Facts;

/// Returns the host bytes of the arrays that come from a script; 0 without one.
///
/// Errors: `script-unsupported`.
pub(crate) fn planned(script: Option<&Script>, run: &RunSpec, facts: &Facts) -> Result<Bytes> {
    match script {
        None => Ok(Bytes(0)),
        // A request may have a form of its own next to the run's.
        Some(_) => check(run, facts).map(|()| ScriptLimits::of(run, facts).bytes() + facts.host.schema),
    }
}

/// Requires a run that a script can lead.
fn check(run: &RunSpec, facts: &Facts) -> Result<()> {
    let rows = of_method(run).into_iter().chain(of_run(run, facts));
    match rows.into_iter().find(|(has, ..)| *has) {
        Some((_, what, hint)) => {
            let message = format!("{what}: a script cannot lead this run");
            Err(Error::usage("script-unsupported", message).hint(hint))
        }
        None => Ok(()),
    }
}

type Row = (bool, &'static str, &'static str);

fn of_method(run: &RunSpec) -> Vec<Row> {
    let samples = run.learns_from() == Some(LearnsFrom::Samples);
    let Some(objective) = run.objective().filter(|_| samples) else {
        return vec![(true, "the method samples nothing", "set method = \"grpo\"")];
    };
    let Objective { filter, steps, correction, covariance, kl, shaping, .. } = objective;
    let by_greedy = matches!(
        shaping.group,
        GroupShaping::Greedy | GroupShaping::Decoupled { .. } | GroupShaping::OptimalToken
    );
    let adapts = kl.is_some_and(|kl| matches!(kl.controller, KlController::Adaptive { .. }));
    let own = "leave it out: the script shapes its own advantages";
    vec![
        (run.critic().is_some(), "the method has a critic", "set method = \"grpo\""),
        (run.distill().is_some(), "the method has a teacher", "set method = \"grpo\""),
        (by_greedy, "the method draws or scores more than a script asks for", "set method = \"grpo\""),
        (covariance.is_some(), "loss.covariance", own),
        (run.estimator().is_some(), "loss.advantage is a function", own),
        (filter.is_some(), "loss.dynamic_sampling", own),
        (steps.is_some(), "loss.step_credit", own),
        (correction.is_some(), "loss.correction", own),
        (kl.is_some_and(|kl| kl.in_reward), "loss.kl_in = \"reward\"", "set loss.kl_in = \"loss\""),
        (adapts, "loss.kl_target", "set loss.kl_coef alone"),
    ]
}

fn of_run(run: &RunSpec, facts: &Facts) -> Vec<Row> {
    let waits = run.supply() != SupplyKind::Fresh || run.reuse() > 0;
    vec![
        (
            run.environment().is_some(),
            "[environment]",
            "play the turns in the script: sample takes prompts as tokens",
        ),
        (waits, "[async]", "leave it out: the script keeps what it likes"),
        (facts.sight.is_some(), "a model that sees", "choose a model of text"),
        (facts.share.ranks > 1, "several ranks", "start it without --ranks"),
    ]
}
