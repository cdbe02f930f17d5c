//! The stepper over worker processes: asks groups through their slots, judges what comes back, and makes again what failed.

use super::crew::{Crew, Lines, Link, News, Order, Shape, Why};
use super::judge::{Check, checks, judge};
use super::slots::SlotMap;
use super::words::{Word, bad};
use super::{PythonEnvs, Share};
use crate::{Ask, Fault, FaultKind, Request, RestartLimit, Results, Stepper};
use plimsoll_base::{Error, Result};
use plimsoll_env::flags::{ABORTED, DONE, RESET_ROW, TERMINATED, TRUNCATED};
use plimsoll_env::{Slot, Spec};
use plimsoll_worker::session::{self, LAST_WORDS_BYTES, MESSAGE_BYTES_MAX, Received};
use plimsoll_worker::{Bell, Stop, find_python};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How soon a stop and a late worker are seen.
const TICK: Duration = Duration::from_millis(50);
/// A failure this long after the last one is a first failure again, and waits as short.
const CALM: Duration = Duration::from_secs(60);
/// What a group is asked beside the asks of a collector: to make an environment anew, then to reset it.
const REMAKE: u8 = 3;
/// The flag by which the script says that an environment failed.
const FAILED: u8 = 128;
/// The operation in the eight bytes of a step.
const GO: u8 = 1;
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
    worker: usize,
    /// Counted over the run.
    envs: Range<u32>,
    /// Counted within the worker.
    local: Range<usize>,
    /// Its place among the worker's groups.
    place: u8,
    state: State,
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

/// Environments in Python, stepped by worker processes.
pub struct PythonStepper {
    envs: Arc<PythonEnvs>,
    shape: Arc<Shape>,
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
    orders: Sender<Order>,
    ordered: Bell,
    news: Receiver<News>,
    told: Bell,
    buffer: Vec<u8>,
    tick_at: Instant,
    crew: Option<JoinHandle<()>>,
}

impl PythonStepper {
    /// Starts the workers and makes all environments.
    ///
    /// Errors: `env-python-missing`, `env-numpy-missing`, `env-gymnasium-missing`, `unknown-environment`, `env-import-failed`,
    /// `env-not-made`, `env-space-unsupported`, `env-spaces-changed`, `env-vector-size`, `env-shared-memory-full`,
    /// `env-ulimit-too-low`, and whatever else keeps a worker from its first step; `interrupted` once `stop` is set.
    pub fn start(envs: PythonEnvs, stop: &Stop) -> Result<PythonStepper> {
        let workers = envs.num_workers.clamp(1, envs.num_envs.max(1));
        Self::start_some(envs, workers as usize, stop)
    }

