//! The link between the supervisors of a run's ranks while their trainers work: heartbeats, requests to end, and the
//! verdict on what ended the run. Rank 0's supervisor is the hub; the others talk only to it.
//!
//! Each supervisor runs it in a thread, so that heartbeats never wait for other work, such as writing to a terminal.
//! The thread owns the connections; the supervisor passes it the trainer's state and takes orders.

use crate::board::{Beat, Row};
use crate::hello::Member;
use crate::message::Message;
use crate::place::Place;
use crate::rendezvous::{Mail, Meeting, Wires};
use crate::verdict::{Cause, Ending, News, Ranks, Verdict, silence_max};
use crate::window::{Window, abort};
use crate::wire::{Wire, wait};
use plimsoll_base::{Error, Result};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Each message lets the kernel see that the one before was lost: where one in twenty is, a lost one must be sent again
/// several times before its sender counts as lost, and the kernel's own timers alone would take longer over a path of
/// 200 ms.
const BEAT_EVERY: Duration = Duration::from_millis(200);
const TURN: Duration = Duration::from_millis(100);
/// The thread reads small messages; frames are on the heap.
const STACK_BYTES: usize = 256 << 10;
/// A second request within this time is the first one, arriving by another path.
const ONE_REQUEST: Duration = Duration::from_secs(1);
/// Orders that a supervisor has not taken yet; orders are few, and more are dropped.
const ORDERS_MAX: usize = 64;
/// How long a failed rank waits for the verdict: the hub's own wait, and time for messages.
const VERDICT_MAX: Duration = Duration::from_secs(5);
/// How long the hub waits for the others to end after the verdict: as long as supervisors give trainers, plus a second.
/// With the wait for the verdict it ends within twelve seconds, even if a trainer cannot be killed.
const ENDING_MAX: Duration = Duration::from_secs(11);
/// Time for the last messages.
const FAREWELL: Duration = Duration::from_secs(1);
/// A gap in this thread that counts as its own pause; see `verdict.rs`.
const OWN_PAUSE: Duration = Duration::from_secs(1);

/// An instruction to a supervisor.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Forward to the trainer a signal that a user sent to another rank.
    Signal(i32),
    /// End the trainer: the run is over.
    End,
    /// Print a line for the user.
    Say(String),
}

/// How a run of several ranks ended, as one rank knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `None` if all ended well.
    pub verdict: Option<Verdict>,
}

/// A supervisor's end of the link.
#[derive(Debug)]
pub struct Link {
    pub place: Place,
    pub members: Vec<Member>,
    shared: Arc<Mutex<Shared>>,
    /// Readable when there is an order.
    bell: UnixStream,
    wake: UnixStream,
    thread: Option<thread::JoinHandle<()>>,
    /// Kept open for the trainer.
    _mail: Option<Mail>,
}

#[derive(Debug, Default)]
struct Shared {
    beat: Beat,
    asked: StopRequests,
    ending: Option<Ending>,
    orders: VecDeque<Order>,
    verdict: Option<Verdict>,
    /// State of all ranks; at rank 0 only.
    rows: Vec<Row>,
    is_settled: bool,
    is_dropped: bool,
}

/// How often the user asked the run to end.
#[derive(Clone, Copy, Debug, Default)]
struct StopRequests {
    level: u32,
    signal: i32,
    at: Option<Instant>,
}

impl StopRequests {
    /// Records a request that this supervisor got.
    fn ask(&mut self, signal: i32, now: Instant) {
        if self.at.is_some_and(|at| now.saturating_duration_since(at) < ONE_REQUEST) {
            return;
        }
        *self = StopRequests { level: self.level.saturating_add(1), signal, at: Some(now) };
    }

    /// Records a request that another rank got. Returns true if it is new here.
    fn hear(&mut self, level: u32, signal: i32, now: Instant) -> bool {
        let is_new = level > self.level;
        if is_new {
            *self = StopRequests { level, signal, at: Some(now) };
        }
        is_new
    }
}

