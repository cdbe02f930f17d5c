//! A collector's thread: it owns a stepper and a policy, and fills rows. Actions of one group are chosen while others
//! step.

use crate::collector::{Message, Mode, Report, Shared};
use crate::group::{Group, Rules, Tally, Underway};
use crate::{Policy, Row, Stepper};
use plimsoll_base::Result;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// What a lane is told.
pub(crate) enum Order {
    /// To fill these rows, one an environment, in the order of its environments.
    Fill(Vec<Row>),
}

/// One thread of a collector.
pub(crate) struct Lane {
    index: usize,
    stepper: Box<dyn Stepper>,
    policy: Box<dyn Policy>,
    groups: Vec<Group>,
    rules: Arc<Rules>,
    shared: Arc<Shared>,
    tally: Tally,
    /// Seconds spent in the policy, in waiting for environments, and in waiting for rows.
    seconds: [f64; 3],
    num_under_way: usize,
    /// Episodes to go on with, one an environment of the lane; none begins new ones.
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

    /// Runs until nobody gives orders or takes rows any more, or something ends the run.
    pub fn run(mut self, orders: &Receiver<Order>, messages: &Sender<Message>) {
        let ended = self.start().and_then(|()| match self.shared.mode {
            Mode::Async { .. } => self.fill_forever(messages),
            Mode::Sync | Mode::SemiSync { .. } => self.fill_on_order(orders, messages),
        });
        if let Err(error) = ended {
            // Whoever waits learns why; if nobody does, there is nobody to tell.
            let _ = messages.send(Message { rows: Vec::new(), report: self.report(), ended: Some(error) });
            self.shared.stop.set();
        }
    }

    fn fill_on_order(&mut self, orders: &Receiver<Order>, messages: &Sender<Message>) -> Result<()> {
        loop {
            let since = Instant::now();
            let Ok(Order::Fill(rows)) = orders.recv() else { return Ok(()) };
            self.count(STALLED, since);
            if self.rules.reset_each_batch {
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

    /// Begins the first episodes, or brings those of an earlier collector to where they were.
    fn start(&mut self) -> Result<()> {
        let underway = std::mem::take(&mut self.underway);
        let mut rest = &underway[..];
        for group in &mut self.groups {
            let (here, behind) = rest.split_at(group.num_envs().min(rest.len()));
            group.take_up(here, &self.rules);
            rest = behind;
        }
        self.reset(true)?;
        let mut rest = &underway[..];
        for index in 0..self.groups.len() {
            if self.shared.stop.is_set() {
                return Ok(());
            }
            let (here, behind) = rest.split_at(self.groups[index].num_envs().min(rest.len()));
            rest = behind;
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

    /// Begins episodes of all environments that are within one, or, at first, of all.
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

    /// Gives rows to environments that have none, in the order of the environments.
    fn open_rows(&mut self, rows: Vec<Row>) {
        let mut rows = rows.into_iter();
        for (index, group) in self.groups.iter_mut().enumerate().filter(|(_, group)| !group.is_under_way) {
            if rows.len() > 0 && group.num_idle() > 0 {
                group.open_rows(&mut rows, &self.stepper.results(index), &self.rules);
            }
        }
        assert!(rows.len() == 0, "{} rows more than environments without one", rows.len());
    }

    /// Chooses actions for a group that has nothing under way, and asks it to step.
    fn begin(&mut self, index: usize) -> Result<()> {
        let group = &mut self.groups[index];
        // After a stop nothing is asked: answers to what was asked before it are not waited for.
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

    /// The next group that answers; none if no group was asked, or at the end.
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
            self.shared.keep(fault);
        }
        self.stepper.take_warnings().into_iter().for_each(|warning| self.shared.warn(warning));
        Ok(answer)
    }

    fn store(&mut self, index: usize) -> u64 {
        let results = self.stepper.results(index);
        self.groups[index].store(&results, &mut self.tally, &self.rules)
    }

    /// All rows of a batch by environment, whether they are full or not.
    fn close_rows(&mut self) -> Vec<Row> {
        let mut rows = Vec::new();
        for group in &mut self.groups {
            group.close_rows(&mut self.tally, &self.rules);
            rows.extend(group.take_closed());
        }
        rows.sort_unstable_by_key(|row| row.env_index);
        rows
    }

    /// False if nobody takes rows any more.
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
