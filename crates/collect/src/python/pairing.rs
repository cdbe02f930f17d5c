//! Whether a thread and the only worker that it asks take turns on one processor.
//!
//! While one of them computes, the other waits. On two processors each hand-over wakes one that has gone idle: tens of
//! microseconds in a virtual machine, and caches that have gone cold. Where turns are short that is more than two
//! processors can win, and nobody knows beforehand: both ways are tried, the faster is kept, and asked again after a while.

use plimsoll_worker::procs;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Turns that are measured, after those in which caches and the scheduler settle.
const TURNS: usize = 32;
const SETTLE: usize = 8;
/// Turns this long are worth no hand-over's time.
const LONG: Duration = Duration::from_millis(1);
/// How long a choice holds. What a worker starts meanwhile stays on its processor for no longer.
const REST: Duration = Duration::from_secs(2);
/// Together is kept if its turns are no longer than so many hundredths of those apart: it takes less of the machine.
const KEPT: u32 = 105;

/// What is to be done after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Join,
    Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Apart,
    /// With the median turn that they had apart.
    Trial(Duration),
    Rest {
        until: Instant,
        together: bool,
    },
}

/// The choice alone: told when turns end, it says what to change.
#[derive(Debug)]
struct Choice {
    state: State,
    last: Option<Instant>,
    settled: usize,
    turns: Vec<Duration>,
}

impl Choice {
    fn new() -> Choice {
        Choice { state: State::Apart, last: None, settled: 0, turns: Vec::with_capacity(TURNS) }
    }

    /// A turn ends, and the next begins.
    fn turn(&mut self, now: Instant) -> Option<Change> {
        if let State::Rest { until, together } = self.state {
            if now < until {
                return None;
            }
            self.enter(State::Apart);
            return together.then_some(Change::Part);
        }
        let turn = self.last.replace(now).map(|last| now.duration_since(last))?;
        if self.settled < SETTLE {
            self.settled += 1;
            return None;
        }
        self.turns.push(turn);
        if self.turns.len() < TURNS {
            return None;
        }
        // The median: a turn in which the learner had its own is one of many.
        let (_, &mut median, _) = self.turns.select_nth_unstable(TURNS / 2);
        let until = now + REST;
        match self.state {
            State::Apart if median > LONG => self.enter(State::Rest { until, together: false }),
            State::Apart => {
                self.enter(State::Trial(median));
                return Some(Change::Join);
            }
            State::Trial(apart) => {
                let together = median * 100 <= apart * KEPT;
                self.enter(State::Rest { until, together });
                return (!together).then_some(Change::Part);
            }
            State::Rest { .. } => unreachable!("a rest ends above"),
        }
        None
    }

    /// Whether what was joined is to be parted within a turn: no choice holds longer than a rest.
    fn is_over(&self, now: Instant) -> bool {
        match self.state {
            State::Rest { until, together } => together && now >= until,
            State::Trial(_) => self.last.is_some_and(|last| now.duration_since(last) > REST),
            State::Apart => false,
        }
    }

    fn enter(&mut self, state: State) {
        (self.state, self.last, self.settled) = (state, None, 0);
        self.turns.clear();
    }
}

/// Processors that are taken by pairs of one run.
pub(super) type Taken = Arc<Mutex<Vec<usize>>>;

/// A thread and its worker. Made on any thread; what is joined is the one that calls `turn`.
#[derive(Debug)]
pub(super) struct Pairing {
    choice: Choice,
    taken: Taken,
    /// The processors that the thread may use when it is alone, and the one that it shares.
    joined: Option<(CpuSet, usize)>,
}

impl Pairing {
    pub fn new(taken: Taken) -> Pairing {
        Pairing { choice: Choice::new(), taken, joined: None }
    }

    /// A turn with worker `pid` below `keeper` has ended.
    pub fn turn(&mut self, pid: u32, keeper: u32, now: Instant) {
        match self.choice.turn(now) {
            Some(Change::Join) if !self.join(pid) => {
                self.choice.enter(State::Rest { until: now + REST, together: false });
            }
            Some(Change::Part) => self.part(Some(keeper)),
            _ => {}
        }
    }

    /// A turn goes on: what the worker has started meanwhile is not to wait for its end.
    pub fn look(&mut self, keeper: u32, now: Instant) {
        if self.joined.is_some() && self.choice.is_over(now) {
            self.part(Some(keeper));
            self.choice.enter(State::Apart);
        }
    }

    /// The worker is gone, and the next is measured anew.
    pub fn lost(&mut self) {
        self.part(None);
        self.choice = Choice::new();
    }

    /// Whether thread and worker are on one processor now.
    fn join(&mut self, pid: u32) -> bool {
        let Some(worker) = Pid::from_raw(pid as i32) else { return false };
        let (Ok(all), Ok(theirs)) = (sched_getaffinity(None), sched_getaffinity(Some(worker))) else {
            return false;
        };
        // One that chose its processors, or is more than one thread, has its reasons.
        if all != theirs || procs::tasks_below(pid).len() != 1 {
            return false;
        }
        let Some(processor) = self.take(&all) else { return false };
        let mut one = CpuSet::new();
        one.set(processor);
        self.joined = Some((all, processor));
        let joined = sched_setaffinity(Some(worker), &one).is_ok() && sched_setaffinity(None, &one).is_ok();
        if !joined {
            self.part(Some(pid));
        }
        joined
    }

