//! The stepper over worker processes: sends requests of groups, takes their answers, and makes failed environments
//! again.

use super::TICK;
use super::group::{Group, PER_ENV_BYTES, REMAKE, State};
use super::judge::{Check, checks};
use super::pairing::Pairing;
use super::run::{Link, News, Order, Ready, Run, Why};
use super::slots::SlotMap;
use super::words::{Word, bad};
use crate::{Fault, FaultKind, Request, RestartLimit, Results, Stepper};
use plimsoll_base::{Error, Result};
use plimsoll_env::{Slot, Spec};
use plimsoll_worker::message::{self, MESSAGE_BYTES_MAX, Received};
use plimsoll_worker::session::LAST_WORDS_BYTES;
use plimsoll_worker::{Bell, Stop};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// A failure this long after the last one counts, and waits, as a first one.
const CALM: Duration = Duration::from_secs(60);
/// Activities of a worker, by the number in its slots.
const DOING: [&str; 3] = ["step", "reset", "make"];
/// Ends of a worker without a step in between that count as a crash loop.
const LOOP: u32 = 2;

/// A worker as the stepper sees it.
struct Seat {
    /// `None` unless it is ready.
    link: Option<Link>,
    life: u64,
    /// Being ended: its messages no longer count.
    ending: bool,
    groups: Range<usize>,
    /// The last cursor seen, and when it moved.
    cursor: [i32; 2],
    moved_at: Instant,
    stepped: bool,
    failures: Failures,
    /// Ends without a step in between.
    fruitless: u32,
}

#[derive(Clone, Copy, Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

/// Environments in Python, stepped by worker processes: all of a run, or those of one thread.
pub struct PythonStepper {
    run: Arc<Run>,
    pub(super) first_worker: usize,
    first_env: u32,
    maps: Vec<SlotMap>,
    ranges: Vec<Range<u32>>,
    groups: Vec<Group>,
    seats: Vec<Seat>,
    failures: Vec<Failures>,
    limit: RestartLimit,
    answered: VecDeque<usize>,
    faults: Vec<Fault>,
    warnings: Vec<Error>,
    checks: Vec<Check>,
    news: Receiver<News>,
    told: Bell,
    buffer: Vec<u8>,
    tick_at: Instant,
    /// Shares a processor with the only worker, on a thread of the collector.
    pairing: Option<Pairing>,
}

impl PythonStepper {
    pub(super) fn new(
        run: Arc<Run>,
        ready: Vec<Ready>,
        (news, told): (Receiver<News>, Bell),
        pairing: Option<Pairing>,
    ) -> PythonStepper {
        let now = Instant::now();
        let first_worker = ready.first().map_or(0, |(worker, ..)| *worker);
        let (mut groups, mut seats, mut maps) = (Vec::new(), Vec::new(), Vec::new());
        for (worker, life, link) in ready {
            let (share, first) = (&run.shape.shares[worker], groups.len());
            groups.extend(Group::of(worker - first_worker, share, &run.shape));
            maps.push(share.map(&run.shape.known));
            seats.push(Seat {
                link: Some(link),
                life,
                ending: false,
                groups: first..groups.len(),
                cursor: [0; 2],
                moved_at: now,
                stepped: false,
                failures: Failures::default(),
                fruitless: 0,
            });
        }
        let ranges: Vec<Range<u32>> = groups.iter().map(|group| group.envs.clone()).collect();
        let first_env = ranges.first().map_or(0, |range| range.start);
        let num_envs = ranges.last().map_or(0, |range| range.end - first_env);
        PythonStepper {
            limit: RestartLimit::new(run.envs.restarts_max, RestartLimit::WINDOW),
            failures: vec![Failures::default(); num_envs as usize],
            checks: checks(&run.shape.known.observation),
            first_worker,
            first_env,
            maps,
            ranges,
            groups,
            seats,
            answered: VecDeque::new(),
            faults: Vec::new(),
            warnings: Vec::new(),
            news,
            told,
            buffer: vec![0; MESSAGE_BYTES_MAX],
            tick_at: now,
            pairing,
            run,
        }
    }

