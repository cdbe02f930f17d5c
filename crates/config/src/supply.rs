//! Where the samples of a run come from, which `[async]` decides.

use crate::RunSpec;
use crate::sections::{ARRIVALS_STEP, ARRIVALS_TICK};

/// A way to draw what steps train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupplyKind {
    /// When a step needs it, for that step and `reuse` further ones.
    Fresh,
    /// More prompts than a step needs are under way: it takes the groups that end first, and the others go on.
    Carried,
    /// `staleness` steps before the step that trains on it.
    Ahead,
    /// As `Ahead`, and new weights go on with responses that older ones began.
    Midway,
}

impl RunSpec {
    /// Returns the way to draw what steps train on.
    pub fn supply(&self) -> SupplyKind {
        match &self.asynchrony {
            of if of.partial_rollouts > 0 => SupplyKind::Carried,
            of if of.weight_sync != ARRIVALS_STEP => SupplyKind::Midway,
            of if of.staleness > 0 => SupplyKind::Ahead,
            _ => SupplyKind::Fresh,
        }
    }

    /// Returns the schedule of arrivals that the run follows, if it follows one.
    pub fn follows(&self) -> Option<&str> {
        let is_path = self.supply() == SupplyKind::Midway && self.asynchrony.weight_sync != ARRIVALS_TICK;
        is_path.then_some(self.asynchrony.weight_sync.as_str())
    }

    /// Returns the prompts of a rollout, which serves the step that samples it and `reuse` further ones.
    pub fn prompts_per_rollout(&self) -> u64 {
        u64::from(self.rollout.prompts_per_step) * (1 + u64::from(self.asynchrony.reuse))
    }

    /// Returns the prompts that are under way together.
    pub fn prompts_under_way(&self) -> u64 {
        self.prompts_per_rollout() + u64::from(self.asynchrony.partial_rollouts)
    }

    /// Returns the sequences that may have begun and not ended when a step is made.
    pub fn sequences_under_way(&self) -> u64 {
        let group = u64::from(self.rollout.group_size);
        match self.supply() {
            SupplyKind::Carried => u64::from(self.asynchrony.partial_rollouts) * group,
            SupplyKind::Midway => self.sequences_per_step(),
            SupplyKind::Fresh | SupplyKind::Ahead => 0,
        }
    }

    /// True if the kept samples of a rollout outlive it in a separate buffer: they wait for later steps, or for further
    /// rounds.
    pub fn holds_samples(&self) -> bool {
        self.objective.is_some_and(|objective| objective.filter.is_some() || self.asynchrony.reuse > 0)
    }
}
