//! Reads memory of ranks on other hosts: bytes that an operation will read are fetched first, into a copy of that
//! rank's memory. The copy has pages only where something was read.
//!
//! Fetched bytes stay until the ranks meet: until then no rank writes what others read. If operations copy them at
//! once, for example onto a card, pages are given back once there are many.

use super::dial::{Target, dial_all};
use super::memory_server::{POSTED, POSTED_BYTES};
use super::stream::{Stream, sleep};
use super::{AddressBook, MemoryServer};
use crate::message::Way;
use crate::place::Place;
use plimsoll_base::{Bytes, Result};
use plimsoll_memory::{Mapping, Mirror};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Connections to all ranks of other hosts, and to one of them: several, because they carry more over a long path.
const STREAMS: usize = 16;
const STREAMS_OF_A_RANK: usize = 4;
/// Bytes of one request; larger reads are cut, so that all connections share them.
const REQUEST_MAX: u64 = 1 << 20;
/// Bytes asked for and not arrived, over all connections: enough for 10 Gbit/s over 20 ms. Each connection has at least
/// one request's. The plan counts them: `plan::Hosts`.
const UNDER_WAY_MAX: u64 = 32 << 20;

/// The memory of all ranks of other hosts, as this rank reads it.
#[derive(Debug)]
pub struct Reach {
    inside: Mutex<Inside>,
    /// Serves their reads of this rank.
    server: MemoryServer,
}

#[derive(Debug)]
struct Inside {
    /// By rank; `None` for those of this host.
    ranks: Vec<Option<Far>>,
    /// Most bytes kept of all ranks, if operations copy them on arrival; one read may be larger.
    kept_max: Option<Bytes>,
    /// Bytes that have pages, of all ranks.
    kept: u64,
    /// The error that ended the run meanwhile: operations cannot fail, so the next meeting returns it.
    failed: Result<()>,
}

/// A rank of another host.
#[derive(Debug)]
struct Far {
    mirror: Mirror,
    streams: Vec<PendingReads>,
    /// Most bytes asked for and not arrived, per connection.
    under_way_max: u64,
    /// Ranges that arrived since the ranks last met, sorted and disjoint.
    brought: Vec<Range<u64>>,
    posted: Posted,
}

/// Holds what is known of the number that a rank posts.
#[derive(Debug, Default)]
struct Posted {
    heard: u64,
    /// An answer is under way on the first connection; `received` bytes of it have arrived.
    is_asked: bool,
    number: [u8; POSTED_BYTES],
    received: usize,
}

/// A connection with its outstanding requests.
#[derive(Debug)]
struct PendingReads {
    stream: Stream,
    /// Bytes of requests that are not sent yet.
    unsent: Vec<u8>,
    /// Ranges still to arrive, in order, without what has arrived of the first.
    due: VecDeque<Range<u64>>,
}

impl Reach {
    /// Dials the ranks of other hosts once all doors are open. `bytes`: of each memory; `kept_max`: see `Group::reach`.
    ///
    /// Errors: `ranks-unreachable`, `host-allocation-failed`; those of `check`.
    pub(crate) fn open(
        place: &Place,
        book: &AddressBook,
        server: MemoryServer,
        (bytes, kept_max): (Bytes, Option<Bytes>),
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Reach> {
        let near = place.near();
        let far: Vec<usize> = (0..place.hosts.len()).filter(|rank| !near.contains(rank)).collect();
        let each = (STREAMS / far.len().max(1)).clamp(1, STREAMS_OF_A_RANK);
        let of = |rank: &usize| Target { address: book.ranks[*rank].0, who: book.ranks[*rank].1.clone() };
        let targets: Vec<Target> = far.iter().flat_map(|rank| std::iter::repeat_n(of(rank), each)).collect();
        let mut streams = dial_all(&targets, &book.token()?, (place.rank, Way::Read), check)?.into_iter();
        let mut ranks: Vec<Option<Far>> = place.hosts.iter().map(|_| None).collect();
        for rank in far {
            let mirror = Mirror::new("plimsoll-mirror", bytes)?;
            let asked = |stream| PendingReads { stream, unsent: Vec::new(), due: VecDeque::new() };
            let streams = streams.by_ref().take(each).map(asked).collect();
            let under_way_max = (UNDER_WAY_MAX / targets.len() as u64).max(REQUEST_MAX);
            ranks[rank] =
                Some(Far { mirror, streams, under_way_max, brought: Vec::new(), posted: Posted::default() });
        }
        Ok(Reach { inside: Mutex::new(Inside { ranks, kept_max, kept: 0, failed: Ok(()) }), server })
    }

    /// Maps the copy of a rank's memory for reading; `None` for ranks of this host.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn view(&self, rank: usize) -> Result<Option<Mapping>> {
        self.lock().ranks[rank].as_ref().map(|far| far.mirror.view()).transpose()
    }

