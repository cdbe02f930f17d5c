//! The collector: its threads, its modes, and the account of every frame.
//!
//! produced = delivered + lagged + aborted + in flight, checked at every batch from what threads report and from the
//! flags of the rows themselves.

use crate::batch::{RowPool, STOP_POLL};
use crate::group::{Rules, Tally, Underway};
use crate::lane::{Lane, Order};
use crate::{Batch, Beyond, Counters, Fault, OnAbort, Policy, Row, RowLayout, Stepper};
use plimsoll_base::{Error, PolicyVersion, Result};
use plimsoll_memory::Piece;
use plimsoll_worker::Stop;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Failures whose words are kept until somebody asks for them.
const FAULTS_KEPT: usize = 16;

/// When a batch ends, and how old its actions may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// When every environment gave T frames. One version a batch.
    Sync,
    /// When this share of its frames is in; environments go on in the next batch. One version a batch.
    SemiSync {
        /// Above 0, at most 1.
        preemptive_threshold: f64,
    },
    /// When as many rows are full as there are environments, first come. The newest version at each step.
    Async {
        /// Frames whose version is older by more than this are not delivered, but counted.
        policy_lag_max: Option<u64>,
    },
}

/// What a collector is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Every seed follows from it.
    pub run_seed: u64,
    /// When a batch ends.
    pub mode: Mode,
    /// Batches in memory: those that are filled, and those that a learner holds.
    pub batches_in_flight: usize,
    /// What becomes of an episode whose environment failed.
    pub on_abort: OnAbort,
    /// So many steps of each environment are drawn at random first.
    pub random_steps: u64,
    /// Every batch begins with new episodes; those of the batch before are truncated.
    pub reset_each_batch: bool,
}

/// The account of frames, and where time went; all since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Steps that were answered.
    pub produced: u64,
    /// Frames in batches that were handed out.
    pub delivered: u64,
    /// Frames that were too old to be.
    pub lagged: u64,
    /// Frames that are not in a batch yet.
    pub in_flight: u64,
    /// Rows that ended before their last frame, because no further end of an episode fit.
    pub short_rows: u64,
    /// Failures and episodes.
    pub counters: Counters,
    /// Seconds of all threads in the policy.
    pub policy_seconds: f64,
    /// Seconds of all threads in environments, or waiting for them.
    pub env_seconds: f64,
    /// Seconds of all threads waiting for a batch to fill.
    pub stalled_seconds: f64,
}

/// What the threads share.
pub(crate) struct Shared {
    pub mode: Mode,
    pub stop: Stop,
    pub pool: Arc<RowPool>,
    /// The environments are given clipped actions.
    pub clips: bool,
    /// Frames of the batch that are in, and how many end it.
    frames_in: AtomicU64,
    frames_wanted: u64,
    faults: Mutex<Vec<Fault>>,
}

impl Shared {
    /// Counts frames of a batch; true once it has enough.
    pub fn add_frames(&self, frames: u64) -> bool {
        let before = self.frames_in.fetch_add(frames, Ordering::Relaxed);
        matches!(self.mode, Mode::SemiSync { .. }) && before + frames >= self.frames_wanted
    }

    /// Keeps the words of a failure.
    pub fn keep(&self, fault: Fault) {
        let mut faults = self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if faults.len() < FAULTS_KEPT {
            faults.push(fault);
        }
    }
}

/// What a thread says with its rows.
pub(crate) struct Message {
    pub rows: Vec<Row>,
    pub report: Report,
    /// What ended the run.
    pub ended: Option<Error>,
}

/// What a thread has done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub lane: usize,
    pub tally: Tally,
    /// Frames in rows that it is filling.
    pub open_frames: u64,
    pub policy_seconds: f64,
    pub env_seconds: f64,
    pub stalled_seconds: f64,
}

struct LaneHandle {
    num_envs: usize,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// Threads that step environments into batches.
pub struct Collector {
    layout: Arc<RowLayout>,
    shared: Arc<Shared>,
    lanes: Vec<LaneHandle>,
    messages: Receiver<Message>,
    reports: Vec<Report>,
    /// Rows that are full and in no batch.
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
    /// Allocates the batches and starts one thread for each of `steppers`, whose environments follow on each other.
    /// Each thread has its own policy from `make_policy`.
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

    /// The same with the episodes that an earlier collector was in, one an environment.
    ///
    /// Errors: as `start`; `resume-differs` comes with the first batch.
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
        let pieces = Piece::rows(num_envs * settings.batches_in_flight.max(1), layout.bytes)?;
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
            faults: Mutex::default(),
        });
        let (layout, settings) = (Arc::new(layout), settings.clone());
        let rules = Arc::new(Rules::new(&layout, &settings));
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
                        .hint("its words are above; if the policy is not at fault, please report it");
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

    /// Where the columns of each row are.
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    /// Ends collection: batches that are under way end early, and `next` then says that there are no more.
    pub fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Stops once `asked`, for example the number of a signal, is not 0.
    pub fn stop_when(&mut self, asked: Arc<AtomicI32>) {
        self.asked = Some(asked);
    }

    /// Says which version of the policy is the newest, from which lag is counted.
    pub fn published(&mut self, version: PolicyVersion) {
        self.newest = self.newest.max(version.0);
    }

    /// In the synchronous modes, begins the next batch with the policy as it is now; `next` does it where nobody did.
    /// A learner that calls it early computes while environments step, with weights that are older by one update.
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
            // A lane that has ended said why in its last message.
            let _ = orders.send(Order::Fill(std::mem::replace(&mut rows, rest)));
        }
        self.is_requested = true;
        Ok(())
    }

    /// The next batch; none after `stop`.
    ///
    /// Errors: what ended a thread (`action-out-of-range`, `env-failing-repeatedly`, ...); `batches-held`.
    #[allow(clippy::should_implement_trait)] // An iterator could not return what ended the run.
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
        assert_eq!(
            stats.produced,
            account.iter().sum::<u64>(),
            "[delivered, lagged, aborted, in flight] = {account:?}"
        );
        if let (false, Some((low, high))) = (matches!(self.shared.mode, Mode::Async { .. }), batch.versions) {
            assert_eq!(low, high, "the policy changed within batch {}: publish between batches", batch.index);
        }
        Ok(Some(batch))
    }

    /// Every environment's row of the batch that was asked for.
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

    /// What ended a thread while nobody waited for it: it says so before it stops the others.
    fn last_words(&mut self) -> Result<()> {
        while let Ok(Message { rows, report, ended }) = self.messages.try_recv() {
            self.reports[report.lane] = report;
            self.shared.pool.give(rows);
            ended.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// As many full rows as there are environments; after `stop` what there is.
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

    /// The next message of any thread; none once all have ended.
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

    /// The account of frames, and where time went.
    pub fn stats(&self) -> Stats {
        let none = Stats {
            delivered: self.delivered,
            lagged: self.lagged,
            in_flight: self.full_frames,
            ..Stats::default()
        };
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

    /// The words of failures since the last call, of which the first few are kept.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut *self.shared.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.stop.set();
        for lane in &mut self.lanes {
            lane.orders = None;
        }
        for thread in self.lanes.iter_mut().filter_map(|lane| lane.thread.take()) {
            // A thread that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

/// Seconds of CPU time that this process has used, all threads together.
pub fn process_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Stack of a thread: environments of users may be deeper than ours.
pub const LANE_STACK_BYTES: usize = 2 << 20;
