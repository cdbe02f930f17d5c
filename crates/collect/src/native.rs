//! The stepper of native environments: one group that its thread steps itself, one environment after the other in a
//! loop that knows their type.

use crate::{Ask, Fault, FaultKind, Request, RestartLimit, Results, Stepper};
use plimsoll_base::{Error, Result};
use plimsoll_env::{Environment, Slot, Spec, flags, native};
use plimsoll_worker::Stop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Says when an environment is reset after the last step of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autoreset {
    /// The last step resets: its observation is the new episode's, and the old episode's is its final observation.
    #[default]
    SameStep,
    /// The next step resets, ignores its action and is not a frame (`flags::RESET_ROW`).
    NextStep,
    /// Nothing: the caller asks for a reset.
    Disabled,
}

/// Holds the limits of a group and the way it is reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupOptions {
    /// Time of the reset after the last step of an episode.
    pub autoreset: Autoreset,
    /// Steps after which an episode is truncated, if the environment's own limit is not less; none for its own alone.
    pub episode_steps_max: Option<u32>,
    /// Failures of an environment within `RestartLimit::WINDOW` before the run stops.
    pub restarts_max: u32,
}

/// Native environments of one type, stepped in a loop by the calling thread.
pub struct NativeGroup<E, F> {
    make: F,
    spec: Spec,
    range: [Range<u32>; 1],
    autoreset: Autoreset,
    steps_max: u32,
    environments: Vec<E>,
    /// Steps of the current episode.
    steps: Vec<u32>,
    observation_bytes: usize,
    action_bytes: usize,
    observations: Vec<u8>,
    final_observations: Vec<u8>,
    rewards: Vec<f64>,
    flags: Vec<u8>,
    faults: Vec<Fault>,
    limit: RestartLimit,
    is_ready: bool,
}

impl<E: Environment, F: Fn() -> E + Send> NativeGroup<E, F> {
    /// Makes the environments `range`, each with `make`.
    ///
    /// Errors: `env-space-unsupported`.
    pub fn new(range: Range<u32>, make: F, options: GroupOptions) -> Result<NativeGroup<E, F>> {
        let count = range.len();
        let environments: Vec<E> = (0..count).map(|_| make()).collect();
        let spec = environments.first().map_or_else(|| make().spec(), Environment::spec);
        let (observation, action) = (Slot::of(&spec.observation)?, Slot::of(&spec.action)?);
        let limits = [spec.episode_steps_max, options.episode_steps_max];
        Ok(NativeGroup {
            make,
            range: [range],
            autoreset: options.autoreset,
            steps_max: limits.into_iter().flatten().min().unwrap_or(u32::MAX),
            environments,
            steps: vec![0; count],
            observation_bytes: observation.bytes,
            action_bytes: action.bytes,
            observations: vec![0; count * observation.bytes],
            final_observations: vec![0; count * observation.bytes],
            rewards: vec![0.0; count],
            flags: vec![0; count],
            faults: Vec::new(),
            limit: RestartLimit::new(options.restarts_max, RestartLimit::WINDOW),
            is_ready: false,
            spec,
        })
    }

    /// Returns the bytes of `count` environments in a group, without their own allocations.
    pub fn bytes(count: usize, observation_bytes: usize) -> u64 {
        let each = size_of::<E>() + 2 * observation_bytes + size_of::<u32>() + size_of::<f64>() + 1;
        (count * each) as u64
    }

    /// Steps or resets one environment. Inlined with its environment's step.
    #[inline]
    fn advance(&mut self, index: usize, ask: Ask, action: &[u8], seed: u64) {
        let bytes = self.observation_bytes;
        let observation = &mut self.observations[index * bytes..(index + 1) * bytes];
        let env = &mut self.environments[index];
        let done = self.flags[index] & flags::DONE != 0;
        if ask == Ask::Reset || (done && self.autoreset == Autoreset::NextStep) {
            env.reset(seed, observation);
            self.steps[index] = 0;
            self.rewards[index] = 0.0;
            self.flags[index] = if ask == Ask::Reset { 0 } else { flags::RESET_ROW };
            return;
        }
        let step = env.step(action, observation);
        self.steps[index] += 1;
        self.rewards[index] = step.reward;
        let truncated = step.truncated || self.steps[index] >= self.steps_max;
        let flag = (u8::from(step.terminated) * flags::TERMINATED) | (u8::from(truncated) * flags::TRUNCATED);
        self.flags[index] = flag;
        if flag != 0 {
            self.final_observations[index * bytes..(index + 1) * bytes].copy_from_slice(observation);
            if self.autoreset == Autoreset::SameStep {
                env.reset(seed, observation);
                self.steps[index] = 0;
            }
        }
    }