    /// Starts the first `workers` of them alone, each with its own share of the environments.
    pub(super) fn start_some(envs: PythonEnvs, workers: usize, stop: &Stop) -> Result<PythonStepper> {
        envs.check()?;
        let python = find_python(envs.python.as_deref())?;
        let not_started =
            |err: std::io::Error| Error::new("env-worker-not-started", format!("watching workers: {err}"));
        let program = match &envs.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(not_started)?,
        };
        let envs = Arc::new(envs);
        let (orders, orders_in) = std::sync::mpsc::channel();
        let (news_out, news) = std::sync::mpsc::channel();
        let (ordered, told) = (Bell::new().map_err(not_started)?, Bell::new().map_err(not_started)?);
        let lines = Lines { orders: orders_in, ordered: ordered.clone(), news: news_out, told: told.clone() };
        let crew = Crew::new(envs.clone(), python, program, workers, lines);
        let crew = std::thread::Builder::new()
            .name("env-crew".into())
            .spawn(move || crew.run())
            .map_err(not_started)?;
        let started = Started { orders, ordered, news, told, crew: Some(crew) };
        started.first(envs, stop)
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
        &self.shape.memory_held_by
    }

    /// Bytes of our own buffers for a worker of `envs` environments, and of what it shares with us.
    pub(super) fn bytes(envs: u64, observation: &Slot, action: &Slot) -> (u64, u64) {
        let map = SlotMap::new(envs as usize, action.bytes, observation.bytes);
        let buffers = envs * (2 * observation.bytes + action.bytes + PER_ENV_BYTES) as u64;
        (buffers + LAST_WORDS_BYTES as u64, (map.bytes as u64).next_multiple_of(4096))
    }

    /// Environments that step as one, 0 where each does alone, and the limit on steps that one was registered with.
    pub(super) fn said(&self) -> (u32, Option<u32>) {
        let said = &self.shape.known.said;
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

/// A crew under way whose first workers are not ready yet.
struct Started {
    orders: Sender<Order>,
    ordered: Bell,
    news: Receiver<News>,
    told: Bell,
    crew: Option<JoinHandle<()>>,
}

impl Started {
    /// Waits for all workers; the first that fails ends it.
    fn first(self, envs: Arc<PythonEnvs>, stop: &Stop) -> Result<PythonStepper> {
        let mut ready: Vec<(usize, u64, Link)> = Vec::new();
        let mut warnings = Vec::new();
        let shape = loop {
            match self.news.recv_timeout(TICK) {
                Ok(News::Ready { worker, life, link, shape }) => {
                    ready.push((worker, life, link));
                    if ready.len() == shape.shares.len() {
                        break shape;
                    }
                }
                Ok(News::Lost { error, .. }) => return Err(self.end(error)),
                Ok(News::Warning(warning)) => warnings.push(warning),
                Err(_) if stop.is_set() => {
                    return Err(
                        self.end(Error::new("interrupted", "the run ended while environments were made"))
                    );
                }
                Err(_) => {}
            }
        };
        ready.sort_by_key(|(worker, ..)| *worker);
        Ok(self.stepper(envs, shape, ready, warnings))
    }

    fn end(mut self, error: Error) -> Error {
        close(&self.orders, &self.ordered, &mut self.crew);
        error
    }

    fn stepper(
        self,
        envs: Arc<PythonEnvs>,
        shape: Arc<Shape>,
        ready: Vec<(usize, u64, Link)>,
        warnings: Vec<Error>,
    ) -> PythonStepper {
        let now = Instant::now();
        let (mut groups, mut seats) = (Vec::new(), Vec::new());
        for ((worker, life, link), share) in ready.into_iter().zip(&shape.shares) {
            let first = groups.len();
            groups.extend(Group::of(worker, share, &shape));
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
        PythonStepper {
            limit: RestartLimit::new(envs.restarts_max, RestartLimit::WINDOW),
            failures: vec![Failures::default(); envs.num_envs as usize],
            maps: shape.shares.iter().map(|share| share.map(&shape.known)).collect(),
            ranges: groups.iter().map(|group| group.envs.clone()).collect(),
            checks: checks(&shape.known.observation),
            envs,
            shape,
            groups,
            seats,
            answered: VecDeque::new(),
            faults: Vec::new(),
            warnings,
            orders: self.orders,
            ordered: self.ordered,
            news: self.news,
            told: self.told,
            buffer: vec![0; MESSAGE_BYTES_MAX],
            tick_at: now,
            crew: self.crew,
        }
    }
}

impl Group {
    fn of(worker: usize, share: &Share, shape: &Shape) -> Vec<Group> {
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
        &self.shape.known.spec
    }

    fn groups(&self) -> &[Range<u32>] {
        &self.ranges
    }

    fn submit(&mut self, group: usize, request: Request<'_>) -> Result<()> {
        let now = Instant::now();
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
        self.shape.known.said.vector.max(1) as usize
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
        link.memory.write(map.asks + first, &one.codes);
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
        let place = self.groups[group].place;
        if session::send(link.socket.as_fd(), &[GO, place, 0, 0, a, b, c, d]).is_err() {
            let worker = self.groups[group].worker;
            self.end(worker, Why::Closed);
        }
    }

    /// Tells the crew to end a worker, whose groups wait from now on.
    fn end(&mut self, worker: usize, why: Why) {
        let seat = &mut self.seats[worker];
        if !std::mem::replace(&mut seat.ending, true) {
            self.order(Order::End { worker, life: self.seats[worker].life, why });
        }
    }

    fn order(&self, order: Order) {
        // The crew ends with us, not before.
        let _ = self.orders.send(order);
        self.ordered.ring();
    }

    /// Sleeps until a worker, the crew or the clock has something, and takes one message of each who has.
    fn listen(&mut self) -> Result<()> {
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
            self.take(worker)?;
        }
        if rang {
            self.told.quiet();
            while let Ok(news) = self.news.try_recv() {
                self.hear(news)?;
            }
        }
        Ok(())
    }

    /// Takes one message of a worker.
    fn take(&mut self, worker: usize) -> Result<()> {
        let Some(link) = &self.seats[worker].link else { return Ok(()) };
        match session::receive(link.socket.as_fd(), &mut self.buffer) {
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
        let expected = operation == GO
            && seat.groups.contains(&group)
            && self.groups[group].state == State::Asked
            && self.groups[group].number == u32::from_ne_bytes(number);
        if !expected {
            let said = &self.buffer[..8];
            let error = bad(&format!("worker {worker} answered {said:?}, which nobody asked"));
            self.end(worker, Why::Fault(FaultKind::BadOutput, error));
            return Ok(());
        }
        // Between two groups it has no time of its own to account for.
        seat.moved_at = Instant::now();
        if !std::mem::replace(&mut seat.stepped, true) {
            self.order(Order::Stepped { worker });
        }
        self.complete(group)
    }

    /// A worker said a word: what an environment raised.
    fn word(&mut self, worker: usize, length: usize) {
        let message = &self.buffer[..length];
        let Ok(Word::Exception(exception)) = serde_json::from_slice(message) else {
            let said = String::from_utf8_lossy(&message[..length.min(200)]);
            let error = bad(&format!("worker {worker} said `{said}`, which is no word of the protocol"));
            return self.end(worker, Why::Fault(FaultKind::BadOutput, error));
        };
        let (local, share) = (exception.env as usize, &self.shape.shares[worker].envs);
        if local >= share.len() {
            let error =
                bad(&format!("worker {worker} says that its environment {local} of {} raised", share.len()));
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
                judge(&self.checks, &self.shape.known.observation, &one.observations[place.clone()]);
            if one.codes[index] == Ask::Step as u8 {
                let mut reward = [0; 8];
                link.memory.read(map.rewards + 8 * slot, &mut reward);
                let reward = f64::from_ne_bytes(reward);
                one.rewards[index] = reward;
                one.flags[index] = flag & (TERMINATED | TRUNCATED | RESET_ROW);
                if reward.is_nan() {
                    wrong = Some("its reward is NaN".into());
                }
                if flag & DONE != 0 {
                    link.memory.read(map.finals + slot * width, &mut one.finals[place.clone()]);
                    let last = judge(&self.checks, &self.shape.known.observation, &one.finals[place]);
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
            self.seats[one.worker].fruitless = 0;
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
            at = at.max(now + self.failures[env_index as usize].wait(now, self.envs.backoff));
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

    fn hear(&mut self, news: News) -> Result<()> {
        match news {
            News::Ready { worker, life, link, .. } => {
                let now = Instant::now();
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
            News::Lost { worker, kind, error } => self.lost(worker, kind, error),
            News::Warning(warning) => {
                self.warnings.push(warning);
                Ok(())
            }
        }
    }

    /// A worker is gone: its episodes are lost, and it is started again if it may.
    fn lost(&mut self, worker: usize, kind: FaultKind, mut error: Error) -> Result<()> {
        let now = Instant::now();
        let seat = &mut self.seats[worker];
        let share = &self.shape.shares[worker];
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
        let wait = self.seats[worker].failures.wait(now, self.envs.backoff);
        self.check_alive(&error)?;
        self.faults.push(Fault { env_index, kind, error });
        self.order(Order::Start { worker, at: now + wait });
        Ok(())
    }

    /// Errors: `env-failing-repeatedly` once too many workers do nothing but end.
    fn check_alive(&self, error: &Error) -> Result<()> {
        let workers = self.seats.len();
        let looping = self.seats.iter().filter(|seat| seat.fruitless >= LOOP).count();
        let least = (self.envs.workers_alive_min * workers as f64) as usize;
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
            let limit = if doing == "step" { self.envs.step_timeout } else { self.envs.reset_timeout };
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

impl Drop for PythonStepper {
    fn drop(&mut self) {
        close(&self.orders, &self.ordered, &mut self.crew);
    }
}

fn close(orders: &Sender<Order>, ordered: &Bell, crew: &mut Option<JoinHandle<()>>) {
    let _ = orders.send(Order::Close);
    ordered.ring();
    if let Some(crew) = crew.take() {
        // A crew that panicked has said so; its workers died with it.
        let _ = crew.join();
    }
}

/// The environment under way at a worker, and what it does.
fn cursor(link: &Link, map: &SlotMap) -> [i32; 2] {
    let mut bytes = [0; 8];
    link.memory.read(map.cursor, &mut bytes);
    let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4)]
}
