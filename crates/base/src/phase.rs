//! The phases of a step. Memory of different phases overlays; resident memory does not.

use serde::{Serialize, Serializer};

crate::names! {
    /// A phase of the step whose memory may use the same bytes as another's. In the order of a step, and by its name in
    /// `plan --json`.
    #[derive(PartialOrd, Ord)]
    Phase {
        /// Samples responses.
        Rollout = "rollout",
        /// Scores each response with the reward model.
        Reward = "reward",
        /// Runs forward passes without gradients: reference log-probs.
        Score = "score",
        /// Runs the critic: values of the rollout, then its own forward, backward and optimizer.
        Critic = "critic",
        /// Runs forward, backward and optimizer.
        Update = "update",
    }
}

/// The phases in which a region lives. Resident regions live in all: their contents survive phase changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhaseSet(u8);

impl PhaseSet {
    /// Every phase.
    pub const RESIDENT: PhaseSet = PhaseSet(0b1000_0000);
    /// Lives in `Phase::Rollout`.
    pub const ROLLOUT: PhaseSet = PhaseSet::of(&[Phase::Rollout]);
    /// Lives in `Phase::Reward`.
    pub const REWARD: PhaseSet = PhaseSet::of(&[Phase::Reward]);
    /// Lives in `Phase::Score`.
    pub const SCORE: PhaseSet = PhaseSet::of(&[Phase::Score]);
    /// Lives in `Phase::Critic`.
    pub const CRITIC: PhaseSet = PhaseSet::of(&[Phase::Critic]);
    /// Lives in `Phase::Update`.
    pub const UPDATE: PhaseSet = PhaseSet::of(&[Phase::Update]);

    /// Returns a set of phases; its regions' contents end with each phase.
    pub const fn of(phases: &[Phase]) -> PhaseSet {
        let (mut bits, mut i) = (0, 0);
        while i < phases.len() {
            bits |= 1 << phases[i] as u8;
            i += 1;
        }
        PhaseSet(bits)
    }

    /// Returns true for resident regions.
    pub const fn is_resident(self) -> bool {
        self.0 & Self::RESIDENT.0 != 0
    }

    /// Returns true if the region occupies bytes during `phase`.
    pub const fn contains(self, phase: Phase) -> bool {
        self.is_resident() || self.0 & (1 << phase as u8) != 0
    }

    /// Returns names for people and JSON: `["resident"]` or the phases.
    pub fn names(self) -> Vec<&'static str> {
        if self.is_resident() {
            return vec!["resident"];
        }
        Phase::ALL.into_iter().filter(|&p| self.contains(p)).map(Phase::name).collect()
    }
}

impl Serialize for PhaseSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}