    /// Returns what has arrived of a rank's memory.
    #[cfg(test)]
    pub(crate) fn seen(&self, rank: usize, range: Range<u64>) -> Vec<u8> {
        self.lock().ranks[rank].as_mut().expect("of another host").mirror.part(range).to_vec()
    }

    /// Fetches ranges of other ranks' memory that did not arrive since the ranks last met. Does nothing after an error.
    pub fn bring(&self, wanted: &[(usize, Range<u64>)], check: &dyn Fn() -> Result<()>) {
        let mut inside = self.lock();
        if inside.failed.is_ok() {
            inside.failed = inside.bring(wanted, check);
        }
    }

    /// Asks a rank of another host for the number that it has posted, and does not wait for the answer: returns what
    /// was heard last. An error is that of `check`.
    pub(crate) fn posted(&self, rank: usize) -> u64 {
        let Inside { ranks, failed, .. } = &mut *self.lock();
        let Some(far) = ranks[rank].as_mut() else { return 0 };
        if failed.is_ok() {
            *failed = far.ask_posted();
        }
        far.posted.heard
    }

    /// Returns the error that stopped fetching, or answering, if any.
    ///
    /// Errors: `rank-lost`, `ranks-unreachable`.
    pub fn check(&self) -> Result<()> {
        self.server.check()?;
        self.lock().failed.clone()
    }

    /// Forgets what has arrived: the ranks have met and may write again.
    pub(crate) fn forget(&self) {
        self.lock().ranks.iter_mut().flatten().for_each(|far| far.brought.clear());
    }

    /// Locks; nothing under the lock panics.
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    /// Gives back pages if the missing part of `wanted` would exceed the limit.
    fn give_back(&mut self, wanted: &[(usize, Range<u64>)]) -> Result<()> {
        let lacking = |(rank, range): &(usize, Range<u64>)| {
            self.ranks[*rank].as_ref().map_or(0, |far| lacking(&far.brought, range))
        };
        let lacking: u64 = wanted.iter().map(lacking).sum();
        if lacking > 0 && self.kept_max.is_some_and(|most| self.kept + lacking > most.0) {
            self.kept = 0;
            for far in self.ranks.iter_mut().flatten() {
                far.brought.clear();
                far.mirror.clear()?;
            }
        }
        self.kept += lacking;
        Ok(())
    }

    fn bring(&mut self, wanted: &[(usize, Range<u64>)], check: &dyn Fn() -> Result<()>) -> Result<()> {
        self.give_back(wanted)?;
        self.ranks.iter_mut().flatten().try_for_each(|far| far.end_posted(check))?;
        let mut missing: Vec<VecDeque<Range<u64>>> = self.ranks.iter().map(|_| VecDeque::new()).collect();
        for (rank, range) in wanted {
            if let Some(far) = &mut self.ranks[*rank] {
                missing[*rank].extend(add(&mut far.brought, range.clone()).into_iter().flat_map(requests));
            }
        }
        let begun = Instant::now();
        loop {
            let mut is_over = true;
            for (far, missing) in self.ranks.iter_mut().zip(&mut missing) {
                let Some(far) = far else { continue };
                far.ask(missing);
                far.receive()?;
                is_over &= missing.is_empty() && far.streams.iter().all(|asked| asked.due.is_empty());
            }
            if is_over {
                return Ok(());
            }
            check()?;
            let streams = self.ranks.iter_mut().flatten().flat_map(|far| &mut far.streams);
            let mut asked = streams.filter(|asked| !asked.due.is_empty());
            asked.try_for_each(|asked| asked.stream.look(begun))?;
            let streams = self.ranks.iter().flatten().flat_map(|far| &far.streams);
            let asked = streams.filter(|asked| !asked.due.is_empty());
            sleep(
                &mut asked
                    .map(|asked| asked.stream.interest(true, !asked.unsent.is_empty()))
                    .collect::<Vec<_>>(),
            );
        }
    }
}

impl Far {
    /// Spreads requests over the connections that have room.
    fn ask(&mut self, missing: &mut VecDeque<Range<u64>>) {
        while let Some(first) = missing.front() {
            let under_way =
                |asked: &PendingReads| asked.due.iter().map(|range| range.end - range.start).sum::<u64>();
            let least = self.streams.iter_mut().min_by_key(|asked| under_way(asked));
            let Some(asked) = least.filter(|asked| under_way(asked) < self.under_way_max) else { return };
            asked.unsent.extend(first.start.to_le_bytes());
            asked.unsent.extend((first.end - first.start).to_le_bytes());
            asked.due.extend(missing.pop_front());
        }
    }

