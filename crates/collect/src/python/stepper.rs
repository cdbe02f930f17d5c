//! The stepper over worker processes: asks groups through their slots, judges what comes back, and makes again what failed.

use super::Share;
use super::crew::{Link, News, Order, Why};
use super::judge::{Check, checks, judge};
use super::pairing::Pairing;
use super::slots::SlotMap;
use super::start::{Part, Run};
use super::words::{Word, bad};
use crate::{Ask, Fault, FaultKind, Request, RestartLimit, Results, Stepper};
use plimsoll_base::{Error, Result};
use plimsoll_env::flags::{ABORTED, DONE, RESET_ROW, TERMINATED, TRUNCATED};
use plimsoll_env::{Slot, Spec};
use plimsoll_worker::session::{self, LAST_WORDS_BYTES, MESSAGE_BYTES_MAX, Received};
use plimsoll_worker::{Bell, Stop};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How soon a stop and a late worker are seen.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// A failure this long after the last one is a first failure again, and waits as short.
const CALM: Duration = Duration::from_secs(60);
/// What a group is asked beside the asks of a collector: to make an environment anew, then to reset it.
const REMAKE: u8 = 3;
/// The flag by which the script says that an environment failed.
const FAILED: u8 = 128;
/// The operation in the eight bytes of a step: each environment as its ask says, or all of them a step.
const GO: u8 = 1;
const STEP: u8 = 2;
/// What a worker does, by the number in its slots.
const DOING: [&str; 3] = ["step", "reset", "make"];
/// What a group keeps of an environment beside its slots, rounded up.
const PER_ENV_BYTES: usize = 128;
/// Ends of a worker without a step in between that count as a loop.
const LOOP: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is under way.
    Idle,
    /// The worker has it.
    Asked,
    /// To be asked again from then on, once the worker is there.
    Waiting(Instant),
}

/// One group: what it was asked, and what it answered last.
struct Group {
    /// Its worker's seat.
    worker: usize,
    /// Counted over the run.
    envs: Range<u32>,
    /// Counted within the worker.
    local: Range<usize>,
    /// Its place among the worker's groups.
    place: u8,
    state: State,
    /// Of what was asked last.
    operation: u8,
    number: u32,
    /// What each was asked by the collector.
    asks: Vec<Ask>,
    /// What each is yet to do: an `Ask` or `REMAKE`.
    codes: Vec<u8>,
    /// Environments that lost their episode since they answered last.
    lost: Vec<bool>,
    seeds: Vec<u64>,
    actions: Vec<u8>,
    observations: Vec<u8>,
    finals: Vec<u8>,
    rewards: Vec<f64>,
    flags: Vec<u8>,
    /// What environments raised in the round under way, by their place in the group.
    raised: Vec<(usize, FaultKind, Error)>,
}

/// A worker as the stepper sees it.
struct Seat {
    /// None while it is not ready.
    link: Option<Link>,
    life: u64,
    /// Told to end, so that nothing it says counts.
    ending: bool,
    groups: Range<usize>,
    /// The cursor when it was last seen, and when it moved.
    cursor: [i32; 2],
    moved_at: Instant,
    stepped: bool,
    failures: Failures,
    /// Ends without a step in between.
    fruitless: u32,
}

/// Failures that follow each other.
#[derive(Clone, Copy, Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

/// Environments in Python, stepped by worker processes: all of a run's, or those that one thread asks.
pub struct PythonStepper {
    run: Arc<Run>,
    /// Numbers of the first worker and of the first environment here.
    first_worker: usize,
    first_env: u32,
    maps: Vec<SlotMap>,
    ranges: Vec<Range<u32>>,
    groups: Vec<Group>,
    seats: Vec<Seat>,
    /// Failures of each environment.
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
    /// With the only worker, on a thread that is ours.
    pairing: Option<Pairing>,
}

