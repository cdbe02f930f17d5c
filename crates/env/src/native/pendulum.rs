//! Pendulum-v1: a pendulum to swing up and hold, by a torque that cannot lift it at once.

use super::numbers::{number, power_2, write_f32};
use super::numpy_random::NumpyRandom;
use crate::{ElementType, Environment, Space, Spec, Step};
use std::f64::consts::PI;

const SPEED_MAX: f64 = 8.0;
const TORQUE_MAX: f32 = 2.0;
const SECONDS: f64 = 0.05;

/// The environment: angle from upright and angular velocity.
#[derive(Clone, Debug, Default)]
pub struct Pendulum {
    state: [f64; 2],
}

impl Environment for Pendulum {
    fn spec(&self) -> Spec {
        Spec {
            id: "Pendulum-v1".into(),
            observation: Space::Box {
                dtype: ElementType::Float32,
                shape: vec![3],
                low: vec![-1.0, -1.0, -SPEED_MAX],
                high: vec![1.0, 1.0, SPEED_MAX],
            },
            action: Space::box_f32(&[1], -TORQUE_MAX, TORQUE_MAX),
            episode_steps_max: Some(200),
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        let mut random = NumpyRandom::new(seed);
        self.state = [random.uniform(-PI, PI), random.uniform(-1.0, 1.0)];
        observe(self.state, observation);
    }

    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let [angle, turn] = self.state;
        // The torque's own terms are f32, as in Gymnasium; the rest is f64.
        let torque = number(action).clamp(-TORQUE_MAX, TORQUE_MAX);
        let upright = (angle + PI).rem_euclid(2.0 * PI) - PI;
        let effort = 0.001f32 * torque.powf(std::hint::black_box(2.0));
        let cost = power_2(upright) + 0.1 * power_2(turn) + f64::from(effort);
        let turn = turn + (15.0 * angle.sin() + f64::from(3.0 * torque)) * SECONDS;
        let turn = turn.clamp(-SPEED_MAX, SPEED_MAX);
        self.state = [angle + turn * SECONDS, turn];
        observe(self.state, observation);
        Step { reward: -cost, terminated: false, truncated: false }
    }
}

fn observe([angle, turn]: [f64; 2], observation: &mut [u8]) {
    write_f32([angle.cos() as f32, angle.sin() as f32, turn as f32], observation);
}

#[cfg(test)]
impl super::golden_tests::Native for Pendulum {
    fn set_state(&mut self, state: &[f64]) {
        self.state.copy_from_slice(state);
    }

    fn state(&self) -> Vec<f64> {
        self.state.to_vec()
    }

    fn observe(&self, observation: &mut [u8]) {
        observe(self.state, observation);
    }
}