impl Link {
    /// Starts the link of ranks that have met. `wait_max`: how long ranks may wait for one of them.
    ///
    /// Errors: `thread-not-started`.
    pub fn start(meeting: Meeting, wait_max: Duration) -> Result<Link> {
        let Meeting { place, members, wires, window, mail } = meeting;
        let refused = |err: std::io::Error| {
            Error::new("thread-not-started", format!("the link between ranks: {err}"))
                .hint("check the limits on threads and open files: ulimit -u, ulimit -n")
        };
        let pair = || -> std::io::Result<[UnixStream; 2]> {
            let (one, other) = UnixStream::pair()?;
            one.set_nonblocking(true)?;
            other.set_nonblocking(true)?;
            Ok([one, other])
        };
        let ([bell, ring], [wake, woken]) = (pair().map_err(refused)?, pair().map_err(refused)?);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let end = End { shared: Arc::clone(&shared), ring, woken, window: place.window.clone(), asked: 0 };
        let work: Box<dyn FnOnce() + Send> = match wires {
            Wires::Hub(others) => {
                let ranks = Ranks::new(&members, wait_max, Instant::now());
                let hub = Hub { end, ranks, others, _window: window };
                Box::new(move || hub.run())
            }
            Wires::Joined(wire) => {
                let silence_max = silence_max(&members[0], &members[place.rank as usize]);
                let hub = members[0].clone();
                let joined = Joined { end, wire, hub, silence_max, ranks: place.ranks, window };
                Box::new(move || joined.run())
            }
        };
        let thread = thread::Builder::new().name("link".into()).stack_size(STACK_BYTES);
        let thread = Some(thread.spawn(work).map_err(refused)?);
        Ok(Link { place, members, shared, bell, wake, thread, _mail: mail })
    }

    /// Returns a descriptor that is readable while there is an order.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Tells the others what the trainer is doing.
    pub fn beat(&self, beat: Beat) {
        lock(&self.shared).beat = beat;
    }

    /// Tells the others that a user asked the run to end.
    pub fn asked(&self, signal: i32) {
        lock(&self.shared).asked.ask(signal, Instant::now());
        self.wake();
    }

    /// Returns the state of all ranks, at most a quarter of a second old; empty at ranks above 0.
    pub fn rows(&self) -> Vec<Row> {
        lock(&self.shared).rows.clone()
    }

    /// Returns what ended the run, if anything has.
    pub fn verdict(&self) -> Option<Verdict> {
        lock(&self.shared).verdict.clone()
    }

    pub fn orders(&self) -> Vec<Order> {
        drain(&self.bell);
        lock(&self.shared).orders.drain(..).collect()
    }

    /// Tells the others that the trainer has ended. From then on `outcome` will arrive.
    pub fn ended(&self, ending: Ending) {
        lock(&self.shared).ending.get_or_insert(ending);
        self.wake();
    }

    /// Returns how the run ended, once this rank may end too.
    pub fn outcome(&self) -> Option<Outcome> {
        let shared = lock(&self.shared);
        shared.is_settled.then(|| Outcome { verdict: shared.verdict.clone() })
    }

