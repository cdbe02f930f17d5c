//! How fast cards of different hosts exchange data, through the library that a run would use: it chooses its own path.

use super::network::{Read, median, pairs};
use crate::group::Group;
use crate::place::Place;
use plimsoll_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Most bytes of one exchange.
const BYTES_MAX: u64 = 64 << 20;
const FIRST_BYTES: u64 = 1 << 20;
/// Target duration of a read, unless it reaches the most bytes first.
const READ_SECONDS: f64 = 0.4;
const READS: usize = 3;
const ROUND_TRIPS: usize = 20;
/// The library waits for lost ranks forever; a survey does not.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A card that exchanges data with the cards of all ranks.
pub trait CardLink: Send {
    /// Returns the library and its version, for people.
    fn library(&mut self) -> Result<String>;
    /// Creates the name under which all ranks meet.
    fn name(&mut self) -> Result<Vec<u8>>;
    /// Connects to the cards of all ranks, which call it together. `bytes`: the most that `exchange` will move.
    fn connect(&mut self, name: &[u8], rank: usize, ranks: usize, bytes: u64) -> Result<()>;
    /// Sends `given` bytes to the card of `rank`, receives `taken`, and returns when both are done.
    fn exchange(&mut self, rank: usize, given: u64, taken: u64) -> Result<()>;
}

/// Measured transfers between the card of a host's first rank and others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CardPaths {
    /// The library and its version.
    pub library: String,
    /// Only at the first rank of a host.
    pub reads: Vec<Read>,
    /// Why nothing was measured.
    pub failed: Option<String>,
}

/// Measures with all ranks, which must call it together; `None` if one of them has no card, or all are on one host.
///
/// Errors: `rank-lost`, `ranks-unreachable`, `thread-not-started`. What the library reports is in the result.
pub(super) fn measure(
    group: &Group,
    place: &Place,
    link: Option<Box<dyn CardLink>>,
) -> Result<Option<CardPaths>> {
    let has_all = group.all_gather(&[u8::from(link.is_some())])?.iter().all(|one| one == &[1]);
    let Some(link) = link.filter(|_| has_all && place.firsts().len() > 1) else { return Ok(None) };
    let (card, mut paths) = (Patient::start(link)?, CardPaths::default());
    match (Survey { group, card }).run(place, &mut paths) {
        Ok(()) => {}
        Err(Stop::Card(why)) => paths.failed = Some(why),
        Err(Stop::Group(error)) => return Err(error),
    }
    Ok(Some(paths))
}

/// Why ranks stop measuring.
enum Stop {
    /// A card failed, and all ranks know.
    Card(String),
    /// The ranks no longer reach each other.
    Group(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Group(error)
    }
}

struct Survey<'a> {
    group: &'a Group,
    card: Patient,
}

