//! The group: how trainers exchange host memory, on one host by the window. Never sums: callers add, in order.
//!
//! With several hosts, their first ranks exchange the bytes of their hosts and pass on what they get: two levels.
//!
//! The window is 64-bit words. Word 0 holds the flag by which supervisors end trainers, and the mark of a trainer that
//! failed. Each rank counts its arrivals in its own word, so a barrier compares counters; messages go piece by piece
//! through a mailbox that only its rank writes. Its waiting time is next to it, for supervisors to tell who computes.

use crate::hosts::{AddressBook, Callers, HostLinks, Memory, MemoryServer, OPEN_MAX, Reach};
use crate::message::Way;
use crate::pieces::{bundle, put, take, unbundle};
use crate::place::Place;
use crate::window::{Access, open_window};
use plimsoll_base::{Bytes, Error, Exit, Result};
use plimsoll_memory::SharedWords;
use std::fs::File;
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Words of a rank's mailbox: 256 KiB, so that the samples of a step take few rounds.
const MAILBOX: usize = 32 << 10;
/// Words of a rank's counters, on their own cache line.
const STRIDE: usize = 8;
/// Indices of counters: arrivals at barriers, bytes of a message, microseconds waited so far, 1 while it waits, and
/// arrivals at barriers of a part of the ranks.
const ARRIVALS: usize = 0;
const LENGTH: usize = 1;
const WAITED: usize = 2;
const WAITS: usize = 3;
const ARRIVALS_OF_PART: usize = 4;
/// Says what a rank has posted.
const POSTED: usize = 5;
/// How often a rank of another host is asked for what it has posted.
const ASKED_EVERY: Duration = Duration::from_millis(2);
/// Polls of a counter before a wait yields its processor, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = SPINS + 200;
const NAP: Duration = Duration::from_micros(100);

/// The window of this host, from which a waiting thread learns that the run is over.
#[derive(Clone, Debug)]
pub struct Watch {
    words: Arc<Words>,
}

#[derive(Debug)]
enum Words {
    Shared(SharedWords),
    /// The words of a rank alone, which takes no shared memory.
    Own([AtomicU64; 2 * STRIDE]),
}

impl Watch {
    fn words(&self) -> &[AtomicU64] {
        match &*self.words {
            Words::Shared(words) => words.words(),
            Words::Own(words) => words,
        }
    }

    /// Checks that the run has not ended.
    ///
    /// Errors: `rank-lost`.
    pub fn check(&self) -> Result<()> {
        if self.words()[0].load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let error = Error::new("rank-lost", "another rank has ended; its supervisor says why");
        Err(Error { exit: Exit::OtherRank, ..error })
    }
}

/// A rank with its connections to the others.
#[derive(Debug)]
pub struct Group {
    place: Place,
    /// The ranks of this host, ascending; the first speaks for all of them.
    near: Vec<usize>,
    window: Watch,
    /// `None` if all ranks are on this host.
    far: Option<Far>,
    /// Seed of random delays before each barrier, with which tests show that the order of arrival does not matter.
    delays: Option<Mutex<u64>>,
    within: Within,
    /// When a rank of another host was asked for what it has posted.
    asked: Mutex<Option<Instant>>,
}

/// Where the ranks of a group are in the window.
#[derive(Clone, Copy, Debug)]
struct Within {
    /// The window's rank that is the group's rank 0, and the ranks of this host before it.
    first: usize,
    near_before: usize,
    /// Ranks of the window.
    ranks: usize,
    /// Which counter counts arrivals at the group's barriers.
    arrivals: usize,
}

/// How this rank reaches other hosts.
#[derive(Debug)]
struct Far {
    book: Arc<AddressBook>,
    /// Connections from ranks of other hosts, until the memory server takes them.
    callers: Mutex<Option<Callers>>,
    /// Only at the first rank of a host.
    links: Option<Mutex<HostLinks>>,
    /// Shared with the parts of the group.
    reach: Arc<OnceLock<Arc<Reach>>>,
}

impl Group {
    /// Maps the window, and at a host's first rank meets those of other hosts. Every rank must call it, and then the
    /// same methods in the same order. `listener`: the one that `place.away` names, if there are other hosts.
    ///
    /// Errors: `ranks-window`, `host-allocation-failed`, `ranks-unreachable`, `rank-lost`.
    pub fn open(place: &Place, listener: Option<TcpListener>) -> Result<Group> {
        Group::open_within(place, listener, OPEN_MAX)
    }

