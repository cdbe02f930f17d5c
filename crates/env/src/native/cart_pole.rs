//! CartPole-v1: a cart pushed left or right balances a pole. Barto, Sutton and Anderson 1983; Gymnasium's Euler steps.

use super::numbers::{bounds, choice, write_f32};
use super::numpy_random::NumpyRandom;
use crate::{Environment, Space, Spec, Step};

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = POLE_MASS + 1.0;
/// Half the pole's length.
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = POLE_MASS * LENGTH;
const FORCE: f64 = 10.0;
const SECONDS: f64 = 0.02;
const POSITION_MAX: f64 = 2.4;
const ANGLE_MAX: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;

/// The environment: position, velocity, angle, angular velocity.
#[derive(Clone, Debug, Default)]
pub struct CartPole {
    state: [f64; 4],
}

impl Environment for CartPole {
    fn spec(&self) -> Spec {
        let high = [POSITION_MAX * 2.0, f64::INFINITY, ANGLE_MAX * 2.0, f64::INFINITY];
        Spec {
            id: "CartPole-v1".into(),
            observation: bounds(high.map(|bound| -bound), high),
            action: Space::discrete(2),
            episode_steps_max: Some(500),
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        let mut random = NumpyRandom::new(seed);
        self.state = std::array::from_fn(|_| random.uniform(-0.05, 0.05));
        write_f32(self.state.map(|value| value as f32), observation);
    }

    #[inline]
    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let [x, velocity, angle, turn] = self.state;
        let force = if choice(action) == 1 { FORCE } else { -FORCE };
        let (sin, cos) = (angle.sin(), angle.cos());
        let pushed = (force + POLE_MASS_LENGTH * (turn * turn) * sin) / TOTAL_MASS;
        let turn_change =
            (GRAVITY * sin - cos * pushed) / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let velocity_change = pushed - POLE_MASS_LENGTH * turn_change * cos / TOTAL_MASS;
        self.state = [
            x + SECONDS * velocity,
            velocity + SECONDS * velocity_change,
            angle + SECONDS * turn,
            turn + SECONDS * turn_change,
        ];
        write_f32(self.state.map(|value| value as f32), observation);
        // The failing step is rewarded too. A state that is not a number has not failed, as in Gymnasium.
        let [x, _, angle, _] = self.state;
        let terminated = !(-POSITION_MAX..=POSITION_MAX).contains(&x) && !x.is_nan()
            || !(-ANGLE_MAX..=ANGLE_MAX).contains(&angle) && !angle.is_nan();
        Step { reward: 1.0, terminated, truncated: false }
    }
}

#[cfg(test)]
impl super::golden_tests::Native for CartPole {
    fn set_state(&mut self, state: &[f64]) {
        self.state.copy_from_slice(state);
    }

    fn state(&self) -> Vec<f64> {
        self.state.to_vec()
    }

    fn observe(&self, observation: &mut [u8]) {
        write_f32(self.state.map(|value| value as f32), observation);
    }
}