impl Survey<'_> {
    fn run(&self, place: &Place, paths: &mut CardPaths) -> std::result::Result<(), Stop> {
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let libraries = self.agree(self.card.ask(|card| card.library()).map(String::into_bytes))?;
        let words = |rank: usize| String::from_utf8_lossy(&libraries[rank]).into_owned();
        paths.library = words(0);
        if let Some(other) = (1..ranks).find(|rank| libraries[*rank] != libraries[0]) {
            return Err(Stop::Card(format!("{} on rank 0 and {} on rank {other}", words(0), words(other))));
        }
        let name = if rank == 0 { self.card.ask(|card| card.name()) } else { Ok(Vec::new()) };
        let name = self.agree(name)?.swap_remove(0);
        let connected = self.card.ask(move |card| card.connect(&name, rank, ranks, BYTES_MAX));
        self.agree(connected.map(|()| Vec::new()))?;
        let firsts = place.firsts();
        for (to, from) in pairs(firsts.len()) {
            let [round_trip_seconds, bytes_per_second] = self.read(firsts[to], firsts[from])?;
            if rank == firsts[to] {
                paths.reads.push(Read { from_host: from as u32, round_trip_seconds, bytes_per_second });
            }
        }
        Ok(())
    }

    /// Returns the round trip, s, and rate, bytes/s, at which card `to` reads from card `from`. All ranks call it.
    fn read(&self, to: usize, from: usize) -> std::result::Result<[f64; 2], Stop> {
        let other = match self.group.rank() {
            rank if rank == to => Some(from),
            rank if rank == from => Some(to),
            _ => None,
        };
        let reads = self.group.rank() == to;
        let short = other.map(|other| self.card.ask(move |card| short_reads(card, other, reads)));
        let [seconds, rate] = self.numbers(short.unwrap_or(Ok([0.0; 2])), to)?;
        let bytes = ((rate * READ_SECONDS) as u64).clamp(FIRST_BYTES, BYTES_MAX);
        let long = other.map(|other| self.card.ask(move |card| long_reads(card, other, reads, bytes)));
        let [rate, _] = self.numbers(long.unwrap_or(Ok(0.0)).map(|rate| [rate, 0.0]), to)?;
        Ok([seconds, rate])
    }

    fn numbers(&self, own: Result<[f64; 2]>, of: usize) -> std::result::Result<[f64; 2], Stop> {
        let all = self.agree(own.map(|numbers| numbers.map(f64::to_le_bytes).concat()))?;
        let number = |at: usize| {
            all[of].get(at..).and_then(<[u8]>::first_chunk).map_or(0.0, |bytes| f64::from_le_bytes(*bytes))
        };
        Ok([number(0), number(8)])
    }

    /// Returns the bytes of all ranks, by rank; an error at one of them stops all.
    fn agree(&self, own: Result<Vec<u8>>) -> std::result::Result<Vec<Vec<u8>>, Stop> {
        let own = own.map_err(|error| [vec![error.message], error.facts].concat().join("; "));
        let text = serde_json::to_vec(&own).unwrap_or_default();
        let all = self.group.all_gather(&text)?;
        let of_rank = |(rank, text): (usize, &Vec<u8>)| {
            let found: std::result::Result<Vec<u8>, String> =
                serde_json::from_slice(text).unwrap_or_else(|err| Err(err.to_string()));
            found.map_err(|why| Stop::Card(format!("rank {rank}: {why}")))
        };
        all.iter().enumerate().map(of_rank).collect()
    }
}

/// Returns the seconds of a round trip, and the bytes per second of one short read.
fn short_reads(card: &mut dyn CardLink, other: usize, reads: bool) -> Result<[f64; 2]> {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        for gives in [reads, !reads] {
            pass(card, other, gives, 8)?;
        }
        times.push(begun.elapsed().as_secs_f64());
    }
    // The first pass may still connect for this size.
    pass(card, other, !reads, FIRST_BYTES)?;
    let seconds = pass(card, other, !reads, FIRST_BYTES)?;
    Ok([median(times), FIRST_BYTES as f64 / seconds])
}

/// Returns the bytes per second of the best of several reads.
fn long_reads(card: &mut dyn CardLink, other: usize, reads: bool, bytes: u64) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..READS {
        best = best.min(pass(card, other, !reads, bytes)?);
    }
    Ok(bytes as f64 / best)
}

fn pass(card: &mut dyn CardLink, other: usize, gives: bool, bytes: u64) -> Result<f64> {
    let begun = Instant::now();
    let (given, taken) = if gives { (bytes, 0) } else { (0, bytes) };
    card.exchange(other, given, taken)?;
    Ok(begun.elapsed().as_secs_f64().max(1e-9))
}

type Job = Box<dyn FnOnce(&mut dyn CardLink) + Send>;

/// A card on its own thread, which is abandoned if the library does not return.
struct Patient(Sender<Job>);

