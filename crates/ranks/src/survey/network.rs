//! The network between hosts: clock offsets, duration of a barrier, and rates of memory reads, by the path of a run.

use crate::group::Group;
use crate::hosts::{Memory, Reach};
use crate::place::Place;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_memory::shared_file;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes that a host reads of another.
const BYTES: u64 = 64 << 20;
/// Bytes of the first read; each further one doubles, until one is long enough to measure or all are read.
const FIRST_BYTES: u64 = 1 << 20;
const LONG_ENOUGH: Duration = Duration::from_millis(400);
/// Reads that end sooner are repeated: a short read says less, and the first fills new pages.
const QUICK: Duration = Duration::from_secs(1);
const READS_MAX: usize = 3;
/// Least bytes of one read when all hosts read at once.
const AT_ONCE_MIN: u64 = 256 << 10;
/// Most bytes of all of a host's reads at once: they take memory.
const AT_ONCE_MAX: u64 = 256 << 20;
const BARRIERS: usize = 40;
const CLOCK_READINGS: usize = 7;
const ROUND_TRIPS: u64 = 20;
const PAGE_BYTES: u64 = 4096;
/// Pairs of hosts measured in turn; with more, each host reads only from the next one.
const PAIRS_MAX: usize = 30;

/// How fast this host read another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Read {
    pub from_host: u32,
    /// Median of small reads.
    pub round_trip_seconds: f64,
    /// Measured while nothing else passed between hosts.
    pub bytes_per_second: f64,
}

/// Holds what one rank measured on the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// How far this process's clock is ahead of rank 0's, and the error bound.
    pub clock_seconds: f64,
    pub clock_within_seconds: f64,
    /// Median duration of a barrier.
    pub barrier_seconds: f64,
    /// Only at the first rank of a host, if there are several.
    pub reads: Vec<Read>,
    /// From all other hosts together, while all hosts read.
    pub at_once_bytes_per_second: Option<f64>,
}

/// Measures with all ranks, which must call it together.
///
/// Errors: `rank-lost`, `ranks-unreachable`, `host-allocation-failed`, `thread-not-started`.
pub(crate) fn measure(group: &Group, place: &Place) -> Result<Network> {
    let barrier_seconds = barrier(group)?;
    let (clock_seconds, clock_within_seconds) = clock(group)?;
    let mut network = Network { clock_seconds, clock_within_seconds, barrier_seconds, ..Network::default() };
    let firsts = place.firsts();
    let own = place.hosts[place.rank as usize] as usize;
    let is_first = firsts[own] == place.rank as usize;
    let memory = shared_file("plimsoll-survey")?;
    memory.set_len(BYTES).map_err(|err| no_memory(&err))?;
    if is_first && firsts.len() > 1 {
        // Pages that were never written would cost the sender nothing.
        let block = vec![0xa5; FIRST_BYTES as usize];
        (0..BYTES / FIRST_BYTES)
            .try_for_each(|_| (&memory).write_all(&block))
            .map_err(|err| no_memory(&err))?;
    }
    let Some(reach) = group.reach(Memory::File(memory), Bytes(BYTES), None)? else { return Ok(network) };
    let reader = Reader { group, reach };
    if is_first {
        network.reads = round_trips(&reader, &firsts, own)?;
    }
    group.barrier()?;
    for (to, from) in pairs(firsts.len()) {
        let rate = reader.best_rate(to == own && is_first, firsts[to], firsts[from])?;
        if let Some(read) = network.reads.iter_mut().find(|read| to == own && read.from_host as usize == from)
        {
            read.bytes_per_second = rate;
        }
    }
    let slowest =
        network.reads.iter().map(|read| read.bytes_per_second).filter(|rate| *rate > 0.0).reduce(f64::min);
    let others: Vec<usize> = (0..firsts.len()).filter(|host| *host != own).map(|host| firsts[host]).collect();
    if is_first {
        network.at_once_bytes_per_second = Some(reader.at_once(&others, slowest.unwrap_or(0.0))?);
    }
    // No memory server closes while another rank reads.
    group.barrier()?;
    Ok(network)
}

/// Returns the pairs (reading host, host read), in turn.
pub(super) fn pairs(hosts: usize) -> Vec<(usize, usize)> {
    let all = hosts * hosts.saturating_sub(1) <= PAIRS_MAX;
    let last = if all { hosts } else { 2.min(hosts) };
    (1..last).flat_map(|shift| (0..hosts).map(move |to| (to, (to + shift) % hosts))).collect()
}

