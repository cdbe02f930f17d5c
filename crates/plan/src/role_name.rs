//! The names of a run's models by what they are for, and a value for each.

plimsoll_base::names! {
    /// Which role a model has; its name is that in regions of the plan, as in `actor.weights`.
    RoleName {
        /// The policy: it is sampled from and trained.
        Actor = "actor",
        /// The actor as it was before its first step.
        Reference = "reference",
        /// The value function of `ppo`.
        Critic = "critic",
        /// A reward model: trained by `reward_model`, or scoring responses as a reward.
        Reward = "reward",
    }
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
