//! Chooses the next job: tenants take turns by the tokens that their jobs cost (deficit round robin), for training and
//! for sampling apart, and jobs of one model are done one after another.
//!
//! Its length is bounded before it: requests are refused before they are accepted (`state/admit.rs`).

use crate::job::Job;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Tokens that a tenant may spend in a turn: more, and a turn is long; fewer, and nothing is gained.
const TURN_TOKENS: u64 = 16 << 10;

/// The two kinds of work, which are shared out apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Training,
    Sampling,
}

impl Lane {
    /// Returns the lane of a job.
    pub fn of(job: &Job) -> Lane {
        match job {
            Job::Sample(_) => Lane::Sampling,
            _ => Lane::Training,
        }
    }
}

/// Jobs of all tenants that wait for the engine. `T` is what goes with a job.
pub struct JobQueue<T> {
    state: Mutex<Lanes<T>>,
    wake: Condvar,
}

struct Lanes<T> {
    training: Turns<T>,
    sampling: Turns<T>,
    /// Models with a job that was given out and is not answered.
    busy: BTreeSet<String>,
    is_closed: bool,
}

struct Turns<T> {
    /// Tenants with jobs, the one whose turn it is first.
    ring: VecDeque<String>,
    tenants: BTreeMap<String, TenantJobs<T>>,
}

struct TenantJobs<T> {
    /// Tokens that the tenant has left to spend.
    deficit: u64,
    jobs: VecDeque<(Job, T)>,
}

impl<T> Default for JobQueue<T> {
    fn default() -> JobQueue<T> {
        let turns = || Turns { ring: VecDeque::new(), tenants: BTreeMap::new() };
        let lanes = Lanes { training: turns(), sampling: turns(), busy: BTreeSet::new(), is_closed: false };
        JobQueue { state: Mutex::new(lanes), wake: Condvar::new() }
    }
}

impl<T> JobQueue<T> {
    /// Adds a tenant's job after those of the same tenant.
    pub fn push(&self, tenant: &str, job: Job, with: T) {
        let mut state = self.lock();
        state.lane(Lane::of(&job)).push(tenant, job, with);
        drop(state);
        self.wake.notify_all();
    }

