//! What a rollout counts.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutStats {
    pub passes: u64,
    /// Rows computed, including prompts and recomputation.
    pub rows: u64,
    /// Number of preemptions: sequences that gave their blocks back.
    pub preemptions: u64,
    /// Passes that verified drafts, the sequences in them, the drafts, and how many of these were right.
    #[serde(default)]
    pub drafted: Drafted,
}

/// Counts of passes that verified drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafted {
    pub passes: u64,
    /// Sequences of these passes, of which each had a token without drafts.
    pub sequences: u64,
    pub drafts: u64,
    pub accepted: u64,
}

impl Drafted {
    /// Adds the counts of another rollout.
    pub fn add(&mut self, other: &Drafted) {
        self.passes += other.passes;
        self.sequences += other.sequences;
        self.drafts += other.drafts;
        self.accepted += other.accepted;
    }
}

impl RolloutStats {
    /// Adds the counts of another rollout.
    pub fn add_counts(&mut self, other: &RolloutStats) {
        self.passes += other.passes;
        self.rows += other.rows;
        self.preemptions += other.preemptions;
        self.drafted.add(&other.drafted);
    }
}