    /// Opens the group as `open` does, but waits for other hosts for at most `longest`.
    ///
    /// Errors: as `open`.
    pub(crate) fn open_within(
        place: &Place,
        listener: Option<TcpListener>,
        longest: Duration,
    ) -> Result<Group> {
        let file = open_window(&place.window, Access::ReadAndWrite).map_err(|err| {
            Error::new("ranks-window", format!("{}: {err}", place.window.display()))
                .hint("ranks share memory through /proc: it must be mounted, and all ranks run as one user")
        })?;
        let mut group = Group::over(place.clone(), &file)?;
        if let (Some(away), Some(listener)) = (&place.away, listener) {
            let book = AddressBook::read(&away.book)?;
            let callers = Callers::new(listener, book.token()?);
            let mut callers =
                callers.map_err(|err| Error::new("ranks-window", format!("its listener: {err}")))?;
            let is_first = group.near[0] == group.rank();
            let how = (Way::Group, longest);
            let open = |callers: &mut Callers| HostLinks::open(place, &book, callers, how, &|| group.check());
            // The other ranks of this host must not wait for it.
            let links = is_first.then(|| open(&mut callers)).transpose().inspect_err(|_| group.fail())?;
            let (book, callers) = (Arc::new(book), Mutex::new(Some(callers)));
            let reach = Arc::new(OnceLock::new());
            group.far = Some(Far { book, callers, links: links.map(Mutex::new), reach });
        }
        Ok(group)
    }

    /// Returns the group of a rank whose peers are all on this host, over a file in memory; for tests.
    pub fn on_one_host(rank: usize, ranks: usize, file: &File) -> Result<Group> {
        Group::over(Place::on_one_host(rank as u32, ranks as u32, std::path::PathBuf::new()), file)
    }

