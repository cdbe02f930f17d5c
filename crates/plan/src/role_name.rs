//! The names of a run's models by what they are for, and a value for each.

use plimsoll_config::REWARD_MODELS_MAX;

plimsoll_base::names! {
    /// Which role a model has; its name is that in regions of the plan, as in `actor.weights`.
    RoleName {
        /// The policy: it is sampled from and trained.
        Actor = "actor",
        /// The actor as it was before its first step.
        Reference = "reference",
        /// The value function of `ppo`.
        Critic = "critic",
        /// What `distill` learns from: it scores what the actor samples.
        Teacher = "teacher",
        /// A reward model: trained by `reward_model`, or the first that scores responses as a reward.
        Reward = "reward",
        /// Further reward models, in the order of the run file.
        Reward2 = "reward2",
        Reward3 = "reward3",
        Reward4 = "reward4",
    }
}

impl RoleName {
    /// The roles of the reward models that score responses, in the order of the run file.
    pub const REWARDS: [RoleName; REWARD_MODELS_MAX] =
        [RoleName::Reward, RoleName::Reward2, RoleName::Reward3, RoleName::Reward4];
}

/// A value for each role that has one, such as the model that it is read from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerRole<T>([Option<T>; RoleName::ALL.len()]);

impl<T> PerRole<T> {
    pub const fn none() -> PerRole<T> {
        PerRole([const { None }; RoleName::ALL.len()])
    }

    pub fn with(mut self, role: RoleName, value: Option<T>) -> PerRole<T> {
        self.0[role as usize] = value;
        self
    }

    pub fn get(&self, role: RoleName) -> Option<&T> {
        self.0[role as usize].as_ref()
    }

    /// Gives the reward models their values, in the order of the run file.
    pub fn with_rewards(self, values: impl Iterator<Item = T>) -> PerRole<T> {
        RoleName::REWARDS.into_iter().zip(values).fold(self, |all, (role, value)| all.with(role, Some(value)))
    }

    /// Returns the values of the reward models, with their roles.
    pub fn rewards(&self) -> impl Iterator<Item = (RoleName, &T)> {
        RoleName::REWARDS.into_iter().filter_map(|role| Some((role, self.get(role)?)))
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    pub fn each_ref(&self) -> PerRole<&T> {
        PerRole(self.0.each_ref().map(Option::as_ref))
    }

    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> PerRole<U> {
        PerRole(self.0.map(|value| value.map(&mut f)))
    }
}
