//! What a step with carried groups reports.

use super::groups::Response;
use plimsoll_run::carry::CarryCounts;
use plimsoll_run::metrics::Metrics;

/// The counts and times of a step with groups under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CarryReport {
    pub counts: CarryCounts,
    /// Groups that go on in the next step.
    pub carried: usize,
    /// Groups that the step waited for, because they were as old as they may be.
    pub waited_for: usize,
    /// Prompts that began.
    pub joined: usize,
    /// Seconds of grading that ran while earlier steps did something else.
    pub seconds_ahead: f64,
    /// Seconds of a tick in this rank's tail, if there was one.
    pub tail_tick_s: Option<f64>,
}

impl CarryReport {
    /// Returns what is reported of the step, by the names of metrics.
    pub(in crate::supply) fn metrics(&self) -> Metrics {
        let mut metrics = self.counts.metrics();
        for (name, value) in [
            ("rollout/carried", self.carried as f64),
            ("rollout/waited_for", self.waited_for as f64),
            ("time/reward_hidden", self.seconds_ahead),
        ] {
            metrics.insert(name.to_string(), value);
        }
        metrics.extend(self.tail_tick_s.map(|seconds| ("time/tail_tick".to_string(), seconds)));
        metrics
    }

    /// Estimates the seconds that a rollout of the trained groups alone would have taken beyond this one's `rollout_s`:
    /// its longest response has as many ticks as tokens, most of them a tail. A step that drew nothing has no measure.
    pub fn saved_s(&self, longest: usize, rollout_s: f64) -> f64 {
        match self.counts.ticks {
            0 => 0.0,
            ticks => longest as f64 * self.tail_tick_s.unwrap_or(rollout_s / ticks as f64) - rollout_s,
        }
    }

    /// True if the step had no choice among its groups, although prompts began.
    pub fn waits_for_all(&self, prompts: usize) -> bool {
        self.joined > 0 && self.waited_for >= prompts
    }
}

/// Counts the ages of trained tokens.
pub(super) fn count_ages<'r>(
    counts: &mut CarryCounts,
    responses: impl Iterator<Item = &'r Response>,
    version: u64,
) {
    for age in responses.flat_map(Response::drawn).map(|drawn| version - drawn) {
        counts.trained_tokens += 1;
        counts.ages += age;
        counts.stale_tokens += u64::from(age > 0);
    }
}

/// Counts the ticks of a step of `ticks` ticks, in which each response drew `draws` tokens: more than `ticks` where a
/// turn was under way at the last one.
pub(super) fn count_draws(counts: &mut CarryCounts, draws: &mut [usize], ticks: u64) {
    draws.sort_unstable();
    counts.ticks = ticks;
    counts.place_ticks = draws.len() as u64 * ticks;
    counts.drawn_tokens = draws.iter().sum::<usize>() as u64;
    // With fewer than half, the one in the middle has ended.
    counts.late_tokens = draws.iter().map(|tokens| (*tokens as u64).saturating_sub(ticks)).sum();
    counts.tail_ticks = draws.get(draws.len() / 2).map_or(0, |tokens| ticks.saturating_sub(*tokens as u64));
}

/// Counts the rows that an engine computes before it draws: of prompts that begin and answers that episodes
/// are yet to hear, and again of responses that go on.
pub(super) fn count_rows<'r>(
    counts: &mut CarryCounts,
    groups: impl Iterator<Item = (usize, &'r [Response])>,
) {
    for (prompt, responses) in groups {
        let going = || responses.iter().filter(|response| response.finish.is_none());
        let tokens: usize = going().map(Response::computed).sum();
        let held: usize = going().map(|response| response.ids.len() - response.computed()).sum();
        counts.prompt_rows += held as u64;
        match going().next() {
            None => {}
            Some(_) if tokens > 0 => counts.recomputed_rows += (prompt + tokens) as u64,
            Some(_) => counts.prompt_rows += prompt as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::tests::of_episode;
    use super::*;
    use plimsoll_rollout::Finish;

    #[test]
    fn the_tail_begins_when_fewer_than_half_draw() {
        for (draws, ticks, tail) in [
            (&[9, 9, 9, 9][..], 9, 0),
            (&[3, 5, 9, 20], 9, 0),
            (&[3, 5, 8, 20], 9, 1),
            (&[1, 2, 9, 9], 9, 0),
            (&[1, 2, 3, 9], 9, 6),
            (&[1, 4, 9], 9, 5),
            (&[], 0, 0),
            (&[7], 7, 0),
        ] {
            let mut counts = CarryCounts::default();
            count_draws(&mut counts, &mut draws.to_vec(), ticks);
            assert_eq!(counts.tail_ticks, tail, "{draws:?}");
            let within: u64 = draws.iter().map(|d| ticks.min(*d as u64)).sum();
            assert_eq!(counts.drawn_tokens - counts.late_tokens, within, "{draws:?}");
            // Counted tick by tick.
            let slow =
                (1..=ticks).filter(|t| 2 * draws.iter().filter(|d| **d as u64 >= *t).count() < draws.len());
            assert_eq!(slow.count() as u64, tail, "{draws:?}");
        }
    }

    #[test]
    fn what_is_saved_is_counted_in_ticks_of_the_tail() {
        let mut report = CarryReport::default();
        assert_eq!(report.saved_s(90, 2.0), 0.0);
        report.counts.ticks = 40;
        assert_eq!(report.saved_s(90, 2.0), 90.0 * (2.0 / 40.0) - 2.0);
        report.tail_tick_s = Some(0.03125);
        assert_eq!(report.saved_s(96, 2.0), 1.0);
        assert_eq!(report.saved_s(32, 2.0), -1.0);
    }

    #[test]
    fn keys_are_computed_again_for_what_goes_on() {
        let response =
            |tokens: usize, finish| Response { ids: vec![0; tokens], finish, ..Response::default() };
        let groups = [
            [response(3, None), response(5, Some(Finish::Eos))],
            [response(0, None), response(0, None)],
            [response(4, Some(Finish::Eos)), response(2, Some(Finish::Stop))],
        ];
        let mut counts = CarryCounts::default();
        count_rows(&mut counts, groups.iter().map(|group| (10, &group[..])));
        assert_eq!((counts.recomputed_rows, counts.prompt_rows), (13, 10));
        // An episode of 7 tokens, the last of which is an answer that it is yet to hear.
        let episode = of_episode();
        count_rows(&mut counts, [(10, &episode.responses[..])].into_iter());
        assert_eq!((counts.recomputed_rows, counts.prompt_rows), (13 + 16, 10 + 1));
    }
}