    /// Returns the group of a rank that has no others, which answers at once. All of a process share it.
    pub fn alone() -> &'static Group {
        static ALONE: OnceLock<Group> = OnceLock::new();
        let place = || Place::on_one_host(0, 1, std::path::PathBuf::new());
        ALONE.get_or_init(|| Group::within(place(), Words::Own(Default::default())))
    }

    /// True if there are no other ranks.
    pub fn is_alone(&self) -> bool {
        self.ranks() == 1
    }

    fn over(place: Place, file: &File) -> Result<Group> {
        let words = SharedWords::map(file, words(place.ranks as usize, place.near().len()))?;
        Ok(Group::within(place, Words::Shared(words)))
    }

    fn within(place: Place, words: Words) -> Group {
        let (near, window) = (place.near(), Watch { words: Arc::new(words) });
        let within = Within { first: 0, near_before: 0, ranks: place.ranks as usize, arrivals: ARRIVALS };
        Group { place, near, window, far: None, delays: None, within, asked: Mutex::default() }
    }

    /// Returns a part of the ranks as a group by itself, whose ranks count from 0. Its barriers and messages are among
    /// them alone; a rank is in one part, and its calls on the part and on the whole follow one another. Every rank
    /// must call it, before memory is opened.
    ///
    /// Errors: `ranks-unreachable`, `rank-lost`. Panics unless this rank is in `part`.
    pub fn part(&self, part: Range<usize>) -> Result<Group> {
        assert!(part.contains(&self.rank()), "rank {} of {part:?}", self.rank());
        let place = self.place.within(&part);
        let near_before = self.near.iter().filter(|rank| **rank < part.start).count();
        let within = Within { first: part.start, near_before, arrivals: ARRIVALS_OF_PART, ..self.within };
        let near = place.near();
        let far = self.far.as_ref().filter(|_| near.len() < part.len());
        let far = far.map(|far| self.far_of_part(far, &place, &part)).transpose()?;
        let window = self.window.clone();
        Ok(Group { near, place, window, far, delays: None, within, asked: Mutex::default() })
    }

    /// Connects the hosts of a part of the ranks, whose first ranks there speak for them.
    fn far_of_part(&self, far: &Far, place: &Place, part: &Range<usize>) -> Result<Far> {
        let book = Arc::new(far.book.to_part(part));
        let open = |callers: &mut Callers| {
            HostLinks::open(place, &book, callers, (Way::Part, OPEN_MAX), &|| self.check())
        };
        let is_first = place.near()[0] == place.rank as usize;
        let mut callers = lock(&far.callers);
        let links = is_first.then(|| open(callers.as_mut().expect("no memory is open yet"))).transpose();
        let links = links.inspect_err(|_| self.fail())?.map(Mutex::new);
        Ok(Far { book, callers: Mutex::new(None), links, reach: Arc::clone(&far.reach) })
    }

    /// Makes each barrier wait up to 200 microseconds first, from a seed; for tests.
    pub fn delayed(self, seed: u64) -> Group {
        Group { delays: Some(Mutex::new(seed)), ..self }
    }

    /// Returns the bytes of the window of a host that has all `ranks` ranks.
    pub fn window_bytes(ranks: usize) -> u64 {
        words(ranks, ranks) as u64 * 8
    }

    pub fn rank(&self) -> usize {
        self.place.rank as usize
    }

    pub fn ranks(&self) -> usize {
        self.place.ranks as usize
    }

    /// Returns the ranks of this host, ascending.
    pub fn near(&self) -> &[usize] {
        &self.near
    }

    /// Returns the number of hosts of a part of the ranks, the most of them on one host, and whether all hosts have
    /// equally many, numbered consecutively.
    pub fn hosts_of(&self, part: Range<usize>) -> (usize, usize, bool) {
        let Place { hosts, .. } = Place { rank: part.start as u32, ..self.place.clone() }.within(&part);
        let on = |host: u32| hosts.iter().filter(|of| **of == host).count();
        let count = hosts.iter().max().map_or(1, |last| *last as usize + 1);
        let near = (0..count as u32).map(on).max().unwrap_or(1);
        let counts_on = hosts.iter().enumerate().all(|(rank, host)| rank / near == *host as usize);
        (count, near, counts_on && hosts.len() == count * near)
    }

    /// Returns true if two ranks are on one host.
    pub fn are_near(&self, one: usize, other: usize) -> bool {
        self.place.hosts[one] == self.place.hosts[other]
    }

    /// Waits until every rank has called it equally often. Writes before it are visible to all after it.
    ///
    /// Errors: `rank-lost` if the run is ending for another rank, `ranks-unreachable`.
    pub fn barrier(&self) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        self.near_barrier()?;
        let Some(far) = &self.far else { return Ok(()) };
        if let Some(links) = &far.links {
            let waited = |rank: &usize| self.counter(*rank, WAITED).load(Ordering::Relaxed).to_le_bytes();
            let own: Vec<u8> = self.near.iter().flat_map(waited).collect();
            for (host, waited) in self.across(links, &own)?.iter().enumerate() {
                let ranks = self.ranks_of(host);
                for (rank, waited) in
                    ranks.zip(waited.as_chunks::<8>().0).filter(|(rank, _)| !self.near.contains(rank))
                {
                    self.counter(rank, WAITED).store(u64::from_le_bytes(*waited), Ordering::Relaxed);
                }
            }
        }
        self.near_barrier()?;
        self.met(far)
    }

    /// Forgets what was read of other hosts, once the ranks have met.
    fn met(&self, far: &Far) -> Result<()> {
        let Some(reach) = far.reach.get() else { return Ok(()) };
        reach.forget();
        reach.check().inspect_err(|_| self.fail())
    }

    /// Exchanges this host's bytes for those of the others, as its first rank.
    fn across(&self, links: &Mutex<HostLinks>, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let begun = Instant::now();
        self.counter(self.rank(), WAITS).store(1, Ordering::Relaxed);
        let all = lock(links).exchange(own, &|| self.check());
        self.has_waited(begun);
        // The other ranks of this host wait for it.
        all.inspect_err(|_| self.fail())
    }

    /// Waits until all ranks of this host have arrived.
    fn near_barrier(&self) -> Result<()> {
        self.delay();
        let arrivals = self.within.arrivals;
        let own = self.counter(self.rank(), arrivals);
        let turn = own.load(Ordering::Relaxed) + 1;
        own.store(turn, Ordering::Release);
        // `None` while it only spins: too short to be worth reading a clock.
        let mut since = None;
        let here = |other| self.counter(other, arrivals).load(Ordering::Acquire) >= turn;
        let met = self.near.iter().try_for_each(|other| self.wait(|| here(*other), &mut since));
        if let Some(since) = since {
            self.has_waited(since);
        }
        met
    }

    /// Adds the time since `since` to this rank's waiting time.
    fn has_waited(&self, since: Instant) {
        let waited = self.counter(self.rank(), WAITED);
        let micros = since.elapsed().as_micros() as u64;
        waited.store(waited.load(Ordering::Relaxed) + micros, Ordering::Relaxed);
        self.counter(self.rank(), WAITS).store(0, Ordering::Relaxed);
    }

    /// Returns how long each rank has waited for others, by rank; for other hosts, as of the last barrier.
    pub fn waited(&self) -> Vec<Duration> {
        let of = |rank| Duration::from_micros(self.counter(rank, WAITED).load(Ordering::Relaxed));
        (0..self.ranks()).map(of).collect()
    }

    /// Returns the bytes of every rank, by rank.
    ///
    /// Errors: `rank-lost` if the run is ending for another rank, `ranks-unreachable`.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.is_alone() {
            return Ok(vec![own.to_vec()]);
        }
        let near = self.near_gather(own)?;
        let Some(far) = &self.far else { return Ok(near) };
        let bundles = match &far.links {
            Some(links) => bundle(&self.across(links, &bundle(&near))?),
            None => Vec::new(),
        };
        drop(near);
        let hosts = unbundle(&self.near_gather(&bundles)?.swap_remove(0))?;
        let mut all = vec![Vec::new(); self.ranks()];
        for (host, of_host) in hosts.iter().enumerate() {
            self.ranks_of(host).zip(unbundle(of_host)?).for_each(|(rank, bytes)| all[rank] = bytes);
        }
        self.met(far)?;
        Ok(all)
    }

    /// Returns the bytes of every rank of this host, in their order.
    ///
    /// Errors: `rank-lost` if the run is ending for another rank.
    pub fn near_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.is_alone() {
            return Ok(vec![own.to_vec()]);
        }
        self.counter(self.rank(), LENGTH).store(own.len() as u64, Ordering::Relaxed);
        self.near_barrier()?;
        let length = |rank: &usize| self.counter(*rank, LENGTH).load(Ordering::Relaxed) as usize;
        let lengths: Vec<usize> = self.near.iter().map(length).collect();
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|length| Vec::with_capacity(*length)).collect();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        for start in (0..longest).step_by(MAILBOX * 8) {
            let piece = |length: usize| start.min(length)..(start + MAILBOX * 8).min(length);
            put(self.mailbox(self.rank()), &own[piece(own.len())]);
            self.near_barrier()?;
            for ((rank, into), length) in self.near.iter().zip(&mut all).zip(&lengths) {
                let at = into.len();
                into.resize(piece(*length).end, 0);
                take(self.mailbox(*rank), &mut into[at..]);
            }
            self.near_barrier()?;
        }
        if longest == 0 {
            // The next length must not be written before all have read this one.
            self.near_barrier()?;
        }
        Ok(all)
    }

    /// Opens this rank's memory to ranks of other hosts and theirs to it. Returns how to read it; `None` if all are on
    /// one host. Every rank must call it. `memory`: `bytes` bytes, as many at each rank. `kept_max`: bytes of all ranks
    /// that may stay in this host's memory, if operations copy them on arrival; else they stay until the ranks meet.
    ///
    /// Errors: `ranks-unreachable`, `rank-lost`, `thread-not-started`, `host-allocation-failed`.
    pub fn reach(&self, memory: Memory, bytes: Bytes, kept_max: Option<Bytes>) -> Result<Option<Arc<Reach>>> {
        let Some(far) = &self.far else { return Ok(None) };
        let callers = lock(&far.callers).take().expect("memory is opened once");
        let (window, at) = (self.window.clone(), self.counter_at(self.rank(), POSTED));
        let posted = Box::new(move || window.words()[at].load(Ordering::Acquire));
        let server = MemoryServer::open(callers, Arc::clone(&far.book), (memory, bytes.0), posted)?;
        let reach = Reach::open(&self.place, &far.book, server, (bytes, kept_max), &|| self.check());
        let reach = Arc::new(reach.inspect_err(|_| self.fail())?);
        let _ = far.reach.set(Arc::clone(&reach));
        // A request before all have met would read memory that is not filled yet.
        self.barrier()?;
        Ok(Some(reach))
    }

    /// Shows a number to the other ranks, at any time.
    pub fn post(&self, number: u64) {
        self.counter(self.rank(), POSTED).store(number, Ordering::Release);
    }

    /// Returns the number that a rank has posted last; 0 if none. One of another host is asked, after `reach`, at
    /// most once in `ASKED_EVERY`, and its number is the one heard last. What breaks is returned at the next meeting.
    pub fn posted(&self, rank: usize) -> u64 {
        let here = self.counter(rank, POSTED);
        if let Some(reach) =
            self.far.as_ref().filter(|_| !self.near.contains(&rank)).and_then(|far| far.reach.get())
            && self.asks_now()
        {
            here.fetch_max(reach.posted(rank), Ordering::Release);
        }
        here.load(Ordering::Acquire)
    }

    /// Returns true at most once in `ASKED_EVERY`.
    fn asks_now(&self) -> bool {
        let mut asked = lock(&self.asked);
        let is_due = asked.is_none_or(|at| at.elapsed() >= ASKED_EVERY);
        is_due.then(|| *asked = Some(Instant::now())).is_some()
    }

    fn ranks_of(&self, host: usize) -> impl Iterator<Item = usize> {
        (0..self.ranks()).filter(move |rank| self.place.hosts[*rank] as usize == host)
    }

    /// Returns what a waiting thread checks to learn that the run is over.
    pub fn watch(&self) -> Watch {
        self.window.clone()
    }

    /// Checks that the run has not ended.
    ///
    /// Errors: `rank-lost`.
    pub fn check(&self) -> Result<()> {
        self.window.check()
    }

    /// Tells the other ranks that this trainer has failed, so that they do not wait for it.
    pub fn fail(&self) {
        self.window.words()[0].fetch_or(1, Ordering::Relaxed);
    }

    fn delay(&self) {
        let Some(state) = &self.delays else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((*state >> 33) % 200));
    }

    /// Waits until `done`. `since` is set when the wait outlasts spinning.
    fn wait(&self, done: impl Fn() -> bool, since: &mut Option<Instant>) -> Result<()> {
        for look in 0u32.. {
            if done() {
                return Ok(());
            }
            if look == SPINS && since.is_none() {
                *since = Some(Instant::now());
                self.counter(self.rank(), WAITS).store(1, Ordering::Relaxed);
            }
            self.check()?;
            match look {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        unreachable!("a counter of looks overflows after years")
    }

    fn counter(&self, rank: usize, which: usize) -> &AtomicU64 {
        &self.window.words()[self.counter_at(rank, which)]
    }

    fn counter_at(&self, rank: usize, which: usize) -> usize {
        STRIDE * (1 + self.within.first + rank) + which
    }

    fn mailbox(&self, rank: usize) -> &[AtomicU64] {
        let place = self.near.iter().position(|near| *near == rank).expect("a rank of this host");
        let Within { near_before, ranks, .. } = self.within;
        &self.window.words()[STRIDE * (1 + ranks) + (near_before + place) * MAILBOX..][..MAILBOX]
    }
}

/// Locks; a panic of another thread leaves plain data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a trainer has waited, as its supervisor reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Barriers that the trainer has reached.
    pub arrivals: u64,
    pub waited: Duration,
    /// True while the trainer waits for others.
    pub waits_now: bool,
}

impl Waits {
    /// Reads the counters of the trainer at `place`; `None` before a trainer has sized the window.
    pub fn read(place: &Place) -> Option<Waits> {
        let mut bytes = [0; STRIDE * 8];
        let at = STRIDE * 8 * (1 + place.rank as usize);
        open_window(&place.window, Access::Read).ok()?.read_exact_at(&mut bytes, at as u64).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |which: usize| u64::from_le_bytes(words[which]);
        let waited = Duration::from_micros(word(WAITED));
        Some(Waits { arrivals: word(ARRIVALS) + word(ARRIVALS_OF_PART), waited, waits_now: word(WAITS) != 0 })
    }
}

/// Returns the number of words of a window. `near`: the ranks of the host.
fn words(ranks: usize, near: usize) -> usize {
    STRIDE * (1 + ranks) + near * MAILBOX
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
