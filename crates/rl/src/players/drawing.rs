//! The stop condition of a step's rollout: a response also stops at the tick at which the step has its groups. With
//! several ranks they tell each other every `SHARED_TICKS` ticks which groups have ended. A rank that learns late draws
//! tokens that it then drops; which tokens stay does not depend on it.

use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use plimsoll_base::{Error, Result};
use plimsoll_ranks::Group;
use plimsoll_rollout::{Finish, GroupTimes, RolloutStats};
use plimsoll_run::under_way;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Ticks between two exchanges of ranks.
const SHARED_TICKS: u64 = 64;

/// Fewest ticks whose mean is a pace.
const TAIL_TICKS_MIN: u64 = 8;

/// What a rank knows once all have drawn.
pub(super) struct Done {
    pub times: GroupTimes,
    /// Seconds of a tick while fewer than half of its responses drew.
    pub tail_tick_s: Option<f64>,
}

/// What a rank tells the others.
#[derive(Serialize, Deserialize)]
struct Ended {
    /// Groups that have ended since, and their ticks.
    groups: Vec<(u64, u64)>,
    /// True if all its responses have.
    is_done: bool,
}

/// One of this rank's responses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// Tokens that it had when the step began.
    pub start: usize,
    /// Ticks in which it has drawn.
    pub ticks: u64,
    /// How it ended, if it has by itself; it may do so later than the step.
    pub finish: Option<Finish>,
    /// True if it draws no more.
    is_over: bool,
    /// True until it has drawn in the ticks before the next exchange.
    is_awaited: bool,
}

impl Drawn {
    /// True if it draws no more, by itself or because the step ends.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// A response that had `start` tokens, and may have ended.
    pub(super) fn new(start: usize, has_ended: bool) -> Drawn {
        Drawn { start, ticks: 0, finish: None, is_over: has_ended, is_awaited: !has_ended }
    }
}

/// One of this rank's groups.
struct Own {
    number: usize,
    /// Responses that have not ended by themselves.
    left: usize,
    /// Ticks of its longest response.
    longest: u64,
}

/// The pace of the last ticks, in which fewer than half of the responses draw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    /// Responses that drew at first, and those that still do.
    places: usize,
    left: usize,
    /// When fewer than half were left, and the tick.
    began: Option<(Instant, u64)>,
}

impl Tail {
    /// Counts a response that draws no more after `tick`.
    pub(super) fn ended(&mut self, tick: u64) {
        self.left -= 1;
        if self.began.is_none() && 2 * self.left < self.places {
            self.began = Some((Instant::now(), tick));
        }
    }

    /// Returns the seconds of a tick until now, when tick `last` is over; none of too few ticks.
    fn tick_s(&self, last: u64) -> Option<f64> {
        let (began, tick) = self.began?;
        let ticks = last.checked_sub(tick).filter(|ticks| *ticks >= TAIL_TICKS_MIN)?;
        Some(began.elapsed().as_secs_f64() / ticks as f64)
    }
}

/// How far this rank's responses are, and when the groups of all ranks have ended.
pub(super) struct Drawing<'d> {
    size: usize,
    groups: Vec<Own>,
    pub(super) drawn: Vec<Drawn>,
    pub(super) times: GroupTimes,
    bound: u64,
    ranks: &'d Group,
    /// The tick of the next exchange.
    next: u64,
    awaited: usize,
    pub(super) tail: Tail,
    tail_tick_s: Option<f64>,
    untold: Vec<(u64, u64)>,
    failure: Option<Error>,
}

