//! The state of one group of environments between steps: episodes, seeds, actions and open rows.

use crate::row::{Frame, observation_of};
use crate::{
    ActionBatch, Ask, Beyond, Counters, ObservationBatch, OnAbort, Policy, Random, Request, Results, Row,
    RowLayout, Settings, Underway,
};
use plimsoll_base::{Error, PolicyVersion, Result};
use plimsoll_env::{flags, seed};
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub layout: RowLayout,
    pub settings: Settings,
}

/// Counts of a group since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Answered steps.
    pub produced: u64,
    /// Rows that ended before their last frame because they had no room for another end of an episode.
    pub short_rows: u64,
    pub counters: Counters,
}

/// A group and the rows that it fills; every list has one entry per environment.
pub(crate) struct Group {
    first_env: u32,
    /// Environments that step as one, whose rows therefore open and close together.
    unit: usize,
    asks: Vec<Ask>,
    /// The policy's choice, [k, action bytes].
    actions: Vec<u8>,
    /// The actions given to the environments, where they differ.
    sent: Vec<u8>,
    logprobs: Vec<f32>,
    values: Vec<f32>,
    version: PolicyVersion,
    seeds: Vec<u64>,
    episodes: Vec<u32>,
    steps: Vec<u32>,
    returns: Vec<f64>,
    /// Frames of each environment since the start, while some actions are still random.
    lifetimes: Vec<u64>,
    rows: Vec<Option<Row>>,
    num_open: usize,
    /// Closed rows.
    full: Vec<Row>,
    /// A request is unanswered.
    pub is_under_way: bool,
}

impl Group {
    /// Makes the group of `range`, with a request to begin its first episodes.
    pub fn new(range: &Range<u32>, unit: usize, rules: &Rules) -> Group {
        let k = range.len();
        let RowLayout { action, extras, .. } = &rules.layout;
        let optional = |wanted: bool| vec![0.0; if wanted { k } else { 0 }];
        Group {
            first_env: range.start,
            unit,
            asks: vec![Ask::Reset; k],
            actions: vec![0; k * action.bytes],
            sent: vec![0; k * action.bytes],
            logprobs: optional(extras.logprobs),
            values: optional(extras.values),
            version: PolicyVersion::default(),
            seeds: range.clone().map(|env| seed::reset_seed(rules.settings.run_seed, env, 0)).collect(),
            // One before the first, which begins with the first reset.
            episodes: vec![u32::MAX; k],
            steps: vec![0; k],
            returns: vec![0.0; k],
            lifetimes: vec![0; k],
            rows: (0..k).map(|_| None).collect(),
            num_open: 0,
            full: Vec::with_capacity(k),
            is_under_way: false,
        }
    }

    /// Returns the bytes of a group of `k` environments.
    pub fn bytes(k: usize, layout: &RowLayout) -> u64 {
        let each = size_of::<Ask>() + 2 * layout.action.bytes + 2 * 4 + 8 + 4 + 4 + 8 + 8;
        (k * (each + 2 * size_of::<Option<Row>>())) as u64
    }

