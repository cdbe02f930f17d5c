//! Acrobot-v1: two links, torque at the joint between them, to swing the end above the bar. Sutton 1996, in the form of
//! Sutton and Barto's book; one Runge-Kutta step of 0.2 s.

use super::numbers::{bounds, choice, power_2, write_f32};
use super::numpy_random::NumpyRandom;
use crate::{Environment, Space, Spec, Step};
use std::f64::consts::PI;

const SECONDS: f64 = 0.2;
const GRAVITY: f64 = 9.8;
/// Distance to each link's centre of mass; lengths, masses and moments of inertia are 1.
const CENTRE: f64 = 0.5;
const TURN_1_MAX: f64 = 4.0 * PI;
const TURN_2_MAX: f64 = 9.0 * PI;

/// The environment: two angles and their velocities.
#[derive(Clone, Debug, Default)]
pub struct Acrobot {
    state: [f64; 4],
}

impl Environment for Acrobot {
    fn spec(&self) -> Spec {
        let high = [1.0, 1.0, 1.0, 1.0, TURN_1_MAX, TURN_2_MAX];
        Spec {
            id: "Acrobot-v1".into(),
            observation: bounds(high.map(|bound| -bound), high),
            action: Space::discrete(3),
            episode_steps_max: Some(500),
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        let mut random = NumpyRandom::new(seed);
        // Gymnasium keeps the first state in f32, and observes it with the f32 functions.
        let state: [f32; 4] = std::array::from_fn(|_| random.uniform(-0.1, 0.1) as f32);
        self.state = state.map(f64::from);
        observe_first(state, observation);
    }

    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let torque = (choice(action) - 1) as f64;
        let [angle_1, angle_2, turn_1, turn_2] = runge_kutta(self.state, torque);
        self.state = [wrap(angle_1), wrap(angle_2), bound(turn_1, TURN_1_MAX), bound(turn_2, TURN_2_MAX)];
        let [angle_1, angle_2, turn_1, turn_2] = self.state;
        let seen = [angle_1.cos(), angle_1.sin(), angle_2.cos(), angle_2.sin(), turn_1, turn_2];
        write_f32(seen.map(|value| value as f32), observation);
        let terminated = -angle_1.cos() - (angle_2 + angle_1).cos() > 1.0;
        Step { reward: if terminated { 0.0 } else { -1.0 }, terminated, truncated: false }
    }
}

fn observe_first(state: [f32; 4], observation: &mut [u8]) {
    let [angle_1, angle_2, turn_1, turn_2] = state;
    write_f32([angle_1.cos(), angle_1.sin(), angle_2.cos(), angle_2.sin(), turn_1, turn_2], observation);
}

fn runge_kutta(state: [f64; 4], torque: f64) -> [f64; 4] {
    let along = |slope: [f64; 4], by: f64| std::array::from_fn(|i| state[i] + by * slope[i]);
    let half = SECONDS / 2.0;
    let k1 = slopes(state, torque);
    let k2 = slopes(along(k1, half), torque);
    let k3 = slopes(along(k2, half), torque);
    let k4 = slopes(along(k3, SECONDS), torque);
    std::array::from_fn(|i| state[i] + SECONDS / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

/// Returns the state's time derivatives, in Gymnasium's order of operations.
fn slopes([angle_1, angle_2, turn_1, turn_2]: [f64; 4], torque: f64) -> [f64; 4] {
    let (sin_2, cos_2) = (angle_2.sin(), angle_2.cos());
    let squared = CENTRE * CENTRE;
    let d1 = squared + (1.0 + squared + 2.0 * CENTRE * cos_2) + 1.0 + 1.0;
    let d2 = (squared + CENTRE * cos_2) + 1.0;
    let phi2 = CENTRE * GRAVITY * (angle_1 + angle_2 - PI / 2.0).cos();
    let phi1 = -CENTRE * power_2(turn_2) * sin_2 - 2.0 * CENTRE * turn_2 * turn_1 * sin_2
        + (CENTRE + 1.0) * GRAVITY * (angle_1 - PI / 2.0).cos()
        + phi2;
    let turn_2_change = (torque + d2 / d1 * phi1 - CENTRE * power_2(turn_1) * sin_2 - phi2)
        / (squared + 1.0 - power_2(d2) / d1);
    let turn_1_change = -(d2 * turn_2_change + phi1) / d1;
    [turn_1, turn_2, turn_1_change, turn_2_change]
}

/// Moves an angle into [-pi, pi] by whole turns, added one at a time.
fn wrap(mut angle: f64) -> f64 {
    let turn = PI - -PI;
    while angle > PI {
        angle -= turn;
    }
    while angle < -PI {
        angle += turn;
    }
    angle
}

fn bound(value: f64, most: f64) -> f64 {
    value.max(-most).min(most)
}

#[cfg(test)]
impl super::golden_tests::Native for Acrobot {
    fn set_state(&mut self, state: &[f64]) {
        self.state.copy_from_slice(state);
    }

    fn state(&self) -> Vec<f64> {
        self.state.to_vec()
    }

    fn observe(&self, observation: &mut [u8]) {
        observe_first(self.state.map(|value| value as f32), observation);
    }
}