    /// Returns the process ids of the running workers.
    pub fn pids(&self) -> Vec<u32> {
        self.seats.iter().filter_map(|seat| seat.link.as_ref()).map(|link| link.pid).collect()
    }

    /// Returns the process ids of their keepers, the ancestors of all processes of the workers.
    pub(super) fn keepers(&self) -> Vec<u32> {
        self.seats.iter().filter_map(|seat| seat.link.as_ref()).map(|link| link.keeper).collect()
    }

    /// Describes what enforces `worker_memory`.
    pub fn memory_held_by(&self) -> &str {
        &self.run.shape.memory_held_by
    }

    /// Returns the bytes of the buffers for a worker of `envs` environments, and of the memory shared with it.
    pub(super) fn bytes(envs: u64, observation: &Slot, action: &Slot) -> (u64, u64) {
        let map = SlotMap::new(envs as usize, action.bytes, observation.bytes);
        let buffers = envs * (2 * observation.bytes + action.bytes + PER_ENV_BYTES) as u64;
        (buffers + LAST_WORDS_BYTES as u64, (map.bytes as u64).next_multiple_of(4096))
    }

    /// Returns the environments that step as one, 0 for single ones, and the step limit that they were registered with.
    pub(super) fn said(&self) -> (u32, Option<u32>) {
        let said = &self.run.shape.known.said;
        (said.vector, said.steps_max)
    }

    /// Returns the number of workers that are ready.
    pub fn workers_alive(&self) -> usize {
        self.seats.iter().filter(|seat| seat.link.is_some()).count()
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.seats.len()
    }
}

impl Stepper for PythonStepper {
    fn spec(&self) -> &Spec {
        &self.run.shape.known.spec
    }

    fn groups(&self) -> &[Range<u32>] {
        &self.ranges
    }

    fn submit(&mut self, group: usize, request: Request<'_>) -> Result<()> {
        let now = Instant::now();
        if let (Some(pairing), 0, Some(link)) = (&mut self.pairing, group, &self.seats[0].link) {
            pairing.turn(link.pid, link.keeper, now);
        }
        let one = &mut self.groups[group];
        assert_eq!(one.state, State::Idle, "group {group} has a request under way");
        one.take(&request);
        one.state = State::Waiting(now);
        self.send(group, now);
        Ok(())
    }

    fn wait(&mut self, stop: &Stop) -> Result<Option<usize>> {
        // The caller may have been away for long; workers are not late for that.
        let now = Instant::now();
        if now.duration_since(self.tick_at) > 2 * TICK {
            self.seats.iter_mut().for_each(|seat| seat.moved_at = now);
        }
        loop {
            if let Some(group) = self.answered.pop_front() {
                return Ok(Some(group));
            }
            if stop.is_set() {
                return Ok(None);
            }
            self.listen()?;
            if self.answered.is_empty() && Instant::now() >= self.tick_at {
                self.tick();
            }
        }
    }

    fn results(&self, group: usize) -> Results<'_> {
        self.groups[group].results()
    }

    fn unit(&self) -> usize {
        self.run.shape.known.said.vector.max(1) as usize
    }

    fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    fn take_warnings(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.warnings)
    }
}

impl PythonStepper {
    /// Sends the request of a waiting group, if its worker is ready and it is time.
    fn send(&mut self, group: usize, now: Instant) {
        let one = &mut self.groups[group];
        let seat = &mut self.seats[one.worker];
        let State::Waiting(at) = one.state else { return };
        let (Some(link), false, true) = (&seat.link, seat.ending, at <= now) else { return };
        let message = one.write(&link.memory, &self.maps[one.worker]);
        let idle = !self.groups[seat.groups.clone()].iter().any(|group| group.state == State::Asked);
        if idle {
            seat.moved_at = now;
        }
        self.groups[group].state = State::Asked;
        if message::send(link.socket.as_fd(), &message).is_err() {
            self.end(self.groups[group].worker, Why::Closed);
        }
    }