    /// Returns the next request, as it is now.
    pub fn request(&self, clipped: bool) -> Request<'_> {
        let actions = if clipped { &self.sent } else { &self.actions };
        Request { asks: &self.asks, actions, seeds: &self.seeds }
    }

    pub fn num_envs(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of environments with a row to fill.
    pub fn num_open(&self) -> usize {
        self.num_open
    }

    /// Returns the number of environments without a row.
    pub fn num_idle(&self) -> usize {
        self.rows.len() - self.num_open
    }

    /// Counts frames in rows that are not full.
    pub fn open_frames(&self, layout: &RowLayout) -> u64 {
        self.rows.iter().flatten().map(|row| row.count_written(layout)).sum()
    }

    /// Begins rows of environments without one, in their order, with their current observations.
    pub fn open_rows(&mut self, rows: &mut impl Iterator<Item = Row>, results: &Results<'_>, rules: &Rules) {
        let idle = self.rows.iter_mut().enumerate().filter(|(_, row)| row.is_none());
        for ((index, place), mut row) in idle.zip(rows) {
            let observation = observation_of(results, index, rules.layout.observation.bytes);
            row.begin(&rules.layout, self.first_env + index as u32, observation);
            *place = Some(row);
            self.num_open += 1;
        }
    }

    /// Continues the episodes of an earlier collector, one per environment, before the first resets.
    pub fn take_up(&mut self, underway: &[Underway], rules: &Rules) {
        for (index, Underway { episode, .. }) in underway.iter().enumerate() {
            self.episodes[index] = episode.wrapping_sub(1);
            self.seeds[index] =
                seed::reset_seed(rules.settings.run_seed, self.first_env + index as u32, *episode);
        }
    }

    /// Asks for step `t` of the continued episodes. Returns false after the last step of all.
    pub fn ask_again(&mut self, underway: &[Underway], t: usize, rules: &Rules) -> bool {
        let bytes = rules.layout.action.bytes;
        for (index, Underway { actions, .. }) in underway.iter().enumerate() {
            let action = actions.chunks_exact(bytes).nth(t);
            self.asks[index] = if action.is_some() { Ask::Step } else { Ask::Skip };
            if let Some(action) = action {
                self.actions[index * bytes..(index + 1) * bytes].copy_from_slice(action);
            }
        }
        self.asks.contains(&Ask::Step)
    }

    /// Takes the answer to `ask_again`, without storing frames.
    ///
    /// Errors: `resume-differs` if an episode ends that had not.
    pub fn after_again(&mut self, results: &Results<'_>) -> Result<()> {
        for index in 0..self.asks.len() {
            if self.asks[index] != Ask::Step {
                continue;
            }
            self.steps[index] += 1;
            self.returns[index] += results.rewards[index];
            if results.flags[index] != 0 {
                let env = self.first_env + index as u32;
                let step = self.steps[index];
                let message =
                    format!("environment {env} ended its episode after {step} steps, before it had not");
                return Err(Error::new("resume-differs", message)
                    .fact("its episode is brought back by its seed and its actions")
                    .hint("an environment that is to go on bit for bit must depend on them alone")
                    .hint("--replan goes on all the same, with new episodes, and gives up bit equality"));
            }
        }
        Ok(())
    }

    /// Asks for new episodes of all environments within one, and of those that reset with them.
    pub fn ask_resets(&mut self) -> bool {
        for (asks, steps) in self.asks.chunks_mut(self.unit).zip(self.steps.chunks(self.unit)) {
            let is_within = steps.iter().any(|&step| step > 0);
            asks.fill(if is_within { Ask::Reset } else { Ask::Skip });
        }
        self.asks.contains(&Ask::Reset)
    }

    /// Takes the answer to resets: each begins the next episode.
    pub fn after_resets(&mut self, rules: &Rules) {
        for index in 0..self.asks.len() {
            if self.asks[index] == Ask::Reset {
                self.begin_episode(index, rules);
            }
        }
    }

    /// Chooses actions for all environments with an open row, from the group's observations.
    ///
    /// Errors: `action-out-of-range`.
    pub fn act(&mut self, policy: &mut dyn Policy, results: &Results<'_>, rules: &Rules) -> Result<()> {
        for (ask, row) in self.asks.iter_mut().zip(&self.rows) {
            *ask = if row.is_some() { Ask::Step } else { Ask::Skip };
        }
        let RowLayout { observation, action, .. } = &rules.layout;
        let seen = ObservationBatch {
            observations: results.observations,
            slot: observation,
            first_env: self.first_env,
            episodes: &self.episodes,
            steps: &self.steps,
        };
        let mut chosen = ActionBatch {
            actions: &mut self.actions,
            slot: action,
            logprobs: &mut self.logprobs,
            values: &mut self.values,
        };
        self.version = policy.act(&seen, &mut chosen);
        if rules.settings.random_steps > 0
            && self.lifetimes.iter().any(|&steps| steps < rules.settings.random_steps)
        {
            let mut drawn =
                ActionBatch { actions: &mut self.sent, slot: action, logprobs: &mut [], values: &mut [] };
            Random { run_seed: rules.settings.run_seed }.act(&seen, &mut drawn);
            let pairs = self.actions.chunks_exact_mut(action.bytes).zip(self.sent.chunks_exact(action.bytes));
            for ((chosen, drawn), _) in
                pairs.zip(&self.lifetimes).filter(|(_, steps)| **steps < rules.settings.random_steps)
            {
                chosen.copy_from_slice(drawn);
            }
        }
        self.check_actions(policy.beyond(), rules)
    }

    fn check_actions(&mut self, beyond: Beyond, rules: &Rules) -> Result<()> {
        let slot = &rules.layout.action;
        if beyond == Beyond::Clip {
            self.sent.copy_from_slice(&self.actions);
            self.sent.chunks_exact_mut(slot.bytes).for_each(|action| slot.clip(action));
        }
        let given = if beyond == Beyond::Clip { &self.sent } else { &self.actions };
        for (index, action) in given.chunks_exact(slot.bytes).enumerate() {
            match slot.check(action) {
                Err(wrong) if self.asks[index] == Ask::Step => {
                    let env = self.first_env + index as u32;
                    let message = format!("the policy's action for environment {env}: {wrong}");
                    return Err(Error::new("action-out-of-range", message)
                        .hint("mend the policy; the bounds are those of the environment's action space"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Stores the answer to a step. Returns the number of new frames.
    pub fn store(&mut self, results: &Results<'_>, tally: &mut Tally, rules: &Rules) -> u64 {
        let before = tally.produced - tally.counters.frames_aborted;
        for index in 0..self.asks.len() {
            if self.asks[index] != Ask::Step {
                continue;
            }
            if results.flags[index] & flags::ABORTED != 0 {
                self.store_aborted(index, results, tally, rules);
            } else {
                self.store_frame(index, results, tally, rules);
            }
            if self.rows[index].as_ref().is_some_and(|row| row.is_full(&rules.layout)) {
                self.close_row(index, tally, rules);
            }
        }
        if self.unit > 1 {
            self.close_units(tally, rules);
        }
        (tally.produced - tally.counters.frames_aborted).saturating_sub(before)
    }

    #[inline]
    fn store_frame(&mut self, index: usize, results: &Results<'_>, tally: &mut Tally, rules: &Rules) {
        let flag = results.flags[index];
        let row = self.rows[index].as_mut().expect("only environments with a row are stepped");
        let bytes = rules.layout.action.bytes;
        let frame = Frame {
            action: &self.actions[index * bytes..(index + 1) * bytes],
            reward: results.rewards[index] as f32,
            flags: flag,
            version: self.version,
            episode: self.episodes[index],
            step: self.steps[index],
            logprob: self.logprobs.get(index).copied(),
            value: self.values.get(index).copied(),
        };
        let bytes = rules.layout.observation.bytes;
        row.push(&rules.layout, frame, observation_of(results, index, bytes));
        if flag & flags::RESET_ROW != 0 {
            return;
        }
        tally.produced += 1;
        self.steps[index] += 1;
        self.returns[index] += results.rewards[index];
        if rules.settings.random_steps > 0 {
            self.lifetimes[index] += 1;
        }
        if flag & flags::DONE != 0 {
            let last = &results.final_observations[index * bytes..(index + 1) * bytes];
            row.push_final(&rules.layout, last, self.returns[index]);
            tally.counters.episodes += 1;
            self.begin_episode(index, rules);
        }
    }

    /// Discards the step in flight; the episode's frames in the row are cut or removed.
    fn store_aborted(&mut self, index: usize, results: &Results<'_>, tally: &mut Tally, rules: &Rules) {
        let row = self.rows[index].as_mut().expect("only environments with a row are stepped");
        tally.produced += 1;
        tally.counters.frames_aborted += 1;
        let in_row = (self.steps[index] as usize).min(row.num_frames);
        if in_row > 0 && rules.settings.on_abort == OnAbort::Drop {
            row.take_back(in_row);
            tally.counters.frames_aborted += in_row as u64;
        } else if in_row > 0 {
            row.end_slice(&rules.layout, flags::CUT | flags::ABORTED, self.returns[index]);
        }
        let observation = observation_of(results, index, rules.layout.observation.bytes);
        row.set_last_observation(&rules.layout, observation);
        self.begin_episode(index, rules);
    }

    /// Closes the other rows of units with a closed row: no environment of a unit steps without the others.
    fn close_units(&mut self, tally: &mut Tally, rules: &Rules) {
        for first in (0..self.rows.len()).step_by(self.unit) {
            if self.rows[first..first + self.unit].iter().any(Option::is_none) {
                (first..first + self.unit).for_each(|index| self.close_row(index, tally, rules));
            }
        }
    }

    /// Closes all rows, full or not.
    pub fn close_rows(&mut self, tally: &mut Tally, rules: &Rules) {
        (0..self.rows.len()).for_each(|index| self.close_row(index, tally, rules));
    }

    pub fn take_closed(&mut self) -> std::vec::Drain<'_, Row> {
        self.full.drain(..)
    }

    fn close_row(&mut self, index: usize, tally: &mut Tally, rules: &Rules) {
        let Some(mut row) = self.rows[index].take() else { return };
        let layout = &rules.layout;
        self.num_open -= 1;
        tally.short_rows += u64::from(row.num_frames < layout.frames && row.is_full(layout));
        if rules.settings.reset_each_batch
            && self.steps[index] > 0
            && row.num_frames > 0
            && row.num_finals < layout.finals
        {
            row.end_slice(layout, flags::TRUNCATED, self.returns[index]);
            tally.counters.episodes += 1;
        }
        row.close(layout);
        self.full.push(row);
    }

    fn begin_episode(&mut self, index: usize, rules: &Rules) {
        let env = self.first_env + index as u32;
        self.episodes[index] = self.episodes[index].wrapping_add(1);
        (self.steps[index], self.returns[index]) = (0, 0.0);
        let next = self.episodes[index].wrapping_add(1);
        self.seeds[index] = seed::reset_seed(rules.settings.run_seed, env, next);
    }
}