impl Patient {
    fn start(mut link: Box<dyn CardLink>) -> Result<Patient> {
        let (jobs, asked) = channel::<Job>();
        let run = move || asked.iter().for_each(|job| job(&mut *link));
        std::thread::Builder::new().name("card".into()).spawn(run).map_err(|err| {
            Error::new("thread-not-started", format!("the thread that measures a card: {err}"))
                .hint("check the limits on threads: ulimit -u")
        })?;
        Ok(Patient(jobs))
    }

    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn CardLink) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = channel();
        // The asker may have left.
        let _ = self.0.send(Box::new(move |card| drop(answer.send(job(card)))));
        let late = || Error::new("ranks-nccl", format!("no answer in {} s", ANSWER_MAX.as_secs()));
        answered.recv_timeout(ANSWER_MAX).unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_memory::shared_file;
    use std::collections::HashMap;
    use std::sync::{Arc, Condvar, Mutex};

    /// Bytes on their way, by (from, to), as an exchange that waits for both sides.
    #[derive(Default)]
    struct Network {
        sent: Mutex<HashMap<(usize, usize), u64>>,
        changed: Condvar,
    }

    struct Fake {
        rank: usize,
        library: Result<String>,
        connects: bool,
        network: Arc<Network>,
        most: u64,
    }

    impl CardLink for Fake {
        fn library(&mut self) -> Result<String> {
            self.library.clone()
        }

        fn name(&mut self) -> Result<Vec<u8>> {
            Ok(vec![7; 128])
        }

        fn connect(&mut self, name: &[u8], rank: usize, ranks: usize, bytes: u64) -> Result<()> {
            assert_eq!((name, rank, ranks), (&[7; 128][..], self.rank, 4));
            self.most = bytes;
            if self.connects {
                Ok(())
            } else {
                Err(Error::new("ranks-nccl", "unhandled system error").fact("no interface"))
            }
        }

        fn exchange(&mut self, other: usize, given: u64, taken: u64) -> Result<()> {
            assert!(given.max(taken) <= self.most);
            let mut sent = self.network.sent.lock().expect("no panic");
            if given > 0 {
                let before = sent.insert((self.rank, other), given);
                assert_eq!(before, None, "one exchange of two ranks at a time");
                self.network.changed.notify_all();
                while sent.contains_key(&(self.rank, other)) {
                    sent = self.network.changed.wait(sent).expect("no panic");
                }
            }
            if taken > 0 {
                let arrived = |sent: &mut HashMap<(usize, usize), u64>| sent.remove(&(other, self.rank));
                let mut bytes = arrived(&mut sent);
                while bytes.is_none() {
                    sent = self.network.changed.wait(sent).expect("no panic");
                    bytes = arrived(&mut sent);
                }
                assert_eq!(bytes, Some(taken));
                self.network.changed.notify_all();
            }
            Ok(())
        }
    }

    /// Measures with two hosts of two ranks each. `change`: what is different on a rank; `None` where it has no card.
    fn measured(change: impl Fn(usize, &mut Fake) -> Option<()> + Sync) -> Vec<Option<CardPaths>> {
        let window = shared_file("plimsoll-test").expect("memory");
        window.set_len(Group::window_bytes(4)).expect("memory");
        let (network, window, change) = (Arc::new(Network::default()), &window, &change);
        let one = |rank: usize| {
            let library = Ok("NCCL 2.28.3".to_string());
            let mut fake = Fake { rank, library, connects: true, network: network.clone(), most: 0 };
            move || {
                let group = Group::on_one_host(rank, 4, window).expect("a window");
                let hosts = vec![0, 0, 1, 1];
                let place = Place { hosts, ..Place::on_one_host(rank as u32, 4, "/".into()) };
                let card = change(rank, &mut fake).map(|()| Box::new(fake) as Box<dyn CardLink>);
                measure(&group, &place, card).expect("all live")
            }
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..4).map(|rank| scope.spawn(one(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn the_first_ranks_of_hosts_read_of_one_another() {
        for (rank, paths) in measured(|_, _| Some(())).into_iter().enumerate() {
            let CardPaths { library, reads, failed } = paths.expect("all have cards");
            assert_eq!((library.as_str(), failed), ("NCCL 2.28.3", None));
            let from: Vec<u32> = reads.iter().map(|read| read.from_host).collect();
            assert_eq!(from, [&[1][..], &[], &[0], &[]][rank]);
            assert!(reads.iter().all(|read| read.bytes_per_second > 1e6 && read.round_trip_seconds > 0.0));
        }
    }

    /// Panics unless all ranks have this library and these words, where `change` was done to them.
    fn check_failed(library: &str, words: &str, change: impl Fn(usize, &mut Fake) + Sync) {
        let all = measured(|rank, fake| {
            change(rank, fake);
            Some(())
        });
        for paths in all {
            let CardPaths { library: found, failed, reads } = paths.expect("all have cards");
            assert_eq!((found.as_str(), failed.as_deref(), reads.len()), (library, Some(words), 0));
        }
    }

    #[test]
    fn what_one_rank_meets_all_are_told() {
        let words = "rank 2: unhandled system error; no interface";
        check_failed("NCCL 2.28.3", words, |rank, fake| fake.connects = rank != 2);
        let words = "NCCL 2.20.0 on rank 0 and NCCL 2.21.0 on rank 3";
        check_failed("NCCL 2.20.0", words, |rank, fake| fake.library = Ok(format!("NCCL 2.2{}.0", rank / 3)));
        let missing = Error::new("cuda-library-missing", "libnccl.so.2 is nowhere");
        check_failed("", "rank 0: libnccl.so.2 is nowhere", |_, fake| fake.library = Err(missing.clone()));
        assert!(measured(|rank, _| (rank != 1).then_some(())).iter().all(Option::is_none), "one has no card");
    }
}