    /// Asks for the number that the rank has posted, unless that is under way, and takes what has arrived.
    fn ask_posted(&mut self) -> Result<()> {
        let Far { streams, posted, .. } = self;
        let asked = streams.first_mut().expect("a connection to each rank");
        if !posted.is_asked {
            asked.unsent.extend(POSTED.to_le_bytes());
            asked.unsent.extend((POSTED_BYTES as u64).to_le_bytes());
            posted.is_asked = true;
        }
        asked.send()?;
        posted.received += asked.stream.read(&mut posted.number[posted.received..])?;
        if posted.received == POSTED_BYTES {
            *posted = Posted { heard: u64::from_le_bytes(posted.number), ..Posted::default() };
        }
        Ok(())
    }

    /// Waits for an answer that is under way, so that reads come next.
    fn end_posted(&mut self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        while self.posted.is_asked {
            self.ask_posted()?;
            check()?;
            self.streams[0].stream.look(begun)?;
            let asked = &self.streams[0];
            if self.posted.is_asked {
                sleep(&mut [asked.stream.interest(true, !asked.unsent.is_empty())]);
            }
        }
        Ok(())
    }

    /// Receives what has arrived.
    fn receive(&mut self) -> Result<()> {
        let Far { mirror, streams, .. } = self;
        for asked in streams {
            asked.send()?;
            while let Some(due) = asked.due.front_mut() {
                let length = asked.stream.read(mirror.part(due.clone()))? as u64;
                due.start += length;
                match (length, due.is_empty()) {
                    (0, _) => break,
                    (_, true) => drop(asked.due.pop_front()),
                    (_, false) => {}
                }
            }
        }
        Ok(())
    }
}

impl PendingReads {
    fn send(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent)? {
                0 => break,
                length => drop(self.unsent.drain(..length)),
            }
        }
        Ok(())
    }
}

/// Cuts a range into requests.
fn requests(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    (range.start..range.end)
        .step_by(REQUEST_MAX as usize)
        .map(move |start| start..range.end.min(start + REQUEST_MAX))
}

/// Returns how many bytes of a range the sorted ranges lack.
fn lacking(all: &[Range<u64>], range: &Range<u64>) -> u64 {
    let first = all.partition_point(|one| one.end <= range.start);
    let overlaps = all[first..].iter().take_while(|one| one.start < range.end);
    let had: u64 = overlaps.map(|one| one.end.min(range.end) - one.start.max(range.start)).sum();
    (range.end - range.start).saturating_sub(had)
}

/// Adds a range to sorted disjoint ones. Returns the parts of it that they lacked.
fn add(all: &mut Vec<Range<u64>>, range: Range<u64>) -> Vec<Range<u64>> {
    if range.is_empty() {
        return Vec::new();
    }
    // The ranges that overlap or touch it.
    let first = all.partition_point(|one| one.end < range.start);
    let last = first + all[first..].partition_point(|one| one.start <= range.end);
    let (mut missing, mut at) = (Vec::new(), range.start);
    for one in &all[first..last] {
        if one.start > at {
            missing.push(at..one.start);
        }
        at = at.max(one.end);
    }
    if at < range.end {
        missing.push(at..range.end);
    }
    let whole = match (all[first..last].first(), all[first..last].last()) {
        (Some(one), Some(other)) => range.start.min(one.start)..range.end.max(other.end),
        _ => range,
    };
    all.splice(first..last, [whole]);
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_brought_once() {
        let mut all = Vec::new();
        let mut missing = |range: Range<u64>| {
            let missing = add(&mut all, range).into_iter().map(|range| (range.start, range.end));
            (
                missing.collect::<Vec<_>>(),
                all.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>(),
            )
        };
        let mut had: Vec<Range<u64>> = Vec::new();
        for (range, expect, known) in [
            (10..20, &[(10, 20)][..], &[(10, 20)][..]),
            (12..18, &[], &[(10, 20)]),
            (30..40, &[(30, 40)], &[(10, 20), (30, 40)]),
            (15..35, &[(20, 30)], &[(10, 40)]),
            (40..50, &[(40, 50)], &[(10, 50)]),
            (0..5, &[(0, 5)], &[(0, 5), (10, 50)]),
            (0..60, &[(5, 10), (50, 60)], &[(0, 60)]),
            (7..7, &[], &[(0, 60)]),
        ] {
            let bytes = expect.iter().map(|(start, end)| end - start).sum::<u64>();
            assert_eq!(lacking(&had, &range), bytes, "{range:?}");
            assert_eq!(missing(range.clone()), (expect.to_vec(), known.to_vec()), "{range:?}");
            had = known.iter().map(|(start, end)| *start..*end).collect();
        }
    }

    #[test]
    fn a_long_read_is_cut_into_requests() {
        let all: Vec<_> = requests(3..3 + 2 * REQUEST_MAX + 1).collect();
        assert_eq!(
            all,
            [
                3..3 + REQUEST_MAX,
                3 + REQUEST_MAX..3 + 2 * REQUEST_MAX,
                3 + 2 * REQUEST_MAX..4 + 2 * REQUEST_MAX
            ]
        );
    }
}
