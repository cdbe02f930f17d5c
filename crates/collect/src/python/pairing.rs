//! Decides whether a thread and its only worker take turns on one processor.
//!
//! While one of them computes, the other waits. On two processors each switch wakes an idle one: tens of
//! microseconds in a virtual machine, with cold caches. With short turns that is more than two
//! processors can gain. Both ways are tried, the faster is kept, and the choice is repeated after a while.

use plimsoll_worker::procs;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Turns measured, after those in which caches and the scheduler settle.
const TURNS: usize = 32;
const SETTLE: usize = 8;
/// For turns this long the time of a switch does not matter.
const LONG: Duration = Duration::from_millis(1);
/// Time that a choice holds. Processes that a worker starts meanwhile stay on its processor no longer than this.
const REST: Duration = Duration::from_secs(2);
/// Together is kept if its turns take at most this percentage of those apart: it uses less of the machine.
const KEPT: u32 = 105;

/// Says what to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Join,
    Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Apart,
    /// Holds the median turn apart.
    Trial(Duration),
    Rest {
        until: Instant,
        together: bool,
    },
}

/// The choice: takes the ends of turns and returns what to change.
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

    /// Ends a turn and begins the next.
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
        // The median, so that single turns in which the learner ran do not count.
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

    /// Returns true if the two part within a turn: no choice holds longer than `REST`.
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

/// Processors taken by pairs of one run.
pub(super) type Taken = Arc<Mutex<Vec<usize>>>;

/// A thread and its worker. May be made on any thread; the one that calls `turn` is joined.
#[derive(Debug)]
pub(super) struct Pairing {
    choice: Choice,
    taken: Taken,
    /// The processors that the thread may use alone, and the shared one.
    joined: Option<(CpuSet, usize)>,
}

impl Pairing {
    pub fn new(taken: Taken) -> Pairing {
        Pairing { choice: Choice::new(), taken, joined: None }
    }

    /// Records the end of a turn with worker `pid` below `keeper`.
    pub fn turn(&mut self, pid: u32, keeper: u32, now: Instant) {
        match self.choice.turn(now) {
            Some(Change::Join) if !self.join(pid) => {
                self.choice.enter(State::Rest { until: now + REST, together: false });
            }
            Some(Change::Part) => self.part(Some(keeper)),
            _ => {}
        }
    }

    /// Parts within a long turn, so that processes started by the worker need not wait for its end.
    pub fn look(&mut self, keeper: u32, now: Instant) {
        if self.joined.is_some() && self.choice.is_over(now) {
            self.part(Some(keeper));
            self.choice.enter(State::Apart);
        }
    }

    /// Forgets the worker; the next one is measured anew.
    pub fn lost(&mut self) {
        self.part(None);
        self.choice = Choice::new();
    }

    /// Puts thread and worker on one processor. Returns whether it could.
    fn join(&mut self, pid: u32) -> bool {
        let Some(worker) = Pid::from_raw(pid as i32) else { return false };
        let (Ok(all), Ok(theirs)) = (sched_getaffinity(None), sched_getaffinity(Some(worker))) else {
            return false;
        };
        // A worker that chose its processors, or has several threads, is left alone.
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

    /// Takes a processor that no other pair has: this thread's current one, if free.
    fn take(&self, all: &CpuSet) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let here = sched_getcpu();
        let mut candidates = std::iter::once(here).chain(0..CpuSet::MAX_CPU);
        let free = candidates.find(|&one| all.is_set(one) && !taken.contains(&one))?;
        taken.push(free);
        Some(free)
    }

    /// Gives both, and every process below `keeper` that is bound in the same way, all processors again: children of
    /// the worker, and those it left to its keeper. Processes that chose other processors since keep them.
    fn part(&mut self, keeper: Option<u32>) {
        let Some((all, processor)) = self.joined.take() else { return };
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).retain(|&one| one != processor);
        // Fails only if the process has ended.
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

    /// Returns the changes of a choice after `seconds` of turns, and whether they are together.
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
        // Equally fast is kept: it uses one processor instead of two.
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
        // In another thread, because the calling one is joined and parted.
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
            // A process that chooses another processor meanwhile keeps it.
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
            // If every processor is taken there is none to share.
            *taken.lock().unwrap() = (0..CpuSet::MAX_CPU).collect();
            assert!(!pairing.join(pid));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!pairing.join(pid), "there is no such process");
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
