//! The trait of an environment, and its description.

use crate::Space;

/// The fixed properties of an environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name, for example `CartPole-v1`.
    pub id: String,
    /// Its observations.
    pub observation: Space,
    /// Its actions.
    pub action: Space,
    /// Steps after which the caller truncates its episodes; `None` for never.
    pub episode_steps_max: Option<u32>,
}

/// The result of one step besides the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Reward of the step. NaN is `env-bad-output`.
    pub reward: f64,
    /// The task ended.
    pub terminated: bool,
    /// The environment itself stopped the episode; its step limit is applied by the caller.
    pub truncated: bool,
}

/// One environment: a value that one thread owns and steps.
///
/// Observations and actions are slots of bytes in the order and alignment of `Slot::of` their space, in the machine's
/// byte order. A panic in `reset` or `step` ends the episode, not the run: the environment is made again.
pub trait Environment: Send {
    /// Returns its spaces and limits, equal at every call.
    fn spec(&self) -> Spec;

    /// Begins an episode that follows from `seed` alone, and writes its first observation.
    fn reset(&mut self, seed: u64, observation: &mut [u8]);

    /// Takes an action and writes the observation after it, also at the end of the episode. The action is within its
    /// space; further clipping is up to the environment.
    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step;
}
