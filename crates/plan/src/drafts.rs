//! What the rollout engine of a run may draft.

use crate::cost;
use crate::facts::Facts;
use crate::planner::Planner;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{RunSpec, Speculate};
use plimsoll_rollout::{DraftLimits, DraftSource, EngineLimits, PassCosts};

/// Most rows of a pass that verifies drafts: the most that `PassCosts` has a cost for.
const ROWS: usize = 256;

/// Seconds that a pass takes longer if the host must see its tokens before the next one, and those of each of its rows:
/// on an H200 passes of SmolLM2-135M with 8 rows took 0.68 ms after each other, and with some 18 rows of drafts 0.76;
/// with 64 rows 0.77, and 1.53 with drafts, 186 rows.
const WAIT_S: f64 = 6e-5;
const WAIT_ROW_S: f64 = 3e-6;

/// Requires that what the run file asks to be drafted can be.
///
/// Errors: `not-built`.
pub(crate) fn check(run: &RunSpec, facts: &Facts) -> Result<()> {
    if !run.rollout.speculate.is_required() || !facts.spec.has_states() {
        return Ok(());
    }
    let message = format!(
        "`rollout.speculate` = \"{}\" is not built yet for models with linear attention",
        run.rollout.speculate
    );
    Err(Error::usage("not-built", message)
        .fact("a wrong draft would have changed a response's state, which has no earlier one to go back to")
        .hint("set rollout.speculate = \"auto\", or remove it"))
}

impl Planner<'_> {
    /// Returns what an engine with these limits may draft; none where `rollout.speculate` asks for none, or for what
    /// can be where nothing can.
    pub(crate) fn drafts(&self, run: &RunSpec, limits: &EngineLimits) -> Option<DraftLimits> {
        let source = match run.rollout.speculate {
            Speculate::Ngram => DraftSource::Ngram,
            Speculate::Suffix | Speculate::Auto => DraftSource::Suffix,
            Speculate::Off | Speculate::Mtp | Speculate::Trained => return None,
        };
        let serves = run.plays_agents() || self.facts.host.clients > Bytes(0);
        if serves || run.rollout.schema.is_some() || run.trains_scores() || self.facts.spec.has_states() {
            return None;
        }
        let depth = run.rollout.speculate_depth as usize;
        let step = limits.samples;
        let others = match source {
            // No response is drafted from another one.
            DraftSource::Ngram => 0,
            DraftSource::Suffix => run.rollout.speculate_texts.value().map_or(step, |texts| texts as usize),
        };
        let prompts = (step + others).div_ceil(run.rollout.group_size.max(1) as usize);
        // In the middle of the longest responses.
        let context = (limits.prompt_tokens + limits.new_tokens / 2) as f64;
        let pass = cost::of_passes(&self.facts.spec, run.model_options.dtype.dtype(), self.of_rank, context);
        let waits = if limits.ahead { 1.0 } else { 0.0 };
        let costs = |drafts: f64| {
            std::array::from_fn(|bits| {
                let rows = f64::from(1 << bits);
                let wait = drafts * waits * (WAIT_S + rows * WAIT_ROW_S);
                (1000.0 * (pass(rows) + wait) / pass(1.0)).round() as u32
            })
        };
        Some(DraftLimits {
            source,
            depth,
            rows: (limits.sequences * (1 + depth)).min(ROWS.max(limits.sequences)),
            texts: DraftLimits::texts_of(prompts, step + others, limits),
            costs: [PassCosts(costs(0.0)), PassCosts(costs(1.0))],
        })
    }
}
