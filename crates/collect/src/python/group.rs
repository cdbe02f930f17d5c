//! A group of environments of one worker: its request in the slots, and its answer, judged.

use super::Share;
use super::judge::{Check, judge};
use super::run::Shape;
use super::slots::SlotMap;
use super::words::{Known, bad};
use crate::{Ask, FaultKind, Request, Results};
use plimsoll_base::Error;
use plimsoll_env::flags::{ABORTED, DONE, RESET_ROW, TERMINATED, TRUNCATED};
use plimsoll_worker::SharedMemory;
use std::ops::Range;
use std::time::Instant;

/// A request in addition to the collector's asks: make an environment anew, then reset it.
pub(super) const REMAKE: u8 = 3;
/// The flag with which the script marks a failed environment.
const FAILED: u8 = 128;
/// The operation in the eight bytes of a step: each environment by its ask, or a step of all.
const GO: u8 = 1;
const STEP: u8 = 2;
/// Bytes of an environment in a group, without its slots; rounded up.
pub(super) const PER_ENV_BYTES: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    /// The worker has the request.
    Asked,
    /// To be sent from then on, once the worker is ready.
    Waiting(Instant),
}

/// One group: its request and its last answer. Lists have one entry for each environment.
pub(super) struct Group {
    /// The index of its worker's seat.
    pub worker: usize,
    /// Counted over the run.
    pub envs: Range<u32>,
    /// Counted within the worker.
    pub local: Range<usize>,
    /// Its index among the worker's groups.
    place: u8,
    pub state: State,
    /// Number of the last message.
    operation: u8,
    number: u32,
    /// The collector's request.
    asks: Vec<Ask>,
    /// Pending request of each environment: an `Ask` or `REMAKE`.
    codes: Vec<u8>,
    /// Environments that lost their episode since their last answer.
    lost: Vec<bool>,
    seeds: Vec<u64>,
    actions: Vec<u8>,
    observations: Vec<u8>,
    finals: Vec<u8>,
    rewards: Vec<f64>,
    flags: Vec<u8>,
    /// Failures of the request under way, by index in the group.
    pub raised: Vec<(usize, FaultKind, Error)>,
}

impl Group {
    pub fn of(worker: usize, share: &Share, shape: &Shape) -> Vec<Group> {
        let (observation, action) = (shape.known.observation.bytes, shape.known.action.bytes);
        let both = share.groups.iter().zip(share.local_groups()).enumerate();
        both.map(|(place, (envs, local))| {
            let k = local.len();
            Group {
                worker,
                envs: envs.clone(),
                local,
                place: place as u8,
                state: State::Idle,
                operation: GO,
                number: 0,
                asks: vec![Ask::Skip; k],
                codes: vec![0; k],
                lost: vec![false; k],
                seeds: vec![0; k],
                actions: vec![0; k * action],
                observations: vec![0; k * observation],
                finals: vec![0; k * observation],
                rewards: vec![0.0; k],
                flags: vec![0; k],
                raised: Vec::new(),
            }
        })
        .collect()
    }

    /// Sets what a failed environment has yet to do, and marks its answer.
    pub fn again(&mut self, index: usize, code: u8) {
        self.codes[index] = code;
        // A step under way is aborted; a reset only takes longer.
        self.flags[index] = if self.asks[index] == Ask::Step { ABORTED } else { 0 };
        self.rewards[index] = 0.0;
    }

    pub fn take(&mut self, request: &Request<'_>) {
        self.asks.copy_from_slice(request.asks);
        self.seeds.copy_from_slice(request.seeds);
        self.actions.copy_from_slice(request.actions);
        for index in 0..self.asks.len() {
            match self.asks[index] {
                Ask::Skip => self.codes[index] = Ask::Skip as u8,
                Ask::Step if !self.lost[index] => self.codes[index] = Ask::Step as u8,
                // Its episode ended with its worker: any request begins another.
                _ => self.again(index, Ask::Reset as u8),
            }
        }
    }

