//! How large the rollout engine of a run is: its sequences, the rows of a pass, and the units of each cache.

use crate::planner::{Planner, Purpose};
use plimsoll_arch::{CacheSpec, Caches};
use plimsoll_base::Bytes;
use plimsoll_config::RunSpec;
use plimsoll_rollout::{BIASES_MAX, EngineLimits, LISTED, OwnLogits};

impl Planner<'_> {
    /// Returns the limits of an engine of `sequences` sequences. `rollout.kv_blocks` bounds every cache with blocks.
    pub(crate) fn engine(&self, run: &RunSpec, sequences: usize) -> EngineLimits {
        let prompt_tokens = self.facts.prompt_tokens;
        let new_tokens = if run.trains_scores() { 1 } else { run.response_tokens_max() };
        let shares_prompts = run.samples() && !run.plays_agents();
        let group = if shares_prompts { run.rollout.group_size as usize } else { 1 };
        let prefill = (sequences * prompt_tokens).next_power_of_two().min(self.row.prefill_rows);
        let specs = self.facts.spec.caches(prompt_tokens + new_tokens - 1);
        let has_clients = self.facts.host.clients > Bytes(0);
        let limits = EngineLimits {
            sequences,
            rows: prefill.max(sequences),
            samples: self.samples(run),
            prompt_tokens,
            new_tokens,
            ahead: self.row.runs_ahead,
            listed: if has_clients { LISTED.min(self.facts.spec.vocab as usize) } else { 0 },
            own: self.own_logits(run),
            caches: specs.iter().map(|of| (of.cache, 0)).collect(),
            drafts: None,
        };
        let limits = EngineLimits { drafts: self.drafts(run, &limits), ..limits };
        let units = |of: &CacheSpec| (of.cache, self.units(run, &limits, of, group));
        EngineLimits { caches: specs.iter().map(units).collect(), ..limits }
    }

    /// Returns what logits may have of their own: masks and biases of clients' requests, or masks of the run's schema.
    /// Agents of a run send neither.
    fn own_logits(&self, run: &RunSpec) -> OwnLogits {
        let serves = self.facts.host.clients > Bytes(0) && !run.plays_agents();
        if serves {
            OwnLogits { masks: true, biases: BIASES_MAX }
        } else if run.rollout.schema.is_some() {
            OwnLogits::MASKS
        } else {
            OwnLogits::NONE
        }
    }

    /// Returns the units of a cache with which the engine's sequences never wait, or those that the run file allows.
    fn units(&self, run: &RunSpec, limits: &EngineLimits, of: &CacheSpec, group: usize) -> usize {
        let (cache, sequences) = (of.cache, limits.sequences);
        let enough = |group| limits.enough(cache, sequences, group);
        // In a cache without blocks, groups of an evaluation never wait either, nor those of clients, who ask for any
        // number of responses: groups of two need the most.
        let samples = run.eval.samples.max(1) as usize;
        let evaluation = if self.facts.eval_prompts > 0 { samples } else { 1 };
        let clients = if run.plays_agents() || self.facts.host.clients > Bytes(0) { 2 } else { 1 };
        let others = if cache.has_blocks() { [group; 2] } else { [evaluation, clients] };
        let enough = others.map(enough).into_iter().fold(enough(group), usize::max);
        // A client's prompt may be as long as a sequence.
        let has_clients = self.purpose == Purpose::Sample || run.plays_agents();
        let prompt = if has_clients { limits.context() } else { limits.prompt_tokens };
        let given = run.rollout.kv_blocks.value().map(|n| n as usize);
        let units = cache.of_given(enough, given).max(limits.least(cache, limits.context(), prompt));
        // No sequence should wait for a cache that no layer uses.
        if of.elements == 0 { units.max(enough) } else { units }
    }

    /// Returns the caches of passes over whole sequences, with their units not yet known.
    pub(crate) fn pass_caches(&self) -> Caches {
        let models = self.facts.models.values().chain([&self.facts.spec]);
        models.flat_map(|spec| spec.caches(0)).map(|of| (of.cache, 0)).collect()
    }
}
