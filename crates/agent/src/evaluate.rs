//! Evaluation of an environment policy: whole episodes in separate environments, by default with the policy's most
//! likely actions. Every evaluation plays the same episodes, whatever the seed of the run: their seeds follow from the
//! environment's number and the round alone.

use super::policy::{self, Board, MlpPolicy};
use super::settings::AgentSettings;
use plimsoll_algo::action::Explore;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_collect::{ActionBatch, Ask, Beyond, ObservationBatch, Policy, Request, Results, Stepper};
use plimsoll_config::RunSpec;
use plimsoll_env::{Slot, flags, seed};
use plimsoll_memory::{Layout, Place, Pool};
use plimsoll_worker::Stop;
use std::ops::Range;
use std::sync::Arc;

/// Number of episodes of an evaluation where `eval.prompts_max` is not set.
pub const EPISODES: u32 = 10;
/// The seed of evaluation episodes: "eval" in ASCII.
const EVAL_SEED: u64 = 0x6576_616c;

/// Returns the number of evaluation environments: as many as episodes, at most as many as in training, in whole vector
/// environments.
fn num_envs(run: &RunSpec, settings: &AgentSettings) -> usize {
    let unit = settings.python.as_ref().map_or(1, |setup| setup.measured.unit as usize);
    (episodes(run) as usize).next_multiple_of(unit).min(settings.num_envs)
}

fn episodes(run: &RunSpec) -> u32 {
    run.eval.prompts_max.unwrap_or(EPISODES)
}

/// Returns the plan rows of an evaluator; none if the run has no evaluator.
///
/// Errors: `size-overflow`; those of making the environment.
pub fn layout(run: &RunSpec, settings: &AgentSettings) -> Result<Layout> {
    let mut layout = Layout::new();
    if run.eval.every.is_none() {
        return Ok(layout);
    }
    let envs = num_envs(run, settings);
    let (bytes, workers) = settings.environment_bytes("eval", envs)?;
    let each = settings.rows.action.bytes + PER_ENV_BYTES;
    let bytes = bytes + (envs * each) as u64;
    layout.outside("eval.environments", "rl", Pool::Host, Place::Heap, Bytes(bytes));
    let mut others = policy::plan_rows("eval", &settings.network.spec, envs, 1)?;
    others.extend(workers);
    // The board and the pages of the interpreter are shared with the run.
    others.regions.retain(|region| !["eval.board", "eval.worker_files"].contains(&region.name.as_str()));
    layout.extend(others);
    Ok(layout)
}

/// Bytes that an evaluator keeps per environment besides its action, rounded up.
const PER_ENV_BYTES: usize = 64;

pub struct Evaluator {
    stepper: Box<dyn Stepper>,
    stop: Stop,
    policy: MlpPolicy,
    episodes: u32,
    steps_max: u32,
    observation: Slot,
    action: Slot,
}

struct Group {
    envs: Range<u32>,
    round: u32,
    asks: Vec<Ask>,
    actions: Vec<u8>,
    seeds: Vec<u64>,
    episodes: Vec<u32>,
    steps: Vec<u32>,
    returns: Vec<f64>,
    is_over: Vec<bool>,
}

impl Evaluator {
    /// Makes an evaluator that reads its weights from `board`; none if the run does not evaluate.
    pub fn of(run: &RunSpec, settings: &AgentSettings, board: &Arc<Board>) -> Result<Option<Evaluator>> {
        if run.eval.every.is_none() {
            return Ok(None);
        }
        let envs = num_envs(run, settings);
        let explore = if run.eval.temperature == 0.0 { Explore::Mode } else { Explore::Sample };
        Ok(Some(Evaluator {
            stepper: settings.stepper(envs)?,
            stop: settings.python.as_ref().map_or_else(Stop::default, |setup| setup.stop.clone()),
            policy: MlpPolicy::new(&settings.network, board.clone(), EVAL_SEED, envs, explore)?,
            episodes: episodes(run),
            steps_max: settings.episode_frames_max,
            observation: settings.rows.observation.clone(),
            action: settings.rows.action.clone(),
        }))
    }

