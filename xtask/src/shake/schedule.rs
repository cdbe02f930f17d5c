//! The order of program runs, and its end: every condition gets one round before any gets its second.

use std::time::Duration;

/// One run of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// From 1.
    pub round: usize,
    /// Index of a condition.
    pub condition: usize,
    /// Index of a program.
    pub program: usize,
}

pub struct Schedule {
    steps: Vec<Step>,
    next: usize,
    /// Time after which no step begins.
    limit: Option<Duration>,
}

impl Schedule {
    /// Makes the schedule of `rounds` rounds of all `conditions`.
    pub fn new(rounds: usize, conditions: &[usize], programs: usize, limit: Option<Duration>) -> Schedule {
        let mut steps = Vec::with_capacity(rounds * conditions.len() * programs);
        for round in 1..=rounds {
            for &condition in conditions {
                steps.extend((0..programs).map(|program| Step { round, condition, program }));
            }
        }
        Schedule { steps, next: 0, limit }
    }

    /// Returns the next step, unless the time is used up.
    pub fn next(&mut self, elapsed: Duration) -> Option<Step> {
        if self.limit.is_some_and(|limit| elapsed >= limit) {
            return None;
        }
        let step = self.steps.get(self.next).copied()?;
        self.next += 1;
        Some(step)
    }

    /// Counts the last step as not begun: it was ended before it was over.
    pub fn put_back(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    /// Returns the number of steps that have begun.
    pub fn begun(&self) -> usize {
        self.next
    }

    pub fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns what has not begun: round, condition and number of programs.
    pub fn rest(&self) -> Vec<(usize, usize, usize)> {
        let mut rest: Vec<(usize, usize, usize)> = Vec::new();
        for step in &self.steps[self.next..] {
            match rest.last_mut() {
                Some((round, condition, count)) if (*round, *condition) == (step.round, step.condition) => {
                    *count += 1
                }
                _ => rest.push((step.round, step.condition, 1)),
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_condition_has_a_round_before_any_has_its_second() {
        let mut schedule = Schedule::new(2, &[0, 3], 2, None);
        let steps: Vec<(usize, usize, usize)> = std::iter::from_fn(|| schedule.next(SECOND))
            .map(|step| (step.round, step.condition, step.program))
            .collect();
        let expect = [(1, 0, 0), (1, 0, 1), (1, 3, 0), (1, 3, 1), (2, 0, 0), (2, 0, 1), (2, 3, 0), (2, 3, 1)];
        assert_eq!(steps, expect);
        assert_eq!((schedule.begun(), schedule.num_steps(), schedule.rest()), (8, 8, vec![]));
    }

    #[test]
    fn nothing_begins_after_the_time_and_the_rest_is_named() {
        let mut schedule = Schedule::new(2, &[0, 3], 3, Some(10 * SECOND));
        // The fourth takes long: it began in time, and is the last.
        for seconds in [0, 1, 2, 9] {
            assert!(schedule.next(seconds * SECOND).is_some());
        }
        assert_eq!(schedule.next(10 * SECOND), None);
        assert_eq!(schedule.next(99 * SECOND), None);
        assert_eq!(schedule.rest(), [(1, 3, 2), (2, 0, 3), (2, 3, 3)]);
    }

    #[test]
    fn no_time_begins_nothing() {
        let mut schedule = Schedule::new(1, &[0], 2, Some(Duration::ZERO));
        assert_eq!((schedule.next(Duration::ZERO), schedule.rest()), (None, vec![(1, 0, 2)]));
    }
}
