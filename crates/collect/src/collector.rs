//! The collector: its threads, and the account of every frame.
//!
//! produced = delivered + lagged + aborted + in flight, checked at every batch from the reports of the threads and the
//! flags of the rows.

use crate::batch::{RowPool, STOP_POLL};
use crate::group::Rules;
use crate::lane::Lane;
use crate::shared::{FirstValues, Message, Report, Shared};
use crate::{Batch, Beyond, Fault, Mode, Policy, Row, RowLayout, Settings, Stats, Stepper, Underway};
use plimsoll_base::{Error, PolicyVersion, Result};
use plimsoll_memory::MappedRow;
use plimsoll_worker::Stop;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

struct LaneHandle {
    num_envs: usize,
    /// Rows to fill, one for each of its environments, in their order.
    orders: Option<Sender<Vec<Row>>>,
    thread: Option<JoinHandle<()>>,
}

/// Threads that step environments into batches.
pub struct Collector {
    layout: Arc<RowLayout>,
    shared: Arc<Shared>,
    lanes: Vec<LaneHandle>,
    messages: Receiver<Message>,
    reports: Vec<Report>,
    /// Full rows that are not in a batch yet.
    full: VecDeque<Row>,
    full_frames: u64,
    num_envs: usize,
    num_batches: u64,
    delivered: u64,
    lagged: u64,
    newest: u64,
    is_requested: bool,
    asked: Option<Arc<AtomicI32>>,
}

impl Collector {
    /// Allocates the batches and starts one thread for each of `steppers`, whose environments are consecutive. Each
    /// thread has its own policy from `make_policy`.
    ///
    /// Errors: `policy-space-mismatch`, `host-allocation-failed`, `thread-not-started`.
    pub fn start(
        settings: &Settings,
        layout: RowLayout,
        steppers: Vec<Box<dyn Stepper>>,
        make_policy: &mut dyn FnMut() -> Box<dyn Policy>,
    ) -> Result<Collector> {
        Collector::start_from(settings, layout, steppers, make_policy, Vec::new())
    }

    /// Starts a collector that continues the episodes of an earlier one, one for each environment.
    ///
    /// Errors: as `start`; `resume-differs`, with the first batch.
    pub fn start_from(
        settings: &Settings,
        layout: RowLayout,
        steppers: Vec<Box<dyn Stepper>>,
        make_policy: &mut dyn FnMut() -> Box<dyn Policy>,
        underway: Vec<Underway>,
    ) -> Result<Collector> {
        let num_envs: usize =
            steppers.iter().flat_map(|stepper| stepper.groups()).map(|range| range.len()).sum();
        assert!(num_envs > 0 && layout.frames > 0, "a collector has environments and frames");
        let mut policies = Vec::with_capacity(steppers.len());
        for stepper in &steppers {
            let policy = make_policy();
            policy.check(stepper.spec())?;
            policies.push(policy);
        }
        let pieces = MappedRow::rows(num_envs * settings.batches_in_flight.max(1), layout.bytes)?;
        let pool = Arc::new(RowPool::default());
        pool.give(pieces.into_iter().map(Row::new).collect());
        let share = match settings.mode {
            Mode::SemiSync { preemptive_threshold } => preemptive_threshold,
            _ => 1.0,
        };
        let shared = Arc::new(Shared {
            mode: settings.mode,
            stop: Stop::default(),
            pool,
            clips: policies.iter().any(|policy| policy.beyond() == Beyond::Clip),
            frames_in: AtomicU64::new(0),
            frames_wanted: (share * (num_envs * layout.frames) as f64).ceil() as u64,
            faults: FirstValues::default(),
            warnings: FirstValues::default(),
        });
        let (layout, settings) = (Arc::new(layout), settings.clone());
        let rules = Arc::new(Rules { layout: RowLayout::clone(&layout), settings });
        let (send, messages) = channel();
        let reports = vec![Report::default(); steppers.len()];
        let mut collector = Collector {
            layout,
            shared,
            lanes: Vec::new(),
            messages,
            reports,
            full: VecDeque::new(),
            full_frames: 0,
            num_envs,
            num_batches: 0,
            delivered: 0,
            lagged: 0,
            newest: 0,
            is_requested: false,
            asked: None,
        };
        if let Some(stepper) = steppers.iter().find(|stepper| !underway.is_empty() && stepper.unit() > 1) {
            let message = format!("`{}` steps {} environments as one", stepper.spec().id, stepper.unit());
            return Err(Error::new("resume-differs", message)
                .hint("use single environments: then each is brought back to its episode separately"));
        }
        let mut underway = underway.into_iter();
        for (index, (stepper, policy)) in steppers.into_iter().zip(policies).enumerate() {
            let num_envs = stepper.groups().iter().map(|range| range.len()).sum();
            let underway = underway.by_ref().take(num_envs).collect();
            let lane = Lane::new(index, stepper, policy, rules.clone(), collector.shared.clone(), underway);
            collector.start_lane(index, num_envs, lane, send.clone())?;
        }
        Ok(collector)
    }