    /// Orders the supervisor to end a worker, whose groups wait from now on.
    fn end(&mut self, worker: usize, why: Why) {
        let seat = &mut self.seats[worker];
        if !std::mem::replace(&mut seat.ending, true) {
            let life = self.seats[worker].life;
            self.run.supervisor.order(Order::End { worker: self.first_worker + worker, life, why });
        }
    }

    /// Sleeps until a worker, the supervisor or the clock has something, and takes one message of each worker.
    fn listen(&mut self) -> Result<()> {
        if self.has_only_one_to_hear() {
            // One system call instead of two: they take nearly all of a short turn.
            self.take(0, message::receive_waiting)?;
            return self.hear_all();
        }
        let asked = |seat: &Seat| {
            !seat.ending && self.groups[seat.groups.clone()].iter().any(|group| group.state == State::Asked)
        };
        let waiting: Vec<usize> = (0..self.seats.len())
            .filter(|&worker| self.seats[worker].link.is_some() && asked(&self.seats[worker]))
            .collect();
        let mut fds = Vec::with_capacity(waiting.len() + 1);
        fds.push(PollFd::new(&self.told, PollFlags::IN));
        for &worker in &waiting {
            let link = self.seats[worker].link.as_ref().expect("it was filtered by this");
            fds.push(PollFd::new(&link.socket, PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        // An interrupted poll found nothing.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        let rang = !fds[0].revents().is_empty();
        let spoke = waiting.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        let spoke: Vec<usize> = spoke.map(|(&worker, _)| worker).collect();
        for worker in spoke {
            self.take(worker, message::receive)?;
        }
        if rang {
            self.told.quiet();
            self.hear_all()?;
        }
        Ok(())
    }

    /// Returns true if only one worker can send anything: no group waits for the supervisor, whose news come after the
    /// worker's answer.
    fn has_only_one_to_hear(&self) -> bool {
        let [Seat { link: Some(_), ending: false, .. }] = self.seats[..] else { return false };
        let mut states = self.groups.iter().map(|group| group.state);
        states.clone().any(|state| state == State::Asked)
            && states.all(|state| !matches!(state, State::Waiting(_)))
    }

    fn hear_all(&mut self) -> Result<()> {
        while let Ok(news) = self.news.try_recv() {
            self.hear(news)?;
        }
        Ok(())
    }

    /// Takes one message of a worker.
    fn take(&mut self, worker: usize, receive: fn(BorrowedFd<'_>, &mut [u8]) -> Received) -> Result<()> {
        let Some(link) = &self.seats[worker].link else { return Ok(()) };
        match receive(link.socket.as_fd(), &mut self.buffer) {
            Received::Later => Ok(()),
            Received::Closed => {
                self.end(worker, Why::Closed);
                Ok(())
            }
            Received::Message(8) => self.done(worker),
            Received::Message(length) => {
                self.word(worker, length);
                Ok(())
            }
        }
    }

    /// Takes the eight bytes with which a group answers.
    fn done(&mut self, worker: usize) -> Result<()> {
        let said = self.buffer.first_chunk::<8>().expect("it has 8 bytes");
        let seat = &mut self.seats[worker];
        let group = seat.groups.start + usize::from(said[1]);
        if !(seat.groups.contains(&group) && self.groups[group].is_answered_by(said)) {
            let number = self.first_worker + worker;
            let error = bad(&format!("worker {number} answered {said:?}, which was not asked for"));
            self.end(worker, Why::Fault(FaultKind::BadOutput, error));
            return Ok(());
        }
        // Its time for the next group begins now.
        seat.moved_at = Instant::now();
        if !std::mem::replace(&mut seat.stepped, true) {
            self.run.supervisor.order(Order::Stepped { worker: self.first_worker + worker });
        }
        self.complete(group)
    }

    /// Takes a word of a worker: an exception of an environment.
    fn word(&mut self, worker: usize, length: usize) {
        let message = &self.buffer[..length];
        let Ok(Word::Exception(exception)) = serde_json::from_slice(message) else {
            let said = String::from_utf8_lossy(&message[..length.min(200)]);
            let number = self.first_worker + worker;
            let error = bad(&format!("worker {number} said `{said}`, which is no word of the protocol"));
            return self.end(worker, Why::Fault(FaultKind::BadOutput, error));
        };
        let (local, share) =
            (exception.env as usize, &self.run.shape.shares[self.first_worker + worker].envs);
        if local >= share.len() {
            let (number, envs) = (self.first_worker + worker, share.len());
            let error = bad(&format!("worker {number} says that its environment {local} of {envs} raised"));
            return self.end(worker, Why::Fault(FaultKind::BadOutput, error));
        }
        let env_index = share.start + exception.env;
        let (kind, error) = exception.error(env_index);
        if kind == FaultKind::OverBudget {
            // Its heap is full: the next environment would fail too.
            return self.end(worker, Why::Fault(kind, error));
        }
        let groups = &mut self.groups[self.seats[worker].groups.clone()];
        if let Some(group) = groups.iter_mut().find(|group| group.local.contains(&local)) {
            let index = local - group.local.start;
            group.raised.push((index, kind, error));
        }
    }

    /// Takes the answer of a group, and has failed environments made again.
    fn complete(&mut self, group: usize) -> Result<()> {
        let one = &mut self.groups[group];
        let link = self.seats[one.worker].link.as_ref().expect("its worker answered");
        let (failed, stepped) =
            one.read(&link.memory, &self.maps[one.worker], &self.checks, &self.run.shape.known);
        if stepped {
            let fruitless = std::mem::take(&mut self.seats[one.worker].fruitless);
            if fruitless >= LOOP {
                self.run.looping.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if failed.is_empty() {
            one.state = State::Idle;
            self.answered.push_back(group);
            return Ok(());
        }
        self.make_again(group, failed)
    }

    /// Records failures of environments and has them made again after a wait.
    fn make_again(&mut self, group: usize, failed: Vec<usize>) -> Result<()> {
        let now = Instant::now();
        let vector = self.unit();
        let mut at = now;
        let one = &mut self.groups[group];
        for (index, kind, error) in std::mem::take(&mut one.raised) {
            let env_index = one.envs.start + index as u32;
            self.limit.note(env_index, now, &error)?;
            let failures = &mut self.failures[(env_index - self.first_env) as usize];
            at = at.max(now + failures.wait(now, self.run.envs.backoff));
            self.faults.push(Fault { env_index, kind, error });
        }
        for index in failed {
            // The environments of a vector environment fail together.
            let unit = index - index % vector;
            for index in unit..unit + vector {
                one.again(index, REMAKE);
            }
        }
        one.state = State::Waiting(at);
        self.send(group, now);
        Ok(())
    }

    pub(super) fn hear(&mut self, news: News) -> Result<()> {
        match news {
            News::Ready { worker, life, link, .. } => {
                let (now, worker) = (Instant::now(), worker - self.first_worker);
                let seat = &mut self.seats[worker];
                seat.link = Some(link);
                seat.life = life;
                seat.ending = false;
                seat.stepped = false;
                seat.moved_at = now;
                for group in seat.groups.clone() {
                    self.send(group, now);
                }
                Ok(())
            }
            News::Lost { worker, kind, error } => self.lost(worker - self.first_worker, kind, error),
            News::Warning { warning, .. } => {
                self.warnings.push(warning);
                Ok(())
            }
        }
    }

    /// Records the end of a worker: its episodes are lost, and it is started again within the limit.
    fn lost(&mut self, worker: usize, kind: FaultKind, mut error: Error) -> Result<()> {
        let now = Instant::now();
        if let Some(pairing) = &mut self.pairing {
            pairing.lost();
        }
        let seat = &mut self.seats[worker];
        let share = &self.run.shape.shares[self.first_worker + worker];
        let mut env_index = share.envs.start;
        if let Some(link) = seat.link.take() {
            let [env, doing] = cursor(&link, &self.maps[worker]);
            if (env as usize) < share.envs.len() {
                env_index = share.envs.start + env as u32;
                let doing = DOING.get(doing as usize).copied().unwrap_or("step");
                error.facts.insert(0, format!("last under way: {doing} of environment {env_index}"));
            }
        }
        seat.fruitless += 1;
        if seat.fruitless == LOOP {
            self.run.looping.fetch_add(1, Ordering::Relaxed);
        }
        seat.ending = false;
        self.groups[seat.groups.clone()].iter_mut().for_each(|group| group.lose(now));
        self.limit.note(env_index, now, &error)?;
        let wait = self.seats[worker].failures.wait(now, self.run.envs.backoff);
        self.check_alive(&error)?;
        self.faults.push(Fault { env_index, kind, error });
        self.run.supervisor.order(Order::Start { worker: self.first_worker + worker, at: now + wait });
        Ok(())
    }

    /// Errors: `env-failing-repeatedly` once too many workers are in a crash loop.
    fn check_alive(&self, error: &Error) -> Result<()> {
        let workers = self.run.shape.shares.len();
        let looping = self.run.looping.load(Ordering::Relaxed);
        let least = (self.run.envs.workers_alive_min * workers as f64) as usize;
        if workers - looping >= least {
            return Ok(());
        }
        let message = format!(
            "{looping} of {workers} workers end before they made a step, and `workers_alive_min` asks for {least}"
        );
        let mut stop = Error::new("env-failing-repeatedly", message);
        stop.facts.push(format!("the last failure: {}: {}", error.slug, error.message));
        stop.facts.extend(error.facts.iter().cloned());
        Err(stop.hint("mend the environment, or lower `workers_alive_min`"))
    }

    /// Sends requests that are due, and ends workers that are late.
    fn tick(&mut self) {
        let now = Instant::now();
        self.tick_at = now + TICK;
        if let (Some(pairing), Some(link)) = (&mut self.pairing, &self.seats[0].link) {
            pairing.look(link.keeper, now);
        }
        for group in 0..self.groups.len() {
            self.send(group, now);
        }
        for worker in 0..self.seats.len() {
            let seat = &mut self.seats[worker];
            let busy = self.groups[seat.groups.clone()].iter().any(|group| group.state == State::Asked);
            let (Some(link), true, false) = (&seat.link, busy, seat.ending) else { continue };
            let seen = cursor(link, &self.maps[worker]);
            if seen != seat.cursor {
                seat.cursor = seen;
                seat.moved_at = now;
            }
            let doing = DOING.get(seen[1] as usize).copied().unwrap_or("step");
            let limit =
                if doing == "step" { self.run.envs.step_timeout } else { self.run.envs.reset_timeout };
            if now.duration_since(seat.moved_at) > limit {
                self.end(worker, Why::Late { doing, limit });
            }
        }
    }
}

impl Failures {
    /// Counts a failure. Returns the wait before the next attempt.
    fn wait(&mut self, now: Instant, [first, most]: [Duration; 2]) -> Duration {
        if self.last.is_some_and(|last| now.duration_since(last) > CALM) {
            self.count = 0;
        }
        self.last = Some(now);
        let wait = first.saturating_mul(1 << self.count.min(20));
        self.count += 1;
        wait.min(most)
    }
}

/// Reads the environment under way at a worker, and its activity.
fn cursor(link: &Link, map: &SlotMap) -> [i32; 2] {
    let mut bytes = [0; 8];
    link.memory.read(map.cursor, &mut bytes);
    let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4)]
}
