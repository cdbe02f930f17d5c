//! MountainCar-v0 and MountainCarContinuous-v0: a car too weak for the hill has to swing up. Moore 1990.

use super::numbers::{bounds, choice, number, write_f32};
use super::numpy_random::NumpyRandom;
use crate::{Environment, Space, Spec, Step};

const POSITION_MIN: f64 = -1.2;
const POSITION_MAX: f64 = 0.6;
const SPEED_MAX: f64 = 0.07;
const GRAVITY: f64 = 0.0025;

/// MountainCar-v0: position and velocity; push left, not at all, or right.
#[derive(Clone, Debug, Default)]
pub struct MountainCar {
    state: [f64; 2],
}

impl Environment for MountainCar {
    fn spec(&self) -> Spec {
        Spec {
            id: "MountainCar-v0".into(),
            observation: observation_space(),
            action: Space::discrete(3),
            episode_steps_max: Some(200),
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        self.state = first_state(seed);
        write_f32(self.state.map(|value| value as f32), observation);
    }

    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let [mut position, mut velocity] = self.state;
        velocity += (choice(action) - 1) as f64 * 0.001 + (3.0 * position).cos() * -GRAVITY;
        velocity = velocity.clamp(-SPEED_MAX, SPEED_MAX);
        position = (position + velocity).clamp(POSITION_MIN, POSITION_MAX);
        if position == POSITION_MIN && velocity < 0.0 {
            velocity = 0.0;
        }
        self.state = [position, velocity];
        write_f32(self.state.map(|value| value as f32), observation);
        Step { reward: -1.0, terminated: position >= 0.5 && velocity >= 0.0, truncated: false }
    }
}

/// The state of the continuous car: Gymnasium keeps f32, but the first state of an episode is f64.
#[derive(Clone, Copy, Debug)]
enum Car {
    First([f64; 2]),
    Later([f32; 2]),
}

/// MountainCarContinuous-v0: position and velocity; a force from -1 to 1.
#[derive(Clone, Debug)]
pub struct MountainCarContinuous {
    car: Car,
}

impl Default for MountainCarContinuous {
    fn default() -> MountainCarContinuous {
        MountainCarContinuous { car: Car::First([0.0; 2]) }
    }
}

impl Environment for MountainCarContinuous {
    fn spec(&self) -> Spec {
        Spec {
            id: "MountainCarContinuous-v0".into(),
            observation: observation_space(),
            action: Space::box_f32(&[1], -1.0, 1.0),
            episode_steps_max: Some(999),
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        let state = first_state(seed);
        self.car = Car::First(state);
        write_f32(state.map(|value| value as f32), observation);
    }

    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let action = number(action);
        let (state, terminated) = match self.car {
            Car::First(state) => step_first(state, action),
            Car::Later(state) => step_later(state, action),
        };
        self.car = Car::Later(state);
        write_f32(state, observation);
        let reward = if terminated { 100.0 } else { 0.0 };
        let effort = f64::from(action) * f64::from(action) * 0.1;
        Step { reward: reward - effort, terminated, truncated: false }
    }
}

/// Returns the force times the engine's power. Beyond 1 the force is an f64 number, and so is the product.
fn pushed(action: f32) -> f64 {
    match action {
        action if action > 1.0 => 0.0015,
        action if action < -1.0 => -0.0015,
        action => f64::from(action * 0.0015f32),
    }
}

fn step_first([mut position, mut velocity]: [f64; 2], action: f32) -> ([f32; 2], bool) {
    let pull = GRAVITY * (3.0 * position).cos();
    velocity += if action.abs() > 1.0 {
        pushed(action) - pull
    } else {
        // An f32 product less a plain number is f32 again.
        f64::from(pushed(action) as f32 - pull as f32)
    };
    velocity = velocity.clamp(-SPEED_MAX, SPEED_MAX);
    position = (position + velocity).clamp(POSITION_MIN, POSITION_MAX);
    if position == POSITION_MIN && velocity < 0.0 {
        velocity = 0.0;
    }
    ([position as f32, velocity as f32], position >= 0.45 && velocity >= 0.0)
}

fn step_later([mut position, mut velocity]: [f32; 2], action: f32) -> ([f32; 2], bool) {
    const LEFT: f32 = POSITION_MIN as f32;
    const SPEED: f32 = SPEED_MAX as f32;
    let pull = GRAVITY * f64::from(3.0 * position).cos();
    velocity +=
        if action.abs() > 1.0 { (pushed(action) - pull) as f32 } else { pushed(action) as f32 - pull as f32 };
    velocity = velocity.clamp(-SPEED, SPEED);
    position = (position + velocity).clamp(LEFT, POSITION_MAX as f32);
    if position == LEFT && velocity < 0.0 {
        velocity = 0.0;
    }
    ([position, velocity], position >= 0.45 && velocity >= 0.0)
}

fn observation_space() -> Space {
    bounds([POSITION_MIN, -SPEED_MAX], [POSITION_MAX, SPEED_MAX])
}

fn first_state(seed: u64) -> [f64; 2] {
    [NumpyRandom::new(seed).uniform(-0.6, -0.4), 0.0]
}

#[cfg(test)]
impl super::golden_tests::Native for MountainCar {
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

#[cfg(test)]
impl super::golden_tests::Native for MountainCarContinuous {
    fn set_state(&mut self, state: &[f64]) {
        self.car = Car::First([state[0], state[1]]);
    }

    fn state(&self) -> Vec<f64> {
        match self.car {
            Car::First(state) => state.to_vec(),
            Car::Later(state) => state.map(f64::from).to_vec(),
        }
    }

    fn observe(&self, observation: &mut [u8]) {
        let state = self.state();
        write_f32([state[0] as f32, state[1] as f32], observation);
    }
}
