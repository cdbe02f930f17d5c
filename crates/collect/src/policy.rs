//! The trait for choosing actions, and the random policy. Policies over models are in other crates.

use plimsoll_base::{PolicyVersion, Result, rng};
use plimsoll_env::{Domain, ElementType, Leaf, Slot, Spec, seed};

/// The observations of a group of k environments; every list has one entry per environment.
#[derive(Clone, Copy, Debug)]
pub struct ObservationBatch<'a> {
    /// Observation slots, [k, slot bytes].
    pub observations: &'a [u8],
    /// The leaves of a slot.
    pub slot: &'a Slot,
    /// Number of the first environment in the run; the others follow it.
    pub first_env: u32,
    /// The number of each one's episode.
    pub episodes: &'a [u32],
    /// Steps that each has taken in its episode.
    pub steps: &'a [u32],
}

/// The output of a policy; every list has one entry per environment.
#[derive(Debug)]
pub struct ActionBatch<'a> {
    /// Action slots, [k, slot bytes].
    pub actions: &'a mut [u8],
    /// The leaves of a slot.
    pub slot: &'a Slot,
    /// Log-probability of each action, [k]; empty unless the policy gives them.
    pub logprobs: &'a mut [f32],
    /// Value of each observation, [k]; empty unless the policy gives them.
    pub values: &'a mut [f32],
}

/// Values of a policy that a batch stores in addition to actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Log-probabilities.
    pub logprobs: bool,
    /// Values.
    pub values: bool,
}

/// Says what to do with a number outside the bounds of its action space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beyond {
    /// The run ends with `action-out-of-range`.
    #[default]
    Refuse,
    /// The environment gets the bound; the batch stores the policy's choice. For Gaussians.
    Clip,
}

/// Chooses actions for a group of environments. Each thread of a collector has its own.
///
/// A row does not depend on the other rows of its batch. Randomness is keyed by environment, episode and step
/// (`plimsoll_env::seed::action_noise`), so that it does not depend on how environments are grouped either.
pub trait Policy: Send {
    /// Requires that the policy can act on these spaces.
    ///
    /// Errors: `policy-space-mismatch`.
    fn check(&self, spec: &Spec) -> Result<()>;

    /// Returns what it gives in addition to actions.
    fn extras(&self) -> Extras {
        Extras::default()
    }

    /// Returns what to do with actions outside their bounds.
    fn beyond(&self) -> Beyond {
        Beyond::default()
    }

    /// Fills `actions`. Returns the version of the weights used: the newest at this call.
    fn act(&mut self, observations: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion;
}

/// Draws each action uniformly from its space; with an infinite bound, from a standard normal distribution next to
/// the other bound.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Determines every action.
    pub run_seed: u64,
}

impl Policy for Random {
    fn check(&self, _: &Spec) -> Result<()> {
        Ok(())
    }

    fn act(&mut self, observations: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion {
        let ObservationBatch { first_env, episodes, steps, .. } = *observations;
        let noise = |i: usize, block: u32| {
            seed::action_noise(self.run_seed, first_env + i as u32, episodes[i], steps[i], block)
        };
        if let [Leaf { domain: Domain::Choice { n, start }, .. }] = actions.slot.leaves[..] {
            for (i, action) in actions.actions.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let bits = noise(i, 0);
                *action = (start + rng::below(bits[0], bits[1], n) as i64).to_ne_bytes();
            }
            return PolicyVersion::default();
        }
        for (i, slot) in actions.actions.chunks_exact_mut(actions.slot.bytes).enumerate() {
            let mut block = 0;
            for leaf in &actions.slot.leaves {
                let bytes = leaf.element.bytes();
                let part = &mut slot[leaf.offset..leaf.offset + leaf.bytes()];
                for (index, element) in part.chunks_exact_mut(bytes).enumerate() {
                    leaf.element.write(draw(leaf, index, noise(i, block)), element);
                    block += 1;
                }
            }
        }
        PolicyVersion::default()
    }
}

/// Draws a number for element `index` of a leaf.
fn draw(leaf: &Leaf, index: usize, bits: [u32; 4]) -> f64 {
    let below = |n: u64| rng::below(bits[0], bits[1], n) as f64;
    match &leaf.domain {
        Domain::Choice { n, start } => *start as f64 + below(*n),
        Domain::Choices { nvec } => below(nvec[index]),
        Domain::Binary => below(2),
        Domain::Bounds { low, high } => {
            let at = |bounds: &[f64]| if bounds.len() == 1 { bounds[0] } else { bounds[index] };
            let (low, high) = (at(low), at(high));
            let is_float = matches!(leaf.element, ElementType::Float32 | ElementType::Float64);
            let away = || f64::from(rng::normal_pair(bits[0], bits[1]).0);
            match (low.is_finite(), high.is_finite(), is_float) {
                (true, true, true) => {
                    let unit =
                        (u64::from(bits[0]) << 21 | u64::from(bits[1]) >> 11) as f64 / (1u64 << 53) as f64;
                    (low + (high - low) * unit).clamp(low, high)
                }
                (true, true, false) => low + below((high - low) as u64 + 1),
                (true, false, _) => low + away().abs().floor(),
                (false, true, _) => high - away().abs().floor(),
                (false, false, true) => away(),
                (false, false, false) => away().round(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_env::Space;

    fn act(space: &Space, envs: std::ops::Range<u32>) -> Vec<u8> {
        let slot = Slot::of(space).unwrap();
        let k = envs.len();
        let mut actions = vec![0; k * slot.bytes];
        let (episodes, steps) = (vec![3; k], vec![7; k]);
        let seen = ObservationBatch {
            observations: &[],
            slot: &slot,
            first_env: envs.start,
            episodes: &episodes,
            steps: &steps,
        };
        let mut batch =
            ActionBatch { actions: &mut actions, slot: &slot, logprobs: &mut [], values: &mut [] };
        Random { run_seed: 1 }.act(&seen, &mut batch);
        actions
    }

    #[test]
    fn random_actions_are_within_every_kind_of_space() {
        let bounded =
            |dtype, low, high| Space::Box { dtype, shape: vec![2], low: vec![low], high: vec![high] };
        let space = Space::Tuple {
            spaces: vec![
                Space::Discrete { n: 3, start: -1 },
                Space::MultiDiscrete { nvec: vec![2, 5] },
                Space::MultiBinary { shape: vec![3] },
                bounded(ElementType::Float32, -2.0, 2.0),
                bounded(ElementType::Uint8, 0.0, 255.0),
                bounded(ElementType::Int32, f64::NEG_INFINITY, 3.0),
                bounded(ElementType::Float64, 1.0, f64::INFINITY),
                bounded(ElementType::Float32, f64::NEG_INFINITY, f64::INFINITY),
            ],
        };
        let slot = Slot::of(&space).unwrap();
        for action in act(&space, 0..200).chunks_exact(slot.bytes) {
            slot.check(action).unwrap();
        }
        assert_ne!(act(&space, 0..1), act(&space, 1..2));
    }

    #[test]
    fn an_action_does_not_depend_on_its_group() {
        for space in [Space::discrete(5), Space::box_f32(&[3], -1.0, 1.0)] {
            let bytes = Slot::of(&space).unwrap().bytes;
            assert_eq!(act(&space, 0..8)[5 * bytes..], act(&space, 5..8));
        }
    }
}
