//! A collector's thread: it owns a stepper and a policy, and fills rows. It chooses actions for one group while others
//! step.

use crate::group::{Group, Rules, Tally};
use crate::shared::{Message, Report, Shared};
use crate::{Mode, Policy, Row, Stepper, Underway};
use plimsoll_base::Result;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

pub(crate) struct Lane {
    index: usize,
    stepper: Box<dyn Stepper>,
    policy: Box<dyn Policy>,
    groups: Vec<Group>,
    rules: Arc<Rules>,
    shared: Arc<Shared>,
    tally: Tally,
    /// Seconds in the policy, waiting for environments, and waiting for rows.
    seconds: [f64; 3],
    num_under_way: usize,
    /// Episodes to continue, one for each environment of the lane; if empty, new ones begin.
    underway: Vec<Underway>,
}

const POLICY: usize = 0;
const ENVIRONMENTS: usize = 1;
const STALLED: usize = 2;

impl Lane {
    pub fn new(
        index: usize,
        stepper: Box<dyn Stepper>,
        policy: Box<dyn Policy>,
        rules: Arc<Rules>,
        shared: Arc<Shared>,
        underway: Vec<Underway>,
    ) -> Lane {
        let groups = stepper.groups().iter().map(|range| Group::new(range, stepper.unit(), &rules)).collect();
        let (tally, seconds) = (Tally::default(), [0.0; 3]);
        Lane { index, stepper, policy, groups, rules, shared, tally, seconds, num_under_way: 0, underway }
    }

    /// Runs until the collector is dropped, or an error ends the run.
    pub fn run(mut self, orders: &Receiver<Vec<Row>>, messages: &Sender<Message>) {
        let ended = self.start().and_then(|()| match self.shared.mode {
            Mode::Async { .. } => self.fill_forever(messages),
            Mode::Sync | Mode::SemiSync { .. } => self.fill_on_order(orders, messages),
        });
        if let Err(error) = ended {
            // Fails only if the collector is gone.
            let _ = messages.send(Message { rows: Vec::new(), report: self.report(), ended: Some(error) });
            self.shared.stop.set();
        }
    }

    fn fill_on_order(&mut self, orders: &Receiver<Vec<Row>>, messages: &Sender<Message>) -> Result<()> {
        loop {
            let since = Instant::now();
            let Ok(rows) = orders.recv() else { return Ok(()) };
            self.count(STALLED, since);
            if self.rules.settings.reset_each_batch {
                self.reset(false)?;
            }
            self.open_rows(rows);
            for group in 0..self.groups.len() {
                self.begin(group)?;
            }
            while let Some(group) = self.next_answer()? {
                let frames = self.store(group);
                let full = self.shared.add_frames(frames);
                if !full && !self.shared.stop.is_set() {
                    self.begin(group)?;
                }
            }
            let rows = self.close_rows();
            if !self.send(rows, messages) {
                return Ok(());
            }
        }
    }

    fn fill_forever(&mut self, messages: &Sender<Message>) -> Result<()> {
        while !self.shared.stop.is_set() {
            let idle = self.groups.iter().filter(|group| !group.is_under_way);
            let (wanted, open) = idle
                .fold((0, 0), |(wanted, open), group| (wanted + group.num_idle(), open + group.num_open()));
            if wanted > 0 {
                let since = Instant::now();
                let is_stalled = open == 0 && self.num_under_way == 0;
                let rows = self.shared.pool.take(wanted, self.stepper.unit(), is_stalled, &self.shared.stop);
                self.count(STALLED, since);
                self.open_rows(rows);
            }
            for group in 0..self.groups.len() {
                self.begin(group)?;
            }
            if let Some(group) = self.next_answer()? {
                self.store(group);
                let rows: Vec<Row> = self.groups[group].take_closed().collect();
                if !rows.is_empty() && !self.send(rows, messages) {
                    return Ok(());
                }
            }
        }
        let rows = self.close_rows();
        self.send(rows, messages);
        Ok(())
    }