impl PythonStepper {
    /// Of workers that are ready.
    pub(super) fn new(run: Arc<Run>, part: Part) -> PythonStepper {
        let Part { ready, news, told, pairing } = part;
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

    /// The number of the first worker here.
    pub(super) fn first_worker(&self) -> usize {
        self.first_worker
    }

    /// Process ids of the workers that run.
    pub fn pids(&self) -> Vec<u32> {
        self.seats.iter().filter_map(|seat| seat.link.as_ref()).map(|link| link.pid).collect()
    }

    /// Process ids of their keepers, from which all processes of the workers descend.
    pub(super) fn keepers(&self) -> Vec<u32> {
        self.seats.iter().filter_map(|seat| seat.link.as_ref()).map(|link| link.keeper).collect()
    }

    /// Who holds workers to their `worker_memory`, in words.
    pub fn memory_held_by(&self) -> &str {
        &self.run.shape.memory_held_by
    }

    /// Bytes of our own buffers for a worker of `envs` environments, and of what it shares with us.
    pub(super) fn bytes(envs: u64, observation: &Slot, action: &Slot) -> (u64, u64) {
        let map = SlotMap::new(envs as usize, action.bytes, observation.bytes);
        let buffers = envs * (2 * observation.bytes + action.bytes + PER_ENV_BYTES) as u64;
        (buffers + LAST_WORDS_BYTES as u64, (map.bytes as u64).next_multiple_of(4096))
    }

    /// Environments that step as one, 0 where each does alone, and the limit on steps that one was registered with.
    pub(super) fn said(&self) -> (u32, Option<u32>) {
        let said = &self.run.shape.known.said;
        (said.vector, said.steps_max)
    }

    /// Workers that are ready.
    pub fn workers_alive(&self) -> usize {
        self.seats.iter().filter(|seat| seat.link.is_some()).count()
    }

    /// Workers in all.
    pub fn workers(&self) -> usize {
        self.seats.len()
    }
}

impl Group {
    fn of(worker: usize, share: &Share, shape: &super::crew::Shape) -> Vec<Group> {
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

    /// What an environment is yet to do after it failed, and how its answer is marked.
    fn again(&mut self, index: usize, code: u8) {
        self.codes[index] = code;
        // A step that was under way is given up; a reset only takes longer.
        self.flags[index] = if self.asks[index] == Ask::Step { ABORTED } else { 0 };
        self.rewards[index] = 0.0;
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
        one.asks.copy_from_slice(request.asks);
        one.seeds.copy_from_slice(request.seeds);
        one.actions.copy_from_slice(request.actions);
        for index in 0..one.asks.len() {
            match one.asks[index] {
                Ask::Skip => one.codes[index] = Ask::Skip as u8,
                Ask::Step if !one.lost[index] => one.codes[index] = Ask::Step as u8,
                // Its episode ended with its worker: whatever it is asked, it begins another.
                _ => one.again(index, Ask::Reset as u8),
            }
        }
        one.state = State::Waiting(now);
        self.send(group, now);
        Ok(())
    }

    fn wait(&mut self, stop: &Stop) -> Result<Option<usize>> {
        // Whoever asked may have been away for long; what workers did meanwhile is not held against them.
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
        let group = &self.groups[group];
        Results {
            observations: &group.observations,
            final_observations: &group.finals,
            rewards: &group.rewards,
            flags: &group.flags,
        }
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
    /// Gives a waiting group to its worker, if that is there and it is time.
    fn send(&mut self, group: usize, now: Instant) {
        let one = &mut self.groups[group];
        let seat = &mut self.seats[one.worker];
        let State::Waiting(at) = one.state else { return };
        let (Some(link), false, true) = (&seat.link, seat.ending, at <= now) else { return };
        let (map, first) = (&self.maps[one.worker], one.local.start);
        one.operation = if one.codes.iter().all(|&code| code == Ask::Step as u8) { STEP } else { GO };
        if one.operation == GO {
            link.memory.write(map.asks + first, &one.codes);
        }
        link.memory.write(map.actions + first * map.action_bytes, &one.actions);
        for (index, &seed) in one.seeds.iter().enumerate() {
            let seed = u64::from(plimsoll_env::seed::to_31_bits(seed));
            link.memory.write(map.seeds + 8 * (first + index), &seed.to_ne_bytes());
        }
        one.number = one.number.wrapping_add(1);
        one.raised.clear();
        let [a, b, c, d] = one.number.to_ne_bytes();
        let idle = !self.groups[seat.groups.clone()].iter().any(|group| group.state == State::Asked);
        if idle {
            seat.moved_at = now;
        }
        self.groups[group].state = State::Asked;
        let Group { place, operation, .. } = self.groups[group];
        if session::send(link.socket.as_fd(), &[operation, place, 0, 0, a, b, c, d]).is_err() {
            let worker = self.groups[group].worker;
            self.end(worker, Why::Closed);
        }
    }

    /// Tells the crew to end a worker, whose groups wait from now on.
    fn end(&mut self, worker: usize, why: Why) {
        let seat = &mut self.seats[worker];
        if !std::mem::replace(&mut seat.ending, true) {
            let life = self.seats[worker].life;
            self.run.order(Order::End { worker: self.first_worker + worker, life, why });
        }
    }

    /// Sleeps until a worker, the crew or the clock has something, and takes one message of each who has.
    fn listen(&mut self) -> Result<()> {
        if self.has_only_one_to_hear() {
            // A single call in the place of two: nearly all of a short turn is calls.
            self.take(0, session::receive_waiting)?;
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
            let link = self.seats[worker].link.as_ref().expect("it was just seen");
            fds.push(PollFd::new(&link.socket, PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        // An interrupted poll is a poll that found nothing.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        let rang = !fds[0].revents().is_empty();
        let spoke: Vec<usize> = waiting
            .iter()
            .zip(&fds[1..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(&worker, _)| worker)
            .collect();
        for worker in spoke {
            self.take(worker, session::receive)?;
        }
        if rang {
            self.told.quiet();
            self.hear_all()?;
        }
        Ok(())
    }

    /// Whether a single worker is all that can be heard: nothing waits for the crew, whose words come after the worker's.
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

    /// A group has answered, if the eight bytes say so.
    fn done(&mut self, worker: usize) -> Result<()> {
        let [operation, place, _, _, number @ ..] = *self.buffer.first_chunk::<8>().expect("it has 8 bytes");
        let seat = &mut self.seats[worker];
        let group = seat.groups.start + usize::from(place);
        let expected = seat.groups.contains(&group)
            && self.groups[group].state == State::Asked
            && self.groups[group].operation == operation
            && self.groups[group].number == u32::from_ne_bytes(number);
        if !expected {
            let said = &self.buffer[..8];
            let error =
                bad(&format!("worker {} answered {said:?}, which nobody asked", self.first_worker + worker));
            self.end(worker, Why::Fault(FaultKind::BadOutput, error));
            return Ok(());
        }
        // Between two groups it has no time of its own to account for.
        seat.moved_at = Instant::now();
        if !std::mem::replace(&mut seat.stepped, true) {
            self.run.order(Order::Stepped { worker: self.first_worker + worker });
        }
        self.complete(group)
    }

    /// A worker said a word: what an environment raised.
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
            // Its heap is full; another environment would be the next to find out.
            return self.end(worker, Why::Fault(kind, error));
        }
        let groups = &mut self.groups[self.seats[worker].groups.clone()];
        if let Some(group) = groups.iter_mut().find(|group| group.local.contains(&local)) {
            let index = local - group.local.start;
            group.raised.push((index, kind, error));
        }
    }

    /// Copies what a group wrote, judges the copy, and has made again what failed.
    fn complete(&mut self, group: usize) -> Result<()> {
        let one = &mut self.groups[group];
        let seat = &self.seats[one.worker];
        let link = seat.link.as_ref().expect("who answered is there");
        let (map, first) = (&self.maps[one.worker], one.local.start);
        let width = map.observation_bytes;
        let mut flags = vec![0u8; one.codes.len()];
        link.memory.read(map.flags + first, &mut flags);
        let (mut failed, mut stepped) = (Vec::new(), false);
        for (index, &flag) in flags.iter().enumerate() {
            if one.codes[index] == Ask::Skip as u8 {
                continue;
            }
            let (slot, place) = (first + index, index * width..(index + 1) * width);
            if flag & FAILED != 0 {
                failed.push(index);
                continue;
            }
            link.memory.read(map.observations + slot * width, &mut one.observations[place.clone()]);
            let mut wrong =
                judge(&self.checks, &self.run.shape.known.observation, &one.observations[place.clone()]);
            if one.codes[index] == Ask::Step as u8 {
                let mut reward = [0; 8];
                link.memory.read(map.rewards + 8 * slot, &mut reward);
                let reward = f64::from_ne_bytes(reward);
                one.rewards[index] = reward;
                one.flags[index] = flag & (TERMINATED | TRUNCATED | RESET_ROW);
                if reward.is_nan() {
                    wrong = Some("its reward is NaN".into());
                } else if !(reward as f32).is_finite() {
                    wrong = Some(format!("its reward is {reward:e}, which 32 bits do not hold"));
                }
                if flag & DONE != 0 {
                    link.memory.read(map.finals + slot * width, &mut one.finals[place.clone()]);
                    let last = judge(&self.checks, &self.run.shape.known.observation, &one.finals[place]);
                    wrong = wrong.or(last);
                }
            }
            match wrong {
                None => {
                    stepped |= one.codes[index] == Ask::Step as u8;
                    one.lost[index] = false;
                    one.codes[index] = Ask::Skip as u8;
                }
                Some(what) => {
                    let error = bad(&format!("environment {}: {what}", one.envs.start + index as u32));
                    one.raised.push((index, FaultKind::BadOutput, error));
                    failed.push(index);
                }
            }
        }
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

    /// Notes failures of environments and has them made again after a while.
    fn make_again(&mut self, group: usize, failed: Vec<usize>) -> Result<()> {
        let now = Instant::now();
        let vector = self.unit();
        let mut at = now;
        let one = &mut self.groups[group];
        for (index, kind, error) in std::mem::take(&mut one.raised) {
            let env_index = one.envs.start + index as u32;
            self.limit.note(env_index, now, &error)?;
            at = at.max(
                now + self.failures[(env_index - self.first_env) as usize].wait(now, self.run.envs.backoff),
            );
            self.faults.push(Fault { env_index, kind, error });
        }
        for index in failed {
            // A vector environment is one: its others fail with it.
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

    /// A worker is gone: its episodes are lost, and it is started again if it may.
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
        for group in &mut self.groups[seat.groups.clone()] {
            for index in 0..group.codes.len() {
                if group.state == State::Idle || group.codes[index] == Ask::Skip as u8 {
                    group.lost[index] = true;
                } else {
                    group.again(index, Ask::Reset as u8);
                }
            }
            if group.state != State::Idle {
                group.state = State::Waiting(now);
            }
        }
        self.limit.note(env_index, now, &error)?;
        let wait = self.seats[worker].failures.wait(now, self.run.envs.backoff);
        self.check_alive(&error)?;
        self.faults.push(Fault { env_index, kind, error });
        self.run.order(Order::Start { worker: self.first_worker + worker, at: now + wait });
        Ok(())
    }

    /// Errors: `env-failing-repeatedly` once too many workers do nothing but end.
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

    /// By the clock: groups whose time has come, and workers whose time is over.
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
    /// Counts one, and says how long to wait before the next attempt.
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

/// The environment under way at a worker, and what it does.
fn cursor(link: &Link, map: &SlotMap) -> [i32; 2] {
    let mut bytes = [0; 8];
    link.memory.read(map.cursor, &mut bytes);
    let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4)]
}
