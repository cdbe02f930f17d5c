//! The group: how trainers of one host exchange bytes of the host, through the window. Never sums: who adds, adds in order.
//!
//! The window is words of 64 bits. Word 0 holds the flag by which supervisors end trainers, and the mark of a trainer that
//! failed. Each rank counts its arrivals in a word of its own, so a barrier is a comparison of counters; a message goes piece by
//! piece through a mailbox that its rank alone writes. How long a rank has waited is next to its arrivals, where supervisors read
//! it too: they tell a rank that computes from those that wait for it.

use crate::place::Place;
use plimsoll_base::{Error, Exit, Result};
use plimsoll_memory::SharedWords;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Words of a rank's mailbox: 256 KiB, so that a step's samples take few rounds.
const MAILBOX: usize = 32 << 10;
/// Words of a rank's counters, on a cache line of their own.
const STRIDE: usize = 8;
/// Places in them: arrivals at barriers, bytes of a message, microseconds waited so far, and 1 while it waits.
const ARRIVALS: usize = 0;
const LENGTH: usize = 1;
const WAITED: usize = 2;
const WAITS: usize = 3;
/// Looks at a counter until a wait gives its processor away, and until it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = SPINS + 200;
const NAP: Duration = Duration::from_micros(100);

/// A rank among the others of its run.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    ranks: usize,
    window: SharedWords,
    /// Of random delays before each barrier; tests show with them that nothing depends on who comes first.
    delays: Option<Mutex<u64>>,
}

impl Group {
    /// Maps the window. Every rank must call it, and then the same methods in the same order.
    ///
    /// Errors: `ranks-window`, `host-allocation-failed`.
    pub fn open(place: &Place) -> Result<Group> {
        let file = OpenOptions::new().read(true).write(true).open(&place.window).map_err(|err| {
            Error::new("ranks-window", format!("{}: {err}", place.window.display()))
                .hint("ranks share memory through /proc: it must be mounted, and all ranks run as one user")
        })?;
        Group::over(place.rank as usize, place.ranks as usize, &file)
    }

    /// The same over a file in memory; for tests.
    pub fn over(rank: usize, ranks: usize, file: &File) -> Result<Group> {
        Ok(Group { rank, ranks, window: SharedWords::map(file, words(ranks))?, delays: None })
    }

    /// Waits up to 200 microseconds before each barrier, by a seed; for tests.
    pub fn delayed(self, seed: u64) -> Group {
        Group { delays: Some(Mutex::new(seed)), ..self }
    }

