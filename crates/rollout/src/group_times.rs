//! When groups end, in ticks, and which of them a step trains: those that end first, of equal ones the older. Groups
//! that are as old as they may be are trained in any case. A run's steps go by it, and so does the plan's simulation.

/// The ticks at which the groups under way have ended, as far as is known. Groups are numbered by age.
#[derive(Clone, Debug)]
pub struct GroupTimes {
    /// P.
    wanted: usize,
    /// True of a group that the step has to wait for.
    must: Vec<bool>,
    ends: Vec<Option<u64>>,
}

impl GroupTimes {
    /// Begins a step that trains `wanted` of the groups, and waits for those that `must` names.
    ///
    /// Panics unless there are at least `wanted` groups.
    pub fn new(wanted: usize, must: Vec<bool>) -> GroupTimes {
        assert!(must.len() >= wanted, "{} groups of {wanted}", must.len());
        GroupTimes { wanted, ends: vec![None; must.len()], must }
    }

    /// Notes the tick at which a group has ended.
    pub fn end(&mut self, group: usize, tick: u64) {
        self.ends[group] = Some(tick);
    }

    /// Returns a tick at which the step has its groups: with the ends of all groups T, and before never less.
    /// `u64::MAX` if none follows from what is known.
    pub fn bound(&self) -> u64 {
        let of = |must: bool| {
            self.must.iter().zip(&self.ends).filter(move |(is, _)| **is == must).map(|(_, end)| *end)
        };
        let Some(waited) = of(true).try_fold(0, |most: u64, end| Some(most.max(end?))) else {
            return u64::MAX;
        };
        let Some(more) = self.wanted.checked_sub(of(true).count()).filter(|more| *more > 0) else {
            return waited;
        };
        let mut others: Vec<u64> = of(false).flatten().collect();
        others.sort_unstable();
        others.get(more - 1).map_or(u64::MAX, |end| waited.max(*end))
    }

    /// Returns a tick that is never more than T. `least`: for each group one at which it has not ended, or has just.
    pub fn floor(&self, least: &[u64]) -> u64 {
        let of = |must: bool| {
            let all = self.must.iter().zip(&self.ends).zip(least);
            all.filter(move |((is, _), _)| **is == must).map(|((_, end), least)| end.unwrap_or(*least))
        };
        let waited = of(true).max().unwrap_or(0);
        let more = self.wanted.saturating_sub(of(true).count());
        let mut others: Vec<u64> = of(false).collect();
        others.sort_unstable();
        more.checked_sub(1).map_or(waited, |last| waited.max(others[last]))
    }

    pub fn num_groups(&self) -> usize {
        self.ends.len()
    }

    /// Returns the groups that the step trains, by age.
    pub fn chosen(&self) -> Vec<usize> {
        let ended = self.ends.iter().enumerate().filter_map(|(g, end)| Some((!self.must[g], (*end)?, g)));
        let mut ended: Vec<(bool, u64, usize)> = ended.collect();
        ended.sort_unstable();
        let mut chosen: Vec<usize> = ended.into_iter().take(self.wanted).map(|(.., group)| group).collect();
        chosen.sort_unstable();
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(wanted: usize, of: &[(bool, Option<u64>)]) -> GroupTimes {
        let mut times = GroupTimes::new(wanted, of.iter().map(|(must, _)| *must).collect());
        of.iter()
            .enumerate()
            .filter_map(|(g, (_, end))| Some((g, (*end)?)))
            .for_each(|(g, end)| times.end(g, end));
        times
    }

    #[test]
    fn a_step_takes_the_groups_that_end_first_and_of_equal_ones_the_older() {
        let all = times(2, &[(false, Some(9)), (false, Some(4)), (false, Some(7)), (false, Some(4))]);
        assert_eq!((all.bound(), all.chosen()), (4, vec![1, 3]));
        let all = times(3, &[(false, Some(9)), (false, Some(4)), (false, Some(7)), (false, Some(7))]);
        assert_eq!((all.bound(), all.chosen()), (7, vec![1, 2, 3]));
        let all = times(2, &[(false, Some(4)), (false, Some(4)), (false, Some(4))]);
        assert_eq!((all.bound(), all.chosen()), (4, vec![0, 1]));
    }

    #[test]
    fn a_group_that_must_be_trained_is_waited_for() {
        let all = times(2, &[(true, Some(90)), (false, Some(4)), (false, Some(7))]);
        assert_eq!((all.bound(), all.chosen()), (90, vec![0, 1]));
        // More of them than a step trains are all brought to their end.
        let all = times(1, &[(true, Some(90)), (true, Some(30)), (false, Some(7))]);
        assert_eq!((all.bound(), all.chosen()), (90, vec![1]));
    }

    #[test]
    fn what_is_known_too_early_never_ends_a_step_too_early() {
        let ends = [Some(9), Some(4), Some(7), Some(4), Some(12)];
        for must in 0..32u32 {
            let of = |known: u32| {
                let one = |(g, end): (usize, &Option<u64>)| {
                    (must >> g & 1 == 1, end.filter(|_| known >> g & 1 == 1))
                };
                times(3, &ends.iter().enumerate().map(one).collect::<Vec<_>>())
            };
            let last = of(31).bound();
            assert!((0..32).all(|known| of(known).bound() >= last), "{must:b}");
            // Nor is one final too early, however far the others are.
            for least in 0..12 {
                let least: Vec<u64> = ends.iter().map(|end| end.unwrap().min(least)).collect();
                assert!((0..32).all(|known| of(known).floor(&least) <= last), "{must:b} {least:?}");
            }
            assert_eq!(of(31).floor(&[0; 5]), last);
            // Nothing that is chosen ends later.
            assert!(of(31).chosen().iter().all(|g| ends[*g].unwrap() <= last), "{must:b}");
        }
    }
}
