//! Exchange between the first ranks of hosts, each for all ranks of its host: frames over one connection per pair.

use super::dial::{Callers, Target, dial_within};
use super::stream::{Stream, sleep};
use super::{AddressBook, Caller};
use crate::errors::{lost, unreachable};
use crate::message::Way;
use crate::place::Place;
use plimsoll_base::Result;
use std::time::{Duration, Instant};

/// Number of the exchange, then the number of bytes that follow.
const HEAD_BYTES: usize = 16;
/// Largest frame; no step's samples come near it.
const FRAME_BYTES_MAX: u64 = 4 << 30;
const CHUNK_BYTES: usize = 256 << 10;

/// The connections of a host's first rank to those of all other hosts.
#[derive(Debug)]
pub(crate) struct HostLinks {
    own: usize,
    /// By host; `None` for this one.
    hosts: Vec<Option<Lane>>,
    turn: u64,
}

#[derive(Debug)]
struct Lane {
    stream: Stream,
    /// Bytes of the current exchange sent and received, heads included.
    sent: usize,
    head: [u8; HEAD_BYTES],
    received: usize,
    /// Bytes of the frame without its head, once known.
    length: Option<usize>,
    frame: Vec<u8>,
}

impl HostLinks {
    /// Connects the first ranks of all hosts for `way` within `longest`; each dials the hosts before it, and polls
    /// `check`.
    ///
    /// Errors: `ranks-unreachable`; those of `check`.
    pub(crate) fn open(
        place: &Place,
        book: &AddressBook,
        callers: &mut Callers,
        (way, longest): (Way, Duration),
        check: &dyn Fn() -> Result<()>,
    ) -> Result<HostLinks> {
        let firsts = place.firsts();
        let own = place.hosts[place.rank as usize] as usize;
        let target = |rank: &usize| Target { address: book.ranks[*rank].0, who: book.ranks[*rank].1.clone() };
        let before: Vec<Target> = firsts[..own].iter().map(target).collect();
        let dialled = dial_within(&before, &book.token()?, (place.rank, way), longest, check)?;
        let mut hosts: Vec<Option<Lane>> =
            dialled.into_iter().map(|stream| Some(Lane::new(stream))).collect();
        hosts.resize_with(firsts.len(), || None);
        let begun = Instant::now();
        while let Some(missing) = (own + 1..firsts.len()).find(|host| hosts[*host].is_none()) {
            check()?;
            if begun.elapsed() >= longest {
                let (who, seconds) = (&book.ranks[firsts[missing]].1, begun.elapsed().as_secs());
                return Err(unreachable(&format!("{who} did not reach this rank within {seconds} s")));
            }
            callers.sleep();
            // Ranks that come to read must wait for the memory server.
            let expects = |rank: u32, its: Way| {
                let is_later = firsts[own + 1..].contains(&(rank as usize));
                (is_later && its == way).then(|| book.ranks[rank as usize].1.clone())
            };
            for Caller { rank, stream } in callers.turn(&expects) {
                let host = firsts.iter().position(|first| *first == rank as usize);
                hosts[host.expect("a first rank")] = Some(Lane::new(stream));
            }
        }
        Ok(HostLinks { own, hosts, turn: 0 })
    }

    /// Exchanges bytes with all hosts, returned by host, once all reach this exchange. Without bytes: a barrier.
    ///
    /// Errors: `rank-lost`, `ranks-unreachable`; those of `check`.
    pub(crate) fn exchange(&mut self, own: &[u8], check: &dyn Fn() -> Result<()>) -> Result<Vec<Vec<u8>>> {
        self.turn += 1;
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&self.turn.to_le_bytes());
        head[8..].copy_from_slice(&(own.len() as u64).to_le_bytes());
        let begun = Instant::now();
        loop {
            let mut is_over = true;
            for lane in self.hosts.iter_mut().flatten() {
                lane.send(&head, own)?;
                lane.receive(self.turn)?;
                is_over &= lane.is_over(own.len());
            }
            if is_over {
                break;
            }
            check()?;
            let mut waits = self.hosts.iter_mut().flatten().filter(|lane| !lane.is_over(own.len()));
            waits.try_for_each(|lane| lane.stream.look(begun))?;
            let lanes = self.hosts.iter().flatten().filter(|lane| !lane.is_over(own.len()));
            let interest = |lane: &'_ Lane| (!lane.has_received(), !lane.has_sent(own.len()));
            let mut fds: Vec<_> = lanes
                .map(|lane| {
                    let (reads, writes) = interest(lane);
                    lane.stream.interest(reads, writes)
                })
                .collect();
            sleep(&mut fds);
        }
        let taken = self.hosts.iter_mut().map(|lane| lane.as_mut().map(Lane::take));
        let mut all: Vec<Vec<u8>> = taken.map(Option::unwrap_or_default).collect();
        all[self.own] = own.to_vec();
        Ok(all)
    }
}

impl Lane {
    fn new(stream: Stream) -> Lane {
        Lane { stream, sent: 0, head: [0; HEAD_BYTES], received: 0, length: None, frame: Vec::new() }
    }

    fn send(&mut self, head: &[u8], own: &[u8]) -> Result<()> {
        while !self.has_sent(own.len()) {
            let from =
                if self.sent < HEAD_BYTES { &head[self.sent..] } else { &own[self.sent - HEAD_BYTES..] };
            match self.stream.write(from)? {
                0 => break,
                length => self.sent += length,
            }
        }
        Ok(())
    }

    fn receive(&mut self, turn: u64) -> Result<()> {
        while self.received < HEAD_BYTES {
            match self.stream.read(&mut self.head[self.received..])? {
                0 => return Ok(()),
                length => self.received += length,
            }
        }
        let length = match self.length {
            Some(length) => length,
            None => {
                let [of, length] =
                    [0, 8].map(|at| u64::from_le_bytes(*self.head[at..].first_chunk().expect("16 bytes")));
                if of != turn || length > FRAME_BYTES_MAX {
                    let who = &self.stream.who;
                    return Err(lost(format!(
                        "{who} sent {length} bytes of exchange {of}, and this rank is at {turn}"
                    )));
                }
                self.length = Some(length as usize);
                length as usize
            }
        };
        while self.frame.len() < length {
            let at = self.frame.len();
            self.frame.resize(length.min(at + CHUNK_BYTES), 0);
            let read = self.stream.read(&mut self.frame[at..]);
            self.frame.truncate(at + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                break;
            }
        }
        Ok(())
    }

    fn has_sent(&self, length: usize) -> bool {
        self.sent == HEAD_BYTES + length
    }

    fn has_received(&self) -> bool {
        self.length.is_some_and(|length| self.frame.len() == length)
    }

    fn is_over(&self, length: usize) -> bool {
        self.has_sent(length) && self.has_received()
    }

    /// Takes the frame and resets for the next exchange.
    fn take(&mut self) -> Vec<u8> {
        (self.sent, self.received, self.length) = (0, 0, None);
        std::mem::take(&mut self.frame)
    }
}