    /// Plays the episodes with the published weights. Returns their returns, ordered by round and environment; none if
    /// a signal came, so that the run can be saved first.
    ///
    /// Errors: those that end a collector, for example `env-failing-repeatedly`.
    pub fn evaluate(&mut self) -> Result<Option<Vec<f64>>> {
        let num_envs = self.stepper.groups().last().map_or(1, |range| range.end);
        let mut returns = Vec::with_capacity(self.episodes as usize);
        for round in 0..self.episodes.div_ceil(num_envs) {
            let Some(played) = self.round(round)? else { return Ok(None) };
            returns.extend(played);
        }
        returns.truncate(self.episodes as usize);
        Ok(Some(returns))
    }

    /// Plays one episode of every environment; none if it was stopped.
    fn round(&mut self, round: u32) -> Result<Option<Vec<f64>>> {
        // After a stopped round some environments have yet to answer, and are not asked again.
        if self.stop.is_set() {
            return Ok(None);
        }
        let ranges = self.stepper.groups().to_vec();
        let of = |range: &Range<u32>| Group::new(range.clone(), round, self.action.bytes);
        let mut groups: Vec<Group> = ranges.iter().map(of).collect();
        for (index, group) in groups.iter().enumerate() {
            self.stepper.submit(index, group.request())?;
        }
        let mut under_way = groups.len();
        while under_way > 0 {
            let Some(index) = self.stepper.wait(&self.stop)? else { return Ok(None) };
            let (group, results) = (&mut groups[index], self.stepper.results(index));
            group.take(&results, self.steps_max);
            if group.is_over.iter().all(|&over| over) {
                under_way -= 1;
                continue;
            }
            group.act(&mut self.policy, &results, &self.observation, &self.action)?;
            self.stepper.submit(index, group.request())?;
        }
        // A failed environment was made again and its episode replayed; only the run's own environments report faults.
        self.stepper.take_faults();
        Ok(Some(groups.into_iter().flat_map(|group| group.returns).collect()))
    }
}

impl Group {
    /// Starts a group over `envs`, which begin their episodes.
    fn new(envs: Range<u32>, round: u32, action_bytes: usize) -> Group {
        let k = envs.len();
        Group {
            round,
            asks: vec![Ask::Reset; k],
            actions: vec![0; k * action_bytes],
            // The same seeds for later episodes: a lost episode is played again.
            seeds: envs.clone().map(|env| seed::reset_seed(EVAL_SEED, env, round)).collect(),
            episodes: vec![round; k],
            steps: vec![0; k],
            returns: vec![0.0; k],
            is_over: vec![false; k],
            envs,
        }
    }

    fn request(&self) -> Request<'_> {
        Request { asks: &self.asks, actions: &self.actions, seeds: &self.seeds }
    }

    fn take(&mut self, results: &Results<'_>, steps_max: u32) {
        for i in 0..self.asks.len() {
            let flag = results.flags[i];
            if self.asks[i] != Ask::Step || self.is_over[i] || flag & flags::RESET_ROW != 0 {
                continue;
            }
            if flag & flags::ABORTED != 0 {
                (self.steps[i], self.returns[i]) = (0, 0.0);
                continue;
            }
            self.steps[i] += 1;
            self.returns[i] += results.rewards[i];
            self.is_over[i] = flag & flags::DONE != 0 || self.steps[i] >= steps_max;
        }
    }

    /// Chooses the next actions. Finished environments step on with the others: a vector environment steps as one.
    fn act(
        &mut self,
        policy: &mut MlpPolicy,
        results: &Results<'_>,
        observation: &Slot,
        action: &Slot,
    ) -> Result<()> {
        self.asks.fill(Ask::Step);
        let seen = ObservationBatch {
            observations: results.observations,
            slot: observation,
            first_env: self.envs.start,
            episodes: &self.episodes,
            steps: &self.steps,
        };
        let mut chosen =
            ActionBatch { actions: &mut self.actions, slot: action, logprobs: &mut [], values: &mut [] };
        policy.act(&seen, &mut chosen);
        for (slot, env) in self.actions.chunks_exact_mut(action.bytes).zip(self.envs.clone()) {
            if policy.beyond() == Beyond::Clip {
                action.clip(slot);
            }
            action.check(slot).map_err(|wrong| {
                let round = self.round;
                let message =
                    format!("the policy's action for episode {round} of environment {env}: {wrong}");
                Error::new("action-out-of-range", message)
            })?;
        }
        Ok(())
    }
}