    /// Runs a request from environment `from` on. Returns the first that panics; those after it have not run.
    fn run(&mut self, from: usize, request: Request<'_>) -> std::result::Result<(), (usize, String)> {
        let mut at = from;
        let all = catch_unwind(AssertUnwindSafe(|| {
            for index in from..request.asks.len() {
                at = index;
                let ask = request.asks[index];
                if ask != Ask::Skip {
                    let action = &request.actions[index * self.action_bytes..(index + 1) * self.action_bytes];
                    self.advance(index, ask, action, request.seeds[index]);
                }
            }
        }));
        all.map_err(|panic| (at, words_of(&*panic)))
    }

    /// Makes an environment again and begins its next episode.
    fn remake(&mut self, index: usize, kind: FaultKind, error: Error, request: Request<'_>) -> Result<()> {
        let env_index = self.range[0].start + index as u32;
        self.limit.note(env_index, Instant::now(), &error)?;
        self.faults.push(Fault { env_index, kind, error });
        let bytes = self.observation_bytes;
        let observation = &mut self.observations[index * bytes..(index + 1) * bytes];
        let (make, seed) = (&self.make, request.seeds[index]);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut env = make();
            env.reset(seed, observation);
            env
        }));
        match made {
            Ok(env) => {
                self.environments[index] = env;
                self.steps[index] = 0;
                self.rewards[index] = 0.0;
                self.flags[index] = if request.asks[index] == Ask::Reset { 0 } else { flags::ABORTED };
                Ok(())
            }
            Err(panic) => {
                let error = panicked(env_index, &words_of(&*panic));
                self.remake(index, FaultKind::Exception, error, request)
            }
        }
    }

    fn check_rewards(&mut self, request: Request<'_>) -> Result<()> {
        // Usually one pass over the sum shows that all are finite.
        if !self.rewards.iter().sum::<f64>().is_nan() {
            return Ok(());
        }
        for index in 0..self.rewards.len() {
            if self.rewards[index].is_nan() {
                let env_index = self.range[0].start + index as u32;
                let message =
                    format!("environment {env_index}, {}: its reward is not a number", self.spec.id);
                let error = Error::new("env-bad-output", message)
                    .hint("mend the environment: a reward is finite or infinite");
                self.remake(index, FaultKind::BadOutput, error, request)?;
            }
        }
        Ok(())
    }
}

impl<E: Environment, F: Fn() -> E + Send> Stepper for NativeGroup<E, F> {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn groups(&self) -> &[Range<u32>] {
        &self.range
    }

    fn submit(&mut self, _: usize, request: Request<'_>) -> Result<()> {
        let mut from = 0;
        while let Err((index, words)) = self.run(from, request) {
            let error = panicked(self.range[0].start + index as u32, &words);
            self.remake(index, FaultKind::Exception, error, request)?;
            from = index + 1;
        }
        self.is_ready = true;
        self.check_rewards(request)
    }

    fn wait(&mut self, stop: &Stop) -> Result<Option<usize>> {
        let is_ready = std::mem::take(&mut self.is_ready);
        assert!(is_ready, "a group that was not asked does not answer");
        Ok((!stop.is_set()).then_some(0))
    }

    fn results(&self, _: usize) -> Results<'_> {
        Results {
            observations: &self.observations,
            final_observations: &self.final_observations,
            rewards: &self.rewards,
            flags: &self.flags,
        }
    }

    fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }
}

/// Makes environments of a native kind, one stepper per thread, whose shares differ by at most one environment.
///
/// Errors: `unknown-environment`, `env-bad-option`, `env-space-unsupported`.
pub fn native_steppers(
    id: &str,
    env_options: &native::Options,
    num_envs: u32,
    num_threads: usize,
    options: GroupOptions,
) -> Result<Vec<Box<dyn Stepper>>> {
    let threads = num_threads.clamp(1, num_envs.max(1) as usize) as u64;
    let start = |thread: u64| (u64::from(num_envs) * thread / threads) as u32;
    let boxed = |thread| Boxed { range: start(thread)..start(thread + 1), options };
    (0..threads).map(|thread| native::visit(id, env_options, boxed(thread))?).collect()
}

struct Boxed {
    range: Range<u32>,
    options: GroupOptions,
}

impl native::Visitor for Boxed {
    type Output = Result<Box<dyn Stepper>>;

    fn visit<E: Environment + 'static>(self, make: impl Fn() -> E + Send + 'static) -> Self::Output {
        Ok(Box::new(NativeGroup::new(self.range, make, self.options)?))
    }
}

fn panicked(env_index: u32, words: &str) -> Error {
    Error::new("env-exception", format!("environment {env_index} panicked: {words}"))
        .hint("mend the environment; a panic ends its episode, and it is made again")
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_string()
}