    /// Bytes of the window of `ranks` ranks.
    pub fn window_bytes(ranks: usize) -> u64 {
        words(ranks) as u64 * 8
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Waits until every rank has called it as often. What a rank wrote before, all see after.
    ///
    /// Errors: `rank-lost` if the run is ending for another rank.
    pub fn barrier(&self) -> Result<()> {
        self.delay();
        let own = self.counter(self.rank, ARRIVALS);
        let turn = own.load(Ordering::Relaxed) + 1;
        own.store(turn, Ordering::Release);
        // None while it only spins: that is shorter than reading a clock is worth.
        let mut since = None;
        let here = |other| self.counter(other, ARRIVALS).load(Ordering::Acquire) >= turn;
        let met = (0..self.ranks).try_for_each(|other| self.wait(|| here(other), &mut since));
        if let Some(since) = since {
            let waited = self.counter(self.rank, WAITED);
            let micros = since.elapsed().as_micros() as u64;
            waited.store(waited.load(Ordering::Relaxed) + micros, Ordering::Relaxed);
            self.counter(self.rank, WAITS).store(0, Ordering::Relaxed);
        }
        met
    }

    /// Returns how long each rank has waited for others so far, by rank.
    pub fn waited(&self) -> Vec<Duration> {
        let of = |rank| Duration::from_micros(self.counter(rank, WAITED).load(Ordering::Relaxed));
        (0..self.ranks).map(of).collect()
    }

    /// Returns the bytes of every rank, by rank.
    ///
    /// Errors: `rank-lost` if the run is ending for another rank.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.counter(self.rank, LENGTH).store(own.len() as u64, Ordering::Relaxed);
        self.barrier()?;
        let lengths: Vec<usize> =
            (0..self.ranks).map(|rank| self.counter(rank, LENGTH).load(Ordering::Relaxed) as usize).collect();
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|length| Vec::with_capacity(*length)).collect();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        for start in (0..longest).step_by(MAILBOX * 8) {
            let piece = |length: usize| start.min(length)..(start + MAILBOX * 8).min(length);
            put(self.mailbox(self.rank), &own[piece(own.len())]);
            self.barrier()?;
            for (rank, (into, length)) in all.iter_mut().zip(&lengths).enumerate() {
                let at = into.len();
                into.resize(piece(*length).end, 0);
                take(self.mailbox(rank), &mut into[at..]);
            }
            self.barrier()?;
        }
        if longest == 0 {
            // The next length is not written before all have read this one.
            self.barrier()?;
        }
        Ok(all)
    }

    /// Tells the others that this rank's trainer has failed, so that they do not wait for it.
    pub fn fail(&self) {
        self.window.words()[0].fetch_or(1, Ordering::Relaxed);
    }

    fn delay(&self) {
        let Some(state) = &self.delays else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((*state >> 33) % 200));
    }

    /// Waits until `done`. `since` is when the rank began to wait for longer than it spins.
    fn wait(&self, done: impl Fn() -> bool, since: &mut Option<Instant>) -> Result<()> {
        for look in 0u32.. {
            if done() {
                return Ok(());
            }
            if look == SPINS && since.is_none() {
                *since = Some(Instant::now());
                self.counter(self.rank, WAITS).store(1, Ordering::Relaxed);
            }
            if self.window.words()[0].load(Ordering::Relaxed) != 0 {
                return Err(Error {
                    exit: Exit::OtherRank,
                    ..Error::new("rank-lost", "another rank has ended; its supervisor says why")
                });
            }
            match look {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        unreachable!("a counter of looks overflows after years")
    }

    fn counter(&self, rank: usize, which: usize) -> &AtomicU64 {
        &self.window.words()[STRIDE * (1 + rank) + which]
    }

    fn mailbox(&self, rank: usize) -> &[AtomicU64] {
        &self.window.words()[STRIDE * (1 + self.ranks) + rank * MAILBOX..][..MAILBOX]
    }
}

/// Writes bytes into a mailbox, which they fit.
fn put(mailbox: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = whole.iter().copied().chain((!rest.is_empty()).then_some(last));
    mailbox
        .iter()
        .zip(words)
        .for_each(|(word, bytes)| word.store(u64::from_le_bytes(bytes), Ordering::Relaxed));
}

/// Reads as many bytes of a mailbox, at most all.
fn take(mailbox: &[AtomicU64], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<8>();
    let mut words = mailbox.iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    whole.iter_mut().zip(words.by_ref()).for_each(|(bytes, word)| *bytes = word);
    if !rest.is_empty() {
        let word = words.next().expect("a piece is a mailbox at most");
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

/// What a supervisor reads of how its trainer waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Barriers that it has come to.
    pub arrivals: u64,
    pub waited: Duration,
    /// True while it waits for others.
    pub waits_now: bool,
}

impl Waits {
    /// Reads them of the trainer at `place`; `None` before a trainer has made the window its size.
    pub fn read(place: &Place) -> Option<Waits> {
        let mut bytes = [0; STRIDE * 8];
        let at = STRIDE * 8 * (1 + place.rank as usize);
        File::open(&place.window).ok()?.read_exact_at(&mut bytes, at as u64).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |which: usize| u64::from_le_bytes(words[which]);
        let waited = Duration::from_micros(word(WAITED));
        Some(Waits { arrivals: word(ARRIVALS), waited, waits_now: word(WAITS) != 0 })
    }
}

fn words(ranks: usize) -> usize {
    STRIDE * (1 + ranks) + ranks * MAILBOX
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// Runs `body` on each rank of a group, in threads, each with a mapping of its own.
    fn run<T: Send>(ranks: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
        let fd = rustix::fs::memfd_create("plimsoll-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        let (file, body) = (File::from(fd), &body);
        std::thread::scope(|scope| {
            let start = |rank| {
                let group = Group::over(rank, ranks, &file).expect("a window");
                scope.spawn(move || body(group))
            };
            let threads: Vec<_> = (0..ranks).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn every_rank_has_the_bytes_of_every_rank_whatever_their_lengths() {
        for ranks in [1, 2, 3, 5] {
            let bytes = |rank: usize, round: usize| -> Vec<u8> {
                let length = [0, 1, 7, 4096, MAILBOX * 8, MAILBOX * 16 + 13][(rank + round) % 6];
                (0..length).map(|i| (i * 31 + rank * 7 + round) as u8).collect()
            };
            run(ranks, |group| {
                for round in 0..12 {
                    if (group.rank() + round) % 3 == 0 {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                    let all = group.all_gather(&bytes(group.rank(), round)).expect("all live");
                    for (rank, got) in all.iter().enumerate() {
                        assert!(*got == bytes(rank, round), "{ranks} {round}: of rank {rank}");
                    }
                }
                let all = group.all_gather(&[]).expect("all live");
                assert!(all.iter().all(Vec::is_empty));
            });
        }
    }

    #[test]
    fn a_supervisor_reads_who_waits_and_for_how_long() {
        let fd = rustix::fs::memfd_create("plimsoll-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        let file = File::from(fd);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let place = |rank| Place { rank, ranks: 2, window: path.clone().into() };
        assert_eq!(Waits::read(&place(0)), None, "no trainer has come yet");
        let [zero, one] = [0, 1].map(|rank| Group::over(rank, 2, &file).expect("a window"));
        assert_eq!(Waits::read(&place(1)), Some(Waits::default()));
        let waits = |rank| Waits::read(&place(rank)).expect("it is there");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| zero.barrier());
            while !waits(0).waits_now {
                std::thread::yield_now();
            }
            assert_eq!((waits(0).arrivals, waits(1).arrivals, waits(1).waits_now), (1, 0, false));
            std::thread::sleep(Duration::from_millis(30));
            one.barrier().expect("all live");
            waiting.join().expect("no panic").expect("all live");
        });
        let Waits { arrivals, waited, waits_now } = waits(0);
        assert!(arrivals == 1 && !waits_now && waited >= Duration::from_millis(30), "{waited:?}");
        assert_eq!(zero.waited(), one.waited());
        assert!(zero.waited()[0] == waited && zero.waited()[1] < waited);
    }

    #[test]
    fn a_wait_ends_when_another_rank_fails() {
        let ended = run(3, |group| match group.rank() {
            2 => {
                group.fail();
                None
            }
            _ => Some(group.barrier().expect_err("rank 2 never comes")),
        });
        for error in ended.into_iter().flatten() {
            assert_eq!((error.slug, error.exit), ("rank-lost", Exit::OtherRank));
        }
    }
}