    /// Begins the first episodes, or replays those of an earlier collector up to where they were.
    fn start(&mut self) -> Result<()> {
        let underway = std::mem::take(&mut self.underway);
        let mut rest = &underway[..];
        for group in &mut self.groups {
            let (here, after) = rest.split_at(group.num_envs().min(rest.len()));
            group.take_up(here, &self.rules);
            rest = after;
        }
        self.reset(true)?;
        let mut rest = &underway[..];
        for index in 0..self.groups.len() {
            if self.shared.stop.is_set() {
                return Ok(());
            }
            let (here, after) = rest.split_at(self.groups[index].num_envs().min(rest.len()));
            rest = after;
            for t in 0.. {
                if !self.groups[index].ask_again(here, t, &self.rules) {
                    break;
                }
                self.stepper.submit(index, self.groups[index].request(false))?;
                self.num_under_way += 1;
                if self.next_answer()?.is_none() {
                    return Ok(());
                }
                self.groups[index].after_again(&self.stepper.results(index))?;
            }
        }
        Ok(())
    }

    /// Begins new episodes of all environments that are within one; of all if `is_first`.
    fn reset(&mut self, is_first: bool) -> Result<()> {
        if self.shared.stop.is_set() {
            return Ok(());
        }
        for index in 0..self.groups.len() {
            let group = &mut self.groups[index];
            if is_first || group.ask_resets() {
                self.stepper.submit(index, group.request(false))?;
                self.num_under_way += 1;
            }
        }
        while let Some(index) = self.next_answer()? {
            self.groups[index].after_resets(&self.rules);
        }
        Ok(())
    }

    /// Gives rows to environments without one, in their order.
    fn open_rows(&mut self, rows: Vec<Row>) {
        let mut rows = rows.into_iter();
        for (index, group) in self.groups.iter_mut().enumerate().filter(|(_, group)| !group.is_under_way) {
            if rows.len() > 0 && group.num_idle() > 0 {
                group.open_rows(&mut rows, &self.stepper.results(index), &self.rules);
            }
        }
        assert!(rows.len() == 0, "{} rows more than environments without one", rows.len());
    }

    /// Chooses actions for a group with no request under way, and submits its step.
    fn begin(&mut self, index: usize) -> Result<()> {
        let group = &mut self.groups[index];
        // After a stop nothing is submitted, and earlier requests are not waited for.
        if group.is_under_way || group.num_open() == 0 || self.shared.stop.is_set() {
            return Ok(());
        }
        let since = Instant::now();
        group.act(&mut *self.policy, &self.stepper.results(index), &self.rules)?;
        let submitted = Instant::now();
        self.stepper.submit(index, group.request(self.shared.clips))?;
        group.is_under_way = true;
        self.num_under_way += 1;
        self.seconds[POLICY] += submitted.duration_since(since).as_secs_f64();
        self.count(ENVIRONMENTS, submitted);
        Ok(())
    }

    /// Waits for the next group to answer; `None` if none has a request under way, or after a stop.
    fn next_answer(&mut self) -> Result<Option<usize>> {
        if self.num_under_way == 0 {
            return Ok(None);
        }
        let since = Instant::now();
        let answer = self.stepper.wait(&self.shared.stop)?;
        self.count(ENVIRONMENTS, since);
        match answer {
            Some(index) => {
                self.num_under_way -= 1;
                self.groups[index].is_under_way = false;
            }
            None => self.num_under_way = 0,
        }
        for fault in self.stepper.take_faults() {
            self.tally.counters.add(fault.kind);
            self.shared.faults.add(fault);
        }
        self.stepper.take_warnings().into_iter().for_each(|warning| self.shared.warnings.add(warning));
        Ok(answer)
    }

    fn store(&mut self, index: usize) -> u64 {
        let results = self.stepper.results(index);
        self.groups[index].store(&results, &mut self.tally, &self.rules)
    }

    /// Closes all rows, full or not, in the order of environments.
    fn close_rows(&mut self) -> Vec<Row> {
        let mut rows = Vec::new();
        for group in &mut self.groups {
            group.close_rows(&mut self.tally, &self.rules);
            rows.extend(group.take_closed());
        }
        rows.sort_unstable_by_key(|row| row.env_index);
        rows
    }

    /// Sends rows with a report. Returns false if the collector is gone.
    fn send(&self, rows: Vec<Row>, messages: &Sender<Message>) -> bool {
        messages.send(Message { rows, report: self.report(), ended: None }).is_ok()
    }

    fn report(&self) -> Report {
        let layout = &self.rules.layout;
        Report {
            lane: self.index,
            tally: self.tally,
            open_frames: self.groups.iter().map(|group| group.open_frames(layout)).sum(),
            policy_seconds: self.seconds[POLICY],
            env_seconds: self.seconds[ENVIRONMENTS],
            stalled_seconds: self.seconds[STALLED],
        }
    }

    fn count(&mut self, what: usize, since: Instant) {
        self.seconds[what] += since.elapsed().as_secs_f64();
    }
}