    fn start_lane(
        &mut self,
        index: usize,
        num_envs: usize,
        lane: Lane,
        messages: Sender<Message>,
    ) -> Result<()> {
        let (orders, taken) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("collect-{index}"))
            .stack_size(LANE_STACK_BYTES)
            .spawn(move || {
                let ran = catch_unwind(AssertUnwindSafe(|| lane.run(&taken, &messages)));
                if ran.is_err() {
                    let error = Error::new("internal", format!("collector thread {index} panicked"))
                        .hint("its message is above; if the policy is not at fault, please report it");
                    let report = Report { lane: index, ..Report::default() };
                    let _ = messages.send(Message { rows: Vec::new(), report, ended: Some(error) });
                }
            })
            .map_err(|err| {
                Error::new("thread-not-started", format!("collector thread {index}: {err}"))
                    .hint("check the limits on threads and processes: ulimit -u, pids.max of the container")
            })?;
        self.lanes.push(LaneHandle { num_envs, orders: Some(orders), thread: Some(thread) });
        Ok(())
    }

    /// Returns the positions of the columns in each row.
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    /// Returns the flag that ends collection: batches under way end early, after which `next` returns `None`.
    pub fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Stops once `asked`, for example the number of a signal, is not 0.
    pub fn stop_when(&mut self, asked: Arc<AtomicI32>) {
        self.asked = Some(asked);
    }

    /// Sets the newest version of the policy, from which lag is counted.
    pub fn published(&mut self, version: PolicyVersion) {
        self.newest = self.newest.max(version.0);
    }

    /// Begins the next batch with the current policy in the synchronous modes, unless it has begun; `next` calls it.
    /// A learner that calls it earlier computes while environments step, with weights that are older by one update.
    ///
    /// Errors: `batches-held` if the learner holds all of them.
    pub fn request(&mut self) -> Result<()> {
        if self.is_requested || matches!(self.shared.mode, Mode::Async { .. }) {
            return Ok(());
        }
        let mut rows = self.shared.pool.take_all(self.num_envs).ok_or_else(|| {
            Error::new("batches-held", "all batches are held by the learner, so there is none to fill")
                .hint("drop a batch before asking for the next, or raise `batches_in_flight`")
        })?;
        self.shared.frames_in.store(0, Ordering::Relaxed);
        for lane in &self.lanes {
            let rest = rows.split_off(lane.num_envs);
            let orders = lane.orders.as_ref().expect("lanes take orders until the collector is dropped");
            // A lane that has ended gave the reason in its last message.
            let _ = orders.send(std::mem::replace(&mut rows, rest));
        }
        self.is_requested = true;
        Ok(())
    }

    /// Returns the next batch; `None` after `stop`.
    ///
    /// Errors: the error that ended a thread (`action-out-of-range`, `env-failing-repeatedly`, ...); `batches-held`.
    #[allow(clippy::should_implement_trait)] // An iterator could not return the error that ended the run.
    pub fn next(&mut self) -> Result<Option<Batch>> {
        let rows = match self.shared.mode {
            Mode::Async { .. } => self.first_come()?,
            Mode::Sync | Mode::SemiSync { .. } => self.one_each()?,
        };
        let Some(mut rows) = rows else { return Ok(None) };
        self.full_frames -= rows.iter().map(|row| row.count_frames(&self.layout)).sum::<u64>();
        if let Mode::Async { policy_lag_max: Some(lag_max) } = self.shared.mode {
            let newest = self.newest;
            let is_old = |version: u64| newest.saturating_sub(version) > lag_max;
            self.lagged += rows.iter_mut().map(|row| row.invalidate(&self.layout, is_old)).sum::<u64>();
        }
        let batch = Batch::new(self.num_batches, self.layout.clone(), rows, self.shared.pool.clone());
        self.num_batches += 1;
        self.delivered += batch.num_frames;
        self.newest = self.newest.max(batch.versions.map_or(0, |(_, high)| high));
        let stats = self.stats();
        let account = [stats.delivered, stats.lagged, stats.counters.frames_aborted, stats.in_flight];
        let sum: u64 = account.iter().sum();
        assert_eq!(stats.produced, sum, "[delivered, lagged, aborted, in flight] = {account:?}");
        if let (false, Some((low, high))) = (matches!(self.shared.mode, Mode::Async { .. }), batch.versions) {
            assert_eq!(low, high, "the policy changed within batch {}: publish between batches", batch.index);
        }
        Ok(Some(batch))
    }

    /// Waits for every environment's row of the requested batch.
    fn one_each(&mut self) -> Result<Option<Vec<Row>>> {
        if !self.is_requested {
            if self.is_asked() || self.shared.stop.is_set() {
                return self.last_words().map(|()| None);
            }
            self.request()?;
        }
        let mut by_lane: Vec<Vec<Row>> = (0..self.lanes.len()).map(|_| Vec::new()).collect();
        for _ in 0..self.lanes.len() {
            match self.receive()? {
                Some((lane, rows)) => by_lane[lane] = rows,
                None => return Ok(None),
            }
        }
        self.is_requested = false;
        Ok(Some(by_lane.into_iter().flatten().collect()))
    }

    /// Returns the error of a thread that ended while no batch was requested. It sends the error before it stops the
    /// others.
    fn last_words(&mut self) -> Result<()> {
        while let Ok(Message { rows, report, ended }) = self.messages.try_recv() {
            self.reports[report.lane] = report;
            self.shared.pool.give(rows);
            ended.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Waits for as many full rows as there are environments; after `stop`, takes those that are full.
    fn first_come(&mut self) -> Result<Option<Vec<Row>>> {
        while self.full.len() < self.num_envs {
            let Some((_, rows)) = self.receive()? else { break };
            let (some, none): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.num_frames > 0);
            self.full.extend(some);
            self.shared.pool.give(none);
        }
        let count = self.full.len().min(self.num_envs);
        Ok((count > 0).then(|| self.full.drain(..count).collect()))
    }

    fn is_asked(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.load(Ordering::SeqCst) != 0)
    }

    /// Waits for the next message of any thread; `None` once all have ended.
    fn receive(&mut self) -> Result<Option<(usize, Vec<Row>)>> {
        let message = loop {
            if self.is_asked() {
                self.shared.stop.set();
            }
            match self.messages.recv_timeout(STOP_POLL) {
                Ok(message) => break message,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        };
        let Message { rows, report, ended } = message;
        self.reports[report.lane] = report;
        self.full_frames += rows.iter().map(|row| row.count_frames(&self.layout)).sum::<u64>();
        match ended {
            Some(error) => Err(error),
            None => Ok(Some((report.lane, rows))),
        }
    }

    /// Returns the account of frames and of time.
    pub fn stats(&self) -> Stats {
        let Collector { delivered, lagged, full_frames: in_flight, .. } = *self;
        let none = Stats { delivered, lagged, in_flight, ..Stats::default() };
        self.reports.iter().fold(none, |sum, report| Stats {
            produced: sum.produced + report.tally.produced,
            in_flight: sum.in_flight + report.open_frames,
            short_rows: sum.short_rows + report.tally.short_rows,
            counters: sum.counters.plus(report.tally.counters),
            policy_seconds: sum.policy_seconds + report.policy_seconds,
            env_seconds: sum.env_seconds + report.env_seconds,
            stalled_seconds: sum.stalled_seconds + report.stalled_seconds,
            ..sum
        })
    }

    /// Takes the failures since the last call, of which the first few are kept.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        self.shared.faults.take()
    }

    /// Takes the warnings since the last call: allowed but rarely intended behaviour of environments.
    pub fn take_warnings(&mut self) -> Vec<Error> {
        self.shared.warnings.take()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.stop.set();
        for lane in &mut self.lanes {
            lane.orders = None;
        }
        for thread in self.lanes.iter_mut().filter_map(|lane| lane.thread.take()) {
            // A thread that panicked has printed it on stderr.
            let _ = thread.join();
        }
    }
}

/// Returns the seconds of CPU time that this process has used, over all threads.
pub fn process_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Stack of a thread: environments of users may recurse more deeply than the built-in ones.
pub const LANE_STACK_BYTES: usize = 2 << 20;