    /// A processor that no other pair has: the one that this thread is on, if it may be.
    fn take(&self, all: &CpuSet) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let here = sched_getcpu();
        let mut candidates = std::iter::once(here).chain(0..CpuSet::MAX_CPU);
        let free = candidates.find(|&one| all.is_set(one) && !taken.contains(&one))?;
        taken.push(free);
        Some(free)
    }

    /// Gives both, and whatever is bound as they are below `keeper`, all processors again: children of the worker, and
    /// those that it left to its keeper. Who has chosen other processors since keeps them.
    fn part(&mut self, keeper: Option<u32>) {
        let Some((all, processor)) = self.joined.take() else { return };
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).retain(|&one| one != processor);
        // Who is gone needs none.
        let _ = sched_setaffinity(None, &all);
        for task in keeper.map(procs::tasks_below).unwrap_or_default() {
            let task = Pid::from_raw(task as i32);
            if sched_getaffinity(task).is_ok_and(|set| set.count() == 1 && set.is_set(processor)) {
                let _ = sched_setaffinity(task, &all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a choice came to after `seconds` of turns: its changes, and whether they are together.
    fn follow(seconds: f64, apart: Duration, together: Duration) -> (Vec<Change>, bool) {
        let (mut choice, mut now) = (Choice::new(), Instant::now());
        let (end, mut changes, mut joined) = (now + Duration::from_secs_f64(seconds), Vec::new(), false);
        while now < end {
            if let Some(change) = choice.turn(now) {
                joined = change == Change::Join;
                changes.push(change);
            }
            now += if joined { together } else { apart };
        }
        (changes, joined)
    }

    #[test]
    fn the_faster_way_is_kept_and_asked_again() {
        let us = Duration::from_micros;
        let (changes, joined) = follow(1.0, us(150), us(70));
        assert_eq!((&changes[..], joined), (&[Change::Join][..], true));
        // After a rest they part for a measurement, and join again.
        let (changes, joined) = follow(2.5, us(150), us(70));
        assert_eq!((&changes[..], joined), (&[Change::Join, Change::Part, Change::Join][..], true));
        let (changes, joined) = follow(1.0, us(100), us(180));
        assert_eq!((&changes[..], joined), (&[Change::Join, Change::Part][..], false));
        // As fast is kept: it takes one processor in the place of two.
        assert!(follow(1.0, us(100), us(104)).1);
    }

    #[test]
    fn a_choice_ends_within_a_turn_that_outlasts_it() {
        let (mut choice, mut now) = (Choice::new(), Instant::now());
        while choice.turn(now).is_none() {
            now += Duration::from_micros(100);
        }
        assert!(choice.turn(now).is_none() && !choice.is_over(now));
        assert!(choice.is_over(now + REST + Duration::from_millis(1)), "on trial");
        while !matches!(choice.state, State::Rest { .. }) {
            now += Duration::from_micros(50);
            assert_eq!(choice.turn(now), None);
        }
        assert!(!choice.is_over(now + REST / 2) && choice.is_over(now + REST), "at rest");
    }

    #[test]
    fn long_turns_are_never_tried_together() {
        assert_eq!(follow(5.0, Duration::from_millis(3), Duration::from_millis(2)), (Vec::new(), false));
    }

    #[test]
    fn a_pair_shares_one_processor_and_gets_all_of_them_back() {
        // A thread of its own: what is joined and parted is the one that asks.
        let pair = std::thread::spawn(|| {
            let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
            let (pid, all) = (child.id(), sched_getaffinity(None).unwrap());
            let of_child = || sched_getaffinity(Pid::from_raw(pid as i32)).unwrap();
            let taken = Taken::default();
            let mut pairing = Pairing::new(taken.clone());
            assert!(pairing.join(pid));
            let one = sched_getaffinity(None).unwrap();
            assert_eq!((one.count(), of_child()), (1, one));
            assert_eq!(taken.lock().unwrap().len(), 1);
            pairing.part(Some(pid));
            assert_eq!((sched_getaffinity(None).unwrap(), of_child()), (all, all));
            assert!(taken.lock().unwrap().is_empty());
            // Who chooses another processor meanwhile keeps it.
            if all.count() > 1 {
                assert!(pairing.join(pid));
                let here = (0..CpuSet::MAX_CPU).find(|&one| of_child().is_set(one)).unwrap();
                let other = (0..CpuSet::MAX_CPU).find(|&one| all.is_set(one) && one != here).unwrap();
                let mut chosen = CpuSet::new();
                chosen.set(other);
                sched_setaffinity(Pid::from_raw(pid as i32), &chosen).unwrap();
                pairing.part(Some(pid));
                assert_eq!((sched_getaffinity(None).unwrap(), of_child()), (all, chosen));
                assert!(!pairing.join(pid), "one that has chosen is left alone");
            }
            // Where every processor is taken there is none to share.
            *taken.lock().unwrap() = (0..CpuSet::MAX_CPU).collect();
            assert!(!pairing.join(pid));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!pairing.join(pid), "nobody is there");
        });
        pair.join().unwrap();
    }

    #[test]
    fn a_worker_of_several_processes_is_left_alone() {
        let pair = std::thread::spawn(|| {
            let mut child =
                std::process::Command::new("sh").args(["-c", "sleep 100 & wait"]).spawn().unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            while procs::tasks_below(child.id()).len() < 2 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            let joined = Pairing::new(Taken::default()).join(child.id());
            procs::kill_all(procs::tasks_below(child.id()));
            child.wait().unwrap();
            assert!(!joined);
        });
        pair.join().unwrap();
    }
}
