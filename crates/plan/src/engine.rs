//! How large the rollout engine of a run is: its sequences, the rows of a pass, blocks of keys, and states.

use crate::role_name::RoleName;
use crate::search::{Planner, Purpose};
use plimsoll_arch::{ModelSpec, Window};
use plimsoll_base::Bytes;
use plimsoll_config::RunSpec;
use plimsoll_rollout::{EngineLimits, WindowLimits};

/// States of one sequence whatever else there is: a prompt's and a response's.
const STATES_MIN: usize = 2;

impl Planner<'_> {
    /// Returns the limits of an engine of some sequences.
    pub(crate) fn engine(&self, run: &RunSpec, sequences: usize) -> EngineLimits {
        let prompt_tokens = self.facts.prompt_tokens;
        let new_tokens = if run.needs.scores { 1 } else { run.response_tokens_max() };
        let shares_prompts = run.samples() && !run.plays_agents();
        let group = if shares_prompts { run.rollout.group_size as usize } else { 1 };
        let enough = EngineLimits::blocks_for(sequences, group, prompt_tokens, new_tokens);
        let one = (prompt_tokens + new_tokens).div_ceil(plimsoll_device::KV_BLOCK) + 1;
        let prefill = (sequences * prompt_tokens).next_power_of_two().min(self.row.prefill_rows);
        let limits = EngineLimits {
            sequences,
            rows: prefill.max(sequences),
            blocks: run.rollout.kv_blocks.value().map_or(enough, |n| n as usize).max(one),
            samples: self.samples(run),
            prompt_tokens,
            new_tokens,
            ahead: self.row.runs_ahead,
            window: None,
            states: match self.facts.spec.has_states() {
                true => self.states(run, sequences, group),
                false => 0,
            },
        };
        self.with_windows(run, limits, group)
    }

    /// Returns the states with which `sequences` sequences never wait, in the groups of a step, of an evaluation, and of clients, who ask
    /// for any number of responses: groups of two have most.
    fn states(&self, run: &RunSpec, sequences: usize, group: usize) -> usize {
        let samples = run.eval.samples.max(1) as usize;
        let evaluation = if self.facts.eval_prompts > 0 { samples } else { 1 };
        let clients = if run.plays_agents() || self.facts.host.clients > Bytes(0) { 2 } else { 1 };
        let of = |group| EngineLimits::states_for(sequences, group);
        [group, evaluation, clients].map(of).into_iter().fold(STATES_MIN, usize::max)
    }

    /// With a cache for the layers with windows, if a sequence may be longer than a window. `rollout.kv_blocks` bounds it too.
    fn with_windows(&self, run: &RunSpec, limits: EngineLimits, group: usize) -> EngineLimits {
        let longest = limits.prompt_tokens + limits.new_tokens - 1;
        let binds = |w: &Window| !w.layers.is_empty() && (w.keys as usize) < longest;
        let Some(window) = self.facts.spec.attention.window.filter(binds) else { return limits };
        let of = |blocks| Some(WindowLimits { keys: window.keys as usize, blocks });
        let limits = EngineLimits { window: of(0), ..limits };
        let enough = limits.window_blocks_for(limits.sequences, group);
        let most = run.rollout.kv_blocks.value().map_or(enough, |n| n as usize);
        // A client's prompt may be as long as a sequence.
        let has_clients = self.purpose == Purpose::Sample || run.plays_agents();
        let prompt = if has_clients { limits.context() } else { limits.prompt_tokens };
        let blocks = enough.min(most).max(limits.window_blocks_least(prompt));
        let limits = EngineLimits { window: of(blocks), ..limits };
        if window.layers.len() < self.facts.spec.layers {
            return limits;
        }
        // No layer has the other cache, so that no sequence should wait for it.
        let EngineLimits { sequences, prompt_tokens, new_tokens, .. } = limits;
        let enough = EngineLimits::blocks_for(sequences, group, prompt_tokens, new_tokens);
        EngineLimits { blocks: limits.blocks.max(enough), ..limits }
    }

    /// True if a model that computes whole sequences has states of linear attention.
    pub(crate) fn has_states(&self) -> bool {
        let models = RoleName::all().filter_map(|role| self.facts.models.get(role));
        models.chain([&self.facts.spec]).any(ModelSpec::has_states)
    }
}
