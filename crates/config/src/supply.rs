//! Where the samples of a run come from, which `[async]` decides.

use crate::RunSpec;
use crate::sections::{WEIGHT_SYNC_STEP, WEIGHT_SYNC_TICK};

/// A way to draw what steps train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupplyKind {
    /// When a step needs it, for that step and `reuse` further ones.
    Fresh,
    /// More prompts than a step needs are under way: it takes the groups that end first, and the others go on.
    Carried,
    /// `staleness` steps before the step that trains on it.
    Ahead,
    /// The same steps before, and new weights go on with responses that older ones began.
    InFlight,
}

impl RunSpec {
    /// Returns the way to draw what steps train on.
    pub fn supply(&self) -> SupplyKind {
        match self.asynchrony() {
            Some(of) if of.partial_rollouts > 0 => SupplyKind::Carried,
            Some(of) if of.weight_sync != WEIGHT_SYNC_STEP => SupplyKind::InFlight,
            Some(of) if of.staleness > 0 => SupplyKind::Ahead,
            _ => SupplyKind::Fresh,
        }
    }

    /// Returns the schedule of arrivals that the run follows, if it follows one.
    pub fn follows(&self) -> Option<&str> {
        let sync = self.asynchrony()?.weight_sync.as_str();
        (self.supply() == SupplyKind::InFlight && sync != WEIGHT_SYNC_TICK).then_some(sync)
    }

    /// Returns the further steps that a rollout serves.
    pub fn reuse(&self) -> u32 {
        self.asynchrony().map_or(0, |of| of.reuse)
    }

    /// Returns how many steps before its own a step's samples are drawn at most.
    pub fn staleness(&self) -> u32 {
        self.asynchrony().map_or(0, |of| of.staleness)
    }

    /// Returns the prompts that are under way beyond those of a step.
    pub fn partial_rollouts(&self) -> u32 {
        self.asynchrony().map_or(0, |of| of.partial_rollouts)
    }

    /// Returns the most tokens of older weights in a response that is trained without waiting for it.
    pub fn stale_tokens_max(&self) -> Option<u32> {
        self.asynchrony()?.stale_tokens_max
    }

    /// Returns the ranks that only sample.
    pub fn rollout_ranks(&self) -> u32 {
        self.asynchrony().map_or(0, |of| of.rollout_ranks)
    }

    /// Returns the prompts of a rollout, which serves the step that samples it and `reuse` further ones.
    pub fn prompts_per_rollout(&self) -> u64 {
        u64::from(self.rollout.prompts_per_step) * (1 + u64::from(self.reuse()))
    }

    /// Returns the prompts that are under way together.
    pub fn prompts_under_way(&self) -> u64 {
        self.prompts_per_rollout() + u64::from(self.partial_rollouts())
    }

    /// Returns the sequences that may have begun and not ended when a step is made.
    pub fn sequences_under_way(&self) -> u64 {
        let group = u64::from(self.rollout.group_size);
        match self.supply() {
            SupplyKind::Carried => u64::from(self.partial_rollouts()) * group,
            SupplyKind::InFlight => self.sequences_per_step(),
            SupplyKind::Fresh | SupplyKind::Ahead => 0,
        }
    }

    /// True if the kept samples of a rollout outlive it in a separate buffer: they wait for later steps, or for further
    /// rounds.
    pub fn holds_samples(&self) -> bool {
        self.objective().is_some_and(|objective| objective.filter.is_some() || self.reuse() > 0)
    }
}