impl<'d> Drawing<'d> {
    /// Begins with this rank's responses, `size` for each of the groups `numbers`.
    pub(super) fn new(
        size: usize,
        numbers: &[usize],
        drawn: Vec<Drawn>,
        times: GroupTimes,
        ranks: &'d Group,
    ) -> Drawing<'d> {
        let left = |own: &[Drawn]| own.iter().filter(|drawn| !drawn.is_over).count();
        let own = numbers.iter().zip(drawn.chunks(size));
        let groups = own.map(|(&number, own)| Own { number, left: left(own), longest: 0 }).collect();
        let (bound, awaited) = (times.bound(), left(&drawn));
        under_way::expect(awaited);
        Drawing {
            size,
            groups,
            drawn,
            times,
            bound,
            ranks,
            next: SHARED_TICKS,
            awaited,
            tail: Tail { places: awaited, left: awaited, began: None },
            tail_tick_s: None,
            untold: Vec::new(),
            failure: None,
        }
    }

    /// Ends with what the engine returned: with several ranks once all have drawn what they have to.
    ///
    /// Errors: the engine's; `rank-lost` where another rank has one.
    pub(super) fn finish(&mut self, ran: Result<RolloutStats>) -> Result<RolloutStats> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let stats = match ran {
            Ok(stats) => stats,
            Err(error) => {
                let told = exchange::<Ended>(self.ranks, Kind::Carry, Err(error));
                return Err(told.err().expect("an error of one's own comes back"));
            }
        };
        let last = self.drawn.iter().map(|drawn| drawn.ticks).max().unwrap_or(0);
        self.tail_tick_s = self.tail.tick_s(last);
        while !self.tell()? {}
        Ok(stats)
    }

    /// Returns what is known at the end.
    pub(super) fn done(self) -> Done {
        Done { times: self.times, tail_tick_s: self.tail_tick_s }
    }

    /// Returns the tick at which the step ends, as far as it is known.
    pub(super) fn bound(&self) -> u64 {
        self.bound
    }

    /// Returns the tick at which the group of a response has ended, if it has.
    pub(super) fn end_of(&self, sample: usize) -> Option<u64> {
        let own = &self.groups[sample / self.size];
        (own.left == 0).then_some(own.longest)
    }

    /// Returns a tick before which the step does not end.
    pub(super) fn floor(&self) -> u64 {
        // All ranks had come to the last exchange.
        let mut least = vec![self.next - SHARED_TICKS; self.times.num_groups()];
        for (own, drawn) in self.groups.iter().zip(self.drawn.chunks(self.size)) {
            let ticks = drawn.iter().map(|drawn| drawn.ticks + u64::from(!drawn.is_over));
            least[own.number] = ticks.max().unwrap_or(0);
        }
        self.times.floor(&least)
    }

    /// Counts the ticks of a response that may go on.
    pub(super) fn drew(&mut self, sample: usize, ticks: u64) {
        self.drawn[sample].ticks = ticks;
        self.arrive(sample);
    }

    /// Notes that a response draws no more in this step.
    pub(super) fn cut(&mut self, sample: usize) {
        self.drawn[sample].is_over = true;
        self.arrive(sample);
    }

    /// Notes that a response has ended by itself.
    pub(super) fn end(&mut self, sample: usize, ticks: u64, finish: Finish) {
        let drawn = &mut self.drawn[sample];
        (drawn.ticks, drawn.finish, drawn.is_over) = (ticks, Some(finish), true);
        let own = &mut self.groups[sample / self.size];
        own.left -= 1;
        own.longest = own.longest.max(ticks);
        if own.left == 0 {
            self.times.end(own.number, own.longest);
            self.untold.push((own.number as u64, own.longest));
            self.bound = self.bound.min(self.times.bound());
        }
        self.arrive(sample);
    }

    /// Exchanges which groups have ended. True if no rank draws any more.
    fn tell(&mut self) -> Result<bool> {
        let is_done = self.drawn.iter().all(|drawn| drawn.is_over);
        let own = Ended { groups: std::mem::take(&mut self.untold), is_done };
        let all = exchange(self.ranks, Kind::Carry, Ok(own))?;
        for &(number, tick) in all.iter().flat_map(|of| &of.groups) {
            self.times.end(number as usize, tick);
        }
        self.bound = self.times.bound();
        self.next += SHARED_TICKS;
        for drawn in &mut self.drawn {
            drawn.is_awaited = !drawn.is_over && drawn.ticks < self.next;
        }
        self.awaited = self.drawn.iter().filter(|drawn| drawn.is_awaited).count();
        Ok(all.iter().all(|of| of.is_done))
    }

    /// Counts a response that has reached the next exchange or draws no more; the last one brings the exchange about.
    fn arrive(&mut self, sample: usize) {
        let drawn = &mut self.drawn[sample];
        let has_arrived = drawn.is_over || drawn.ticks >= self.next;
        if !drawn.is_awaited || !has_arrived || self.failure.is_some() {
            return;
        }
        drawn.is_awaited = false;
        self.awaited -= 1;
        let is_last = self.awaited == 0 && self.drawn.iter().any(|drawn| !drawn.is_over);
        if is_last && let Err(error) = self.tell() {
            // Everything stops, and the error comes out at the end.
            (self.failure, self.bound) = (Some(error), 0);
        }
    }
}
