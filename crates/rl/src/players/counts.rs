//! What is counted of a step in which responses go on: ages of tokens, ticks, and the rows that an engine computes.

use super::groups::Response;
use plimsoll_run::carry::CarryCounts;

/// Counts the ages of trained tokens.
pub(crate) fn count_ages<'r>(
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
