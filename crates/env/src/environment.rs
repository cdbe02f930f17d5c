//! The trait of an environment, and what it says about itself.

use crate::Space;

/// What an environment is: fixed for its lifetime.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name, for example `CartPole-v1`.
    pub id: String,
    /// What it shows.
    pub observation: Space,
    /// What it takes.
    pub action: Space,
    /// Steps after which the caller truncates its episodes; none: never.
    pub episode_steps_max: Option<u32>,
}

/// What one step gave in addition to the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// The reward of the step. Not a number is `env-bad-output`.
    pub reward: f64,
    /// The task ended.
    pub terminated: bool,
    /// The environment itself stopped the episode; its limit of steps is not its own business.
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

    /// Takes an action and writes what is seen after it, also where the episode ends.
    /// The action is within its space; clipping it further is the environment's own.
    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step;
}