    fn wake(&self) {
        // A full pipe wakes the thread as well.
        let _ = (&self.wake).write(&[1]);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        lock(&self.shared).is_dropped = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Locks; a panic of the other side leaves plain data.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn drain(mut pipe: &UnixStream) {
    let mut bytes = [0; 64];
    while pipe.read(&mut bytes).is_ok_and(|length| length > 0) {}
}

/// The thread's end of what it shares with the supervisor.
struct End {
    shared: Arc<Mutex<Shared>>,
    ring: UnixStream,
    woken: UnixStream,
    window: std::path::PathBuf,
    /// The level of requests that the others know of.
    asked: u32,
}

impl End {
    fn order(&self, order: Order) {
        let mut shared = lock(&self.shared);
        if shared.orders.len() < ORDERS_MAX || order == Order::End {
            shared.orders.push_back(order);
        }
        drop(shared);
        let _ = (&self.ring).write(&[1]);
    }

    /// Returns a request that the others do not know of yet.
    fn new_request(&mut self) -> Option<Message> {
        let StopRequests { level, signal, .. } = lock(&self.shared).asked;
        (level > self.asked).then(|| {
            self.asked = level;
            Message::Ask { level, signal }
        })
    }

    /// Records another rank's request.
    fn hear(&mut self, level: u32, signal: i32) {
        if lock(&self.shared).asked.hear(level, signal, Instant::now()) {
            self.order(Order::Signal(signal));
        }
    }

    /// Ends the trainer if it has not ended, wherever it waits.
    fn decide(&self, verdict: Verdict) {
        let mut shared = lock(&self.shared);
        shared.verdict.get_or_insert(verdict);
        let has_ended = shared.ending.is_some();
        drop(shared);
        abort(&self.window);
        if !has_ended {
            self.order(Order::End);
        }
    }

    fn settle(&self) {
        lock(&self.shared).is_settled = true;
        let _ = (&self.ring).write(&[1]);
    }

    fn is_dropped(&self) -> bool {
        lock(&self.shared).is_dropped
    }

    /// Returns what the trainer does, and how it ended.
    fn own(&self) -> (Beat, Option<Ending>) {
        let shared = lock(&self.shared);
        (shared.beat.clone(), shared.ending.clone())
    }
}

/// The thread of rank 0's supervisor.
struct Hub {
    end: End,
    ranks: Ranks,
    /// Connections to the ranks from 1.
    others: Vec<Wire>,
    /// Kept open while the run lasts.
    _window: Option<Window>,
}

impl Hub {
    fn run(mut self) {
        let mut beaten = Instant::now();
        let mut decided: Option<Instant> = None;
        loop {
            wait(&self.others.iter().collect::<Vec<_>>(), &[self.end.woken.as_fd()], TURN);
            drain(&self.end.woken);
            let now = Instant::now();
            let (beat, ending) = self.end.own();
            self.ranks.beat(0, beat.clone(), now);
            if let Some(ending) = &ending {
                self.ranks.ended(0, ending.clone(), now);
            }
            self.read(now);
            if let Some(signal) = self.ranks.interrupted() {
                self.end.hear(1, signal);
            }
            if let Some(request) = self.end.new_request() {
                self.tell(&request);
            }
            if now.saturating_duration_since(beaten) >= BEAT_EVERY {
                beaten = now;
                self.tell(&Message::Beat(beat));
                lock(&self.end.shared).rows = self.ranks.rows(now);
            }
            for news in self.ranks.look(now) {
                match news {
                    News::Verdict(mut verdict) => {
                        decided = Some(now);
                        let member = &verdict.member;
                        if verdict.cause == Cause::Silent && member.site == 0 && is_stopped(member.pid) {
                            verdict.sentence += ", because a signal has stopped it";
                        }
                        self.tell(&Message::Verdict(verdict.clone()));
                        self.end.decide(verdict);
                    }
                    News::Stopped(words) => self.end.order(Order::Say(stopped(&words))),
                    News::Continued(words) => self.end.order(Order::Say(words)),
                    News::Slow(words) => self.end.order(Order::Say(self.slow(&words))),
                }
            }
            let is_time = decided.is_some_and(|at| now.saturating_duration_since(at) >= ENDING_MAX);
            let is_bad = ending.as_ref().is_some_and(|ending| !ending.cause.is_well());
            let may_go = ending.is_some() && (decided.is_some() || !is_bad);
            if self.end.is_dropped() || may_go && (is_time || self.ranks.others_are_over()) {
                break;
            }
        }
        self.others.iter_mut().for_each(|wire| wire.flush(FAREWELL));
        lock(&self.end.shared).rows = self.ranks.rows(Instant::now());
        self.end.settle();
    }

    fn read(&mut self, now: Instant) {
        for (rank, wire) in self.others.iter_mut().enumerate().map(|(index, wire)| (index + 1, wire)) {
            wire.pump();
            while let Some(message) = wire.take() {
                match message {
                    Message::Beat(beat) => self.ranks.beat(rank, beat, now),
                    Message::Ended(ending) => self.ranks.ended(rank, ending, now),
                    Message::Ask { level, signal } => self.end.hear(level, signal),
                    // A rank that sends what only rank 0 sends is still a rank.
                    _ => {}
                }
            }
            if let Some(why) = wire.over() {
                self.ranks.gone(rank, why);
            }
        }
    }

    fn slow(&self, words: &str) -> String {
        let seconds = self.ranks.wait_max().as_secs();
        shown(&Error::new("rank-slow", words).hint(format!(
            "the run ends once ranks have waited {seconds} s for one of them; --wait-seconds sets that time"
        )))
    }

    fn tell(&mut self, message: &Message) {
        for wire in self.others.iter_mut().filter(|wire| wire.over().is_none()) {
            wire.put(message);
            wire.pump();
        }
    }
}

/// Returns true if a signal has stopped a process of this host.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

fn stopped(words: &str) -> String {
    shown(&Error::new("rank-stopped", words).hint(
        "kill -CONT with that pid continues it; Ctrl-C continues it and ends the run with a checkpoint",
    ))
}

fn shown(warning: &Error) -> String {
    let hints = warning.hints.iter().map(|hint| format!("\nhint: {hint}")).collect::<String>();
    format!("warning[{}]: {}{hints}", warning.slug, warning.message)
}

/// The thread of a supervisor other than rank 0's.
struct Joined {
    end: End,
    wire: Wire,
    hub: Member,
    /// Longest silence of the hub.
    silence_max: Duration,
    ranks: u32,
    /// The window of this host; at its first rank only.
    window: Option<Window>,
}

impl Joined {
    fn run(mut self) {
        let (mut beaten, mut looked) = (Instant::now(), Instant::now());
        let mut heard = looked;
        // When this rank reported its end.
        let mut told: Option<Instant> = None;
        loop {
            wait(&[&self.wire], &[self.end.woken.as_fd()], TURN);
            drain(&self.end.woken);
            let now = Instant::now();
            if now.saturating_duration_since(looked) > OWN_PAUSE {
                heard = now;
            }
            looked = now;
            let (beat, ending) = self.end.own();
            if self.read() {
                heard = now;
            }
            if let Some(request) = self.end.new_request() {
                self.wire.put(&request);
            }
            let is_last = ending.is_some() && told.is_none();
            if is_last || now.saturating_duration_since(beaten) >= BEAT_EVERY {
                beaten = now;
                self.wire.put(&Message::Beat(beat));
            }
            if let (Some(ending), None) = (&ending, told) {
                told = Some(now);
                self.wire.put(&Message::Ended(ending.clone()));
            }
            self.wire.pump();
            let is_well = ending.is_some_and(|ending| ending.cause.is_well());
            // Once this rank has ended well, rank 0 may leave as soon as it knows.
            if !is_well {
                self.look_at_hub(now.saturating_duration_since(heard));
            }
            let has_verdict = lock(&self.end.shared).verdict.is_some();
            let is_late = told.is_some_and(|at| now.saturating_duration_since(at) >= VERDICT_MAX);
            // Other ranks of this host use the window until the run is over; then rank 0 closes the connection.
            let silent = now.saturating_duration_since(heard) >= self.silence_max;
            let may_go = is_well && (self.window.is_none() || self.wire.over().is_some() || silent);
            if self.end.is_dropped() || told.is_some() && (may_go || has_verdict || !is_well && is_late) {
                break;
            }
        }
        self.wire.flush(FAREWELL);
        self.end.settle();
    }

    /// Reads the messages of rank 0. Returns true if there was one.
    fn read(&mut self) -> bool {
        let mut spoke = false;
        self.wire.pump();
        while let Some(message) = self.wire.take() {
            spoke = true;
            match message {
                Message::Ask { level, signal } => self.end.hear(level, signal),
                Message::Verdict(verdict) => self.end.decide(verdict),
                _ => {}
            }
        }
        spoke
    }

    /// Ends the run if rank 0's supervisor, the hub, is gone.
    fn look_at_hub(&mut self, silent: Duration) {
        let silence = (silent >= self.silence_max)
            .then(|| format!("its supervisor was silent for {} s", silent.as_secs()));
        let Some(sentence) = self.wire.over().map(str::to_string).or(silence) else { return };
        if lock(&self.end.shared).verdict.is_some() {
            return;
        }
        let others = self.ranks.saturating_sub(1);
        self.end.decide(Verdict { member: self.hub.clone(), cause: Cause::Silent, sentence, others });
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