fn barrier(group: &Group) -> Result<f64> {
    group.barrier()?;
    let mut times = Vec::with_capacity(BARRIERS);
    for _ in 0..BARRIERS {
        let begun = Instant::now();
        group.barrier()?;
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

/// Returns how far this clock is ahead of rank 0's: both are read after a barrier, up to half a round trip apart.
fn clock(group: &Group) -> Result<(f64, f64)> {
    let (mut differences, mut within) = (Vec::new(), Vec::new());
    for _ in 0..CLOCK_READINGS {
        group.barrier()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let begun = Instant::now();
        let all = group.all_gather(&now.to_le_bytes())?;
        within.push(begun.elapsed().as_secs_f64() / 2.0);
        let first = all[0].first_chunk().map_or(now, |bytes| u64::from_le_bytes(*bytes));
        differences.push((now as i64).wrapping_sub(first as i64) as f64 * 1e-6);
    }
    Ok((median(differences), median(within)))
}

/// Measures the median time to read one byte of each other host, one host after the other.
fn round_trips(reader: &Reader<'_>, firsts: &[usize], own: usize) -> Result<Vec<Read>> {
    let mut reads = Vec::new();
    for (host, first) in firsts.iter().enumerate().filter(|(host, _)| *host != own) {
        let mut times = Vec::new();
        for page in 0..ROUND_TRIPS {
            let at = page * PAGE_BYTES;
            times.push(reader.read(&[(*first, at..at + 1)])?.as_secs_f64());
        }
        let round_trip_seconds = median(times);
        reads.push(Read { from_host: host as u32, round_trip_seconds, bytes_per_second: 0.0 });
    }
    Ok(reads)
}

struct Reader<'a> {
    group: &'a Group,
    reach: Arc<Reach>,
}

impl Reader<'_> {
    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Duration> {
        let begun = Instant::now();
        self.reach.bring(wanted, &|| self.group.check());
        let taken = begun.elapsed();
        self.reach.check().map(|()| taken)
    }

    /// Returns the best rate of several reads (one on a slow path), bytes/s. All ranks call it, one reads.
    fn best_rate(&self, reads: bool, to: usize, from: usize) -> Result<f64> {
        let mut best: f64 = 0.0;
        for round in 0..READS_MAX {
            let rate = match (reads, round) {
                (false, _) => 0.0,
                (true, 0) => self.rate(from)?,
                (true, _) => BYTES as f64 / self.read(&[(from, 0..BYTES)])?.as_secs_f64().max(1e-9),
            };
            best = best.max(rate);
            let all = self.group.all_gather(&(best as u64).to_le_bytes())?;
            best = all[to].first_chunk().map_or(0.0, |bytes| u64::from_le_bytes(*bytes) as f64);
            if best * QUICK.as_secs_f64() < BYTES as f64 {
                break;
            }
        }
        Ok(best)
    }

    /// Returns the bytes per second of the last of ever longer reads.
    fn rate(&self, from: usize) -> Result<f64> {
        let (mut at, mut bytes) = (0, FIRST_BYTES);
        loop {
            let taken = self.read(&[(from, at..at + bytes)])?;
            at += bytes;
            if taken >= LONG_ENOUGH || at + 2 * bytes > BYTES {
                return Ok(bytes as f64 / taken.as_secs_f64().max(1e-9));
            }
            bytes *= 2;
        }
    }

    /// Reads from all `others` at once for about as long as one read in turn takes.
    fn at_once(&self, others: &[usize], rate: f64) -> Result<f64> {
        let each = (rate * LONG_ENOUGH.as_secs_f64() / others.len() as f64) as u64;
        let most = (AT_ONCE_MAX / others.len() as u64).clamp(AT_ONCE_MIN, BYTES);
        let each = each.clamp(AT_ONCE_MIN, most);
        let wanted: Vec<(usize, Range<u64>)> = others.iter().map(|rank| (*rank, 0..each)).collect();
        let taken = self.read(&wanted)?;
        Ok((each * others.len() as u64) as f64 / taken.as_secs_f64().max(1e-9))
    }
}

fn no_memory(err: &std::io::Error) -> Error {
    Error::new("host-allocation-failed", format!("{} of memory to be read by others: {err}", Bytes(BYTES)))
        .hint("give the container more memory")
}

/// Returns the median; of an even number of values the greater of the middle two.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_hosts_read_from_all_and_many_from_the_next() {
        assert_eq!(pairs(1), []);
        assert_eq!(pairs(2), [(0, 1), (1, 0)]);
        assert_eq!(pairs(3), [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]);
        assert_eq!((pairs(6).len(), pairs(7).len(), pairs(64).len()), (30, 7, 64));
        assert_eq!(pairs(64)[63], (63, 0));
    }

    #[test]
    fn a_median_is_one_of_the_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 4.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