    /// Writes the request into the slots. Returns the message that announces it.
    pub fn write(&mut self, memory: &SharedMemory, map: &SlotMap) -> [u8; 8] {
        let first = self.local.start;
        self.operation = if self.codes.iter().all(|&code| code == Ask::Step as u8) { STEP } else { GO };
        if self.operation == GO {
            memory.write(map.asks + first, &self.codes);
        }
        memory.write(map.actions + first * map.action_bytes, &self.actions);
        for (index, &seed) in self.seeds.iter().enumerate() {
            let seed = u64::from(plimsoll_env::seed::to_31_bits(seed));
            memory.write(map.seeds + 8 * (first + index), &seed.to_ne_bytes());
        }
        self.number = self.number.wrapping_add(1);
        self.raised.clear();
        let [a, b, c, d] = self.number.to_ne_bytes();
        [self.operation, self.place, 0, 0, a, b, c, d]
    }

    /// Returns true if a message answers the request under way.
    pub fn is_answered_by(&self, message: &[u8; 8]) -> bool {
        let [operation, _, _, _, number @ ..] = *message;
        self.state == State::Asked && self.operation == operation && self.number == u32::from_ne_bytes(number)
    }

    /// Copies the answer out of the slots and judges the copy. Returns the environments that failed, and whether one
    /// stepped.
    pub fn read(
        &mut self,
        memory: &SharedMemory,
        map: &SlotMap,
        checks: &[Check],
        known: &Known,
    ) -> (Vec<usize>, bool) {
        let first = self.local.start;
        let width = map.observation_bytes;
        let mut flags = vec![0u8; self.codes.len()];
        memory.read(map.flags + first, &mut flags);
        let (mut failed, mut stepped) = (Vec::new(), false);
        for (index, &flag) in flags.iter().enumerate() {
            if self.codes[index] == Ask::Skip as u8 {
                continue;
            }
            let (slot, place) = (first + index, index * width..(index + 1) * width);
            if flag & FAILED != 0 {
                failed.push(index);
                continue;
            }
            memory.read(map.observations + slot * width, &mut self.observations[place.clone()]);
            let mut wrong = judge(checks, &known.observation, &self.observations[place.clone()]);
            if self.codes[index] == Ask::Step as u8 {
                let mut reward = [0; 8];
                memory.read(map.rewards + 8 * slot, &mut reward);
                let reward = f64::from_ne_bytes(reward);
                self.rewards[index] = reward;
                self.flags[index] = flag & (TERMINATED | TRUNCATED | RESET_ROW);
                if reward.is_nan() {
                    wrong = Some("its reward is NaN".into());
                } else if !(reward as f32).is_finite() {
                    wrong = Some(format!("its reward is {reward:e}, which 32 bits do not hold"));
                }
                if flag & DONE != 0 {
                    memory.read(map.finals + slot * width, &mut self.finals[place.clone()]);
                    let last = judge(checks, &known.observation, &self.finals[place]);
                    wrong = wrong.or(last);
                }
            }
            match wrong {
                None => {
                    stepped |= self.codes[index] == Ask::Step as u8;
                    self.lost[index] = false;
                    self.codes[index] = Ask::Skip as u8;
                }
                Some(what) => {
                    let error = bad(&format!("environment {}: {what}", self.envs.start + index as u32));
                    self.raised.push((index, FaultKind::BadOutput, error));
                    failed.push(index);
                }
            }
        }
        (failed, stepped)
    }

    pub fn results(&self) -> Results<'_> {
        Results {
            observations: &self.observations,
            final_observations: &self.finals,
            rewards: &self.rewards,
            flags: &self.flags,
        }
    }

    /// Marks its episodes as lost with its worker. Requests under way become resets.
    pub fn lose(&mut self, now: Instant) {
        for index in 0..self.codes.len() {
            if self.state == State::Idle || self.codes[index] == Ask::Skip as u8 {
                self.lost[index] = true;
            } else {
                self.again(index, Ask::Reset as u8);
            }
        }
        if self.state != State::Idle {
            self.state = State::Waiting(now);
        }
    }
}
