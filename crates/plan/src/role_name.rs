//! The roles of a run's models, and a value for each role.

use plimsoll_config::REWARD_MODELS_MAX;

/// The role of a model; its name is used in regions of the plan, as in `actor.weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// The policy, which is sampled from and trained.
    Actor,
    /// The actor before its first step.
    Reference,
    /// The value function of `ppo`.
    Critic,
    /// A model that `distill` learns from, below `TEACHERS_MAX`: it scores the actor's samples.
    Teacher(u8),
    /// A reward model by its index in the run file, below `REWARD_MODELS_MAX`; `reward_model` trains the first.
    Reward(u8),
}

/// Most models of a teacher.
const TEACHERS_MAX: usize = 1;

const NAMES: [&str; 3 + TEACHERS_MAX + REWARD_MODELS_MAX] =
    ["actor", "reference", "critic", "teacher", "reward", "reward2", "reward3", "reward4"];

impl RoleName {
    /// The first model of a teacher.
    pub const TEACHER: RoleName = RoleName::Teacher(0);

    /// Returns all roles, in the order of their names.
    pub fn all() -> impl Iterator<Item = RoleName> {
        use RoleName::{Actor, Critic, Reference};
        [Actor, Reference, Critic].into_iter().chain(RoleName::teachers()).chain(RoleName::rewards())
    }

    /// Returns the roles of a teacher's models.
    pub fn teachers() -> impl Iterator<Item = RoleName> {
        (0..TEACHERS_MAX as u8).map(RoleName::Teacher)
    }

    /// Returns the roles of the reward models that score responses, in the order of the run file.
    pub fn rewards() -> impl Iterator<Item = RoleName> {
        (0..REWARD_MODELS_MAX as u8).map(RoleName::Reward)
    }

    pub const fn name(self) -> &'static str {
        NAMES[self.index()]
    }

    const fn index(self) -> usize {
        match self {
            RoleName::Actor => 0,
            RoleName::Reference => 1,
            RoleName::Critic => 2,
            RoleName::Teacher(place) => 3 + place as usize,
            RoleName::Reward(place) => 3 + TEACHERS_MAX + place as usize,
        }
    }
}

/// A value for each role that has one, such as the path of its model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerRole<T>([Option<T>; NAMES.len()]);

impl<T> PerRole<T> {
    pub const fn none() -> PerRole<T> {
        PerRole([const { None }; NAMES.len()])
    }

    pub fn with(mut self, role: RoleName, value: Option<T>) -> PerRole<T> {
        self.0[role.index()] = value;
        self
    }

    pub fn get(&self, role: RoleName) -> Option<&T> {
        self.0[role.index()].as_ref()
    }

    /// Sets the values of a teacher's models, in their order.
    pub fn with_teachers(self, values: impl Iterator<Item = T>) -> PerRole<T> {
        RoleName::teachers().zip(values).fold(self, |all, (role, value)| all.with(role, Some(value)))
    }

    /// Returns the values of a teacher's models, with their roles.
    pub fn teachers(&self) -> impl Iterator<Item = (RoleName, &T)> {
        RoleName::teachers().filter_map(|role| Some((role, self.get(role)?)))
    }

    /// Sets the reward models' values, in the order of the run file.
    pub fn with_rewards(self, values: impl Iterator<Item = T>) -> PerRole<T> {
        RoleName::rewards().zip(values).fold(self, |all, (role, value)| all.with(role, Some(value)))
    }

    /// Returns the reward models' values, with their roles.
    pub fn rewards(&self) -> impl Iterator<Item = (RoleName, &T)> {
        RoleName::rewards().filter_map(|role| Some((role, self.get(role)?)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_role() {
        assert!(RoleName::all().map(RoleName::name).eq(NAMES));
    }
}