    /// Takes the next job of a lane with its tenant, for which it waits up to `wait`. The job's model gets no other
    /// until `JobQueue::done`.
    pub fn take(&self, lane: Lane, wait: Duration) -> Option<(Job, T, String)> {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            let Lanes { training, sampling, busy, .. } = &mut *state;
            let turns = if lane == Lane::Training { training } else { sampling };
            if let Some((job, with, tenant)) = turns.pop(busy) {
                if let Some(model) = job.model() {
                    state.busy.insert(model.to_string());
                }
                return Some((job, with, tenant));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_closed {
                return None;
            }
            state = self.wake.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Waits up to `longest` until something changes: a job has come, a model is free, no more will come. Returns at
    /// once if a job of the sampling lane is there.
    pub fn wait(&self, longest: Duration) {
        let state = self.lock();
        if state.sampling.ring.is_empty() && !state.is_closed {
            drop(self.wake.wait_timeout(state, longest).expect("no holder panics"));
        }
    }

    /// Lets the next job of a model go.
    pub fn done(&self, model: &str) {
        self.lock().busy.remove(model);
        self.wake.notify_all();
    }

    /// Ends all waiting: nothing more will come.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Returns the number of jobs that wait in a lane.
    pub fn waiting(&self, lane: Lane) -> usize {
        self.lock().lane(lane).tenants.values().map(|tenant| tenant.jobs.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<T>> {
        self.state.lock().expect("no holder panics")
    }
}

impl<T> Lanes<T> {
    fn lane(&mut self, lane: Lane) -> &mut Turns<T> {
        match lane {
            Lane::Training => &mut self.training,
            Lane::Sampling => &mut self.sampling,
        }
    }
}

impl<T> Turns<T> {
    fn push(&mut self, tenant: &str, job: Job, with: T) {
        if !self.tenants.contains_key(tenant) {
            self.ring.push_back(tenant.to_string());
            self.tenants.insert(tenant.to_string(), TenantJobs { deficit: 0, jobs: VecDeque::new() });
        }
        self.tenants.get_mut(tenant).expect("it was just added").jobs.push_back((job, with));
    }

    /// Takes the first job that fits the deficit of the tenant whose turn it is. A tenant none of whose jobs can go now
    /// is passed over and gains nothing.
    fn pop(&mut self, busy: &BTreeSet<String>) -> Option<(Job, T, String)> {
        let mut idle = 0;
        while idle < self.ring.len() {
            let name = self.ring.front()?.clone();
            let tenant = self.tenants.get_mut(&name).expect("the ring has tenants with jobs");
            let Some(at) = tenant.first_free(busy) else {
                idle += 1;
                self.ring.rotate_left(1);
                continue;
            };
            let cost = tenant.jobs[at].0.cost_tokens();
            if cost <= tenant.deficit {
                tenant.deficit -= cost;
                let (job, with) = tenant.jobs.remove(at)?;
                if tenant.jobs.is_empty() {
                    self.tenants.remove(&name);
                    self.ring.pop_front();
                }
                return Some((job, with, name));
            }
            // Alone it needs no turns of the others.
            let is_alone = self.ring.len() == 1;
            tenant.deficit = if is_alone { cost } else { tenant.deficit + TURN_TOKENS };
            idle = 0;
            self.ring.rotate_left(1);
        }
        None
    }
}

impl<T> TenantJobs<T> {
    /// Finds the first job whose model is free and has no earlier job in the queue.
    fn first_free(&self, busy: &BTreeSet<String>) -> Option<usize> {
        let mut before = BTreeSet::new();
        self.jobs.iter().position(|(job, _)| {
            job.model().is_none_or(|model| !busy.contains(model) && before.insert(model.to_string()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TrainDatum;
    use plimsoll_algo::sum_loss::SumLoss;

    fn pass(model: &str, tokens: usize) -> Job {
        let datum = TrainDatum { tokens: vec![0; tokens], ..TrainDatum::default() };
        Job::Pass {
            model: model.into(),
            datums: vec![datum].into(),
            loss: SumLoss::CrossEntropy,
            gradients: false,
        }
    }

    fn take(queue: &JobQueue<u32>) -> Option<u32> {
        let (job, with, _) = queue.take(Lane::Training, Duration::ZERO)?;
        job.model().into_iter().for_each(|model| queue.done(model));
        Some(with)
    }

    #[test]
    fn tenants_share_tokens_and_not_requests() {
        let queue = JobQueue::default();
        // 40 long jobs of one tenant were there first; the other's are a tenth as long.
        (0..40).for_each(|i| queue.push("long", pass(&format!("a{i}"), 10_000), 0));
        (0..100).for_each(|i| queue.push("short", pass(&format!("b{i}"), 1_000), 1));
        let mut spent = [0u64; 2];
        while let Some(who) = take(&queue) {
            spent[who as usize] += [10_000, 1_000][who as usize];
            let both_wait = spent[0] < 400_000 && spent[1] < 100_000;
            assert!(!both_wait || spent[0].abs_diff(spent[1]) <= 30_000, "{spent:?}");
        }
        assert_eq!(spent, [400_000, 100_000]);
    }

    #[test]
    fn jobs_of_one_model_go_one_after_another_and_hold_up_no_other() {
        let queue = JobQueue::default();
        for (model, with) in [("m", 0), ("m", 1), ("n", 2)] {
            queue.push("t", pass(model, 5), with);
        }
        let first = queue.take(Lane::Training, Duration::ZERO).unwrap();
        assert_eq!((first.1, queue.take(Lane::Training, Duration::ZERO).unwrap().1), (0, 2));
        assert!(queue.take(Lane::Training, Duration::from_millis(1)).is_none(), "m is busy");
        assert!(queue.take(Lane::Sampling, Duration::ZERO).is_none());
        queue.done("m");
        assert_eq!(queue.take(Lane::Training, Duration::ZERO).unwrap().1, 1);
        assert_eq!(queue.waiting(Lane::Training), 0);
    }

    #[test]
    fn a_job_larger_than_a_turn_comes_after_some_turns() {
        let queue = JobQueue::default();
        queue.push("large", pass("a", 100_000), 1);
        (0..200).for_each(|i| queue.push("small", pass(&format!("b{i}"), 1_000), 0));
        let order: Vec<u32> = std::iter::from_fn(|| take(&queue)).collect();
        let at = order.iter().position(|with| *with == 1).unwrap();
        assert!((96..=128).contains(&at), "after {at} of 200 jobs, when both have had 100000 tokens");
    }
}
