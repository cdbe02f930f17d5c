//! One advantage for each turn of a group's episodes, from the rewards of all turns.
//!
//! P prompts, G episodes each, T turns of all episodes; r_k is the reward of turn k of an episode with K turns.
//! What compares is the method's own shaping (`shaping`), over other members than whole samples:
//!
//! * `Returns`: the return-to-go of turn k, the sum of r_j over j >= k, is shaped among those of the group's episodes
//!   that have a turn k. All of it happened after the turn, none of it before, so no token is paid for what it could
//!   not cause. Comparing whole returns is the case of one turn.
//! * `Process`: each r_k is shaped among all rewards of all turns of the group, and turn k has the sum of the shaped
//!   rewards of turns j >= k. Source: arXiv 2402.03300, section 4.1.3 (DeepSeekMath's process supervision).

use crate::shaping::{Shaping, shape_rewards};
use plimsoll_base::Result;
use std::ops::Range;

plimsoll_base::names! {
    /// The way in which turns are compared.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    TurnCredit {
        /// Returns from a turn on, among the episodes of a group that have this turn.
        Returns = "turn",
        /// Rewards of turns, among all turns of a group.
        Process = "process",
    }
}

/// The turns of a step's episodes, episode after episode.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// [T], the reward of each turn.
    pub rewards: &'a [f64],
    /// [T], the trained tokens of each turn; read only by `GroupShaping::LengthWeighted`.
    pub tokens: &'a [usize],
    /// [P * G + 1]: episode e is `offsets[e]..offsets[e + 1]`. One that takes no part has no turns.
    pub offsets: &'a [usize],
}

/// Writes the advantage of each turn into `advantages`, [T].
///
/// A turn that is alone in its comparison gets 0, and so do turns whose compared numbers are all equal. Shaped numbers
/// are clipped as those of whole samples are, before `Process` sums them.
/// Errors: `group-too-small`.
pub fn compare_turns(
    how: TurnCredit,
    shaping: &Shaping,
    turns: Turns<'_>,
    group_size: usize,
    advantages: &mut [f32],
) -> Result<()> {
    let Turns { rewards, tokens, offsets } = turns;
    assert_eq!(offsets.last(), Some(&rewards.len()), "offsets end with the number of turns");
    assert_eq!((tokens.len(), advantages.len()), (rewards.len(), rewards.len()), "one entry for each turn");
    crate::shaping::check_group_size(shaping.group, group_size)?;
    let episodes: Vec<Range<usize>> = offsets.windows(2).map(|pair| pair[0]..pair[1]).collect();
    assert_eq!(episodes.len() % group_size, 0, "episodes come in whole groups of {group_size}");
    let mut scratch = Scratch::default();
    for group in episodes.chunks(group_size) {
        match how {
            TurnCredit::Returns => {
                for k in 0..group.iter().map(ExactSizeIterator::len).max().unwrap_or(0) {
                    scratch.clear();
                    let here = || group.iter().filter(|turns| k < turns.len());
                    for turns in here() {
                        let rest = turns.start + k..turns.end;
                        scratch.push(rewards[rest.clone()].iter().sum(), tokens[rest.start]);
                    }
                    scratch.shape(shaping)?;
                    here().zip(&scratch.shaped).for_each(|(turns, &it)| advantages[turns.start + k] = it);
                }
            }
            TurnCredit::Process => {
                scratch.clear();
                let all = group.iter().cloned().flatten();
                all.for_each(|turn| scratch.push(rewards[turn], tokens[turn]));
                scratch.shape(shaping)?;
                let mut shaped = scratch.shaped.as_slice();
                for turns in group {
                    let (own, others) = shaped.split_at(turns.len());
                    let mut sum = 0.0;
                    for (turn, &one) in turns.clone().zip(own).rev() {
                        sum += f64::from(one);
                        advantages[turn] = sum as f32;
                    }
                    shaped = others;
                }
            }
        }
    }
    Ok(())
}

/// Holds what is compared at one time.
#[derive(Default)]
struct Scratch {
    rewards: Vec<Option<f32>>,
    tokens: Vec<usize>,
    shaped: Vec<f32>,
}

impl Scratch {
    fn clear(&mut self) {
        self.rewards.clear();
        self.tokens.clear();
    }

    fn push(&mut self, reward: f64, tokens: usize) {
        self.rewards.push(Some(reward as f32));
        self.tokens.push(tokens);
    }

    /// Shapes the numbers as one group; one alone has nothing to be compared with.
    fn shape(&mut self, shaping: &Shaping) -> Result<()> {
        self.shaped.clear();
        self.shaped.resize(self.rewards.len(), 0.0);
        if self.rewards.len() >= 2 {
            let shaping = Shaping { overlong: None, ..*shaping };
            shape_rewards(&shaping, &self.rewards, &self.tokens, self.rewards.len(), &mut self.shaped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shaping::GroupShaping;

    /// One group of the episodes with these rewards of turns.
    fn advantages(how: TurnCredit, group: GroupShaping, episodes: &[&[f64]]) -> Vec<Vec<f32>> {
        let rewards: Vec<f64> = episodes.concat();
        let tokens: Vec<usize> = (1..=rewards.len()).collect();
        let mut offsets = vec![0];
        episodes.iter().for_each(|episode| offsets.push(offsets[offsets.len() - 1] + episode.len()));
        let turns = Turns { rewards: &rewards, tokens: &tokens, offsets: &offsets };
        let mut out = vec![f32::NAN; rewards.len()];
        let shaping = Shaping { overlong: None, group, clip: [-10.0, 10.0] };
        compare_turns(how, &shaping, turns, episodes.len(), &mut out).expect("a group of several");
        offsets.windows(2).map(|pair| out[pair[0]..pair[1]].to_vec()).collect()
    }

    #[test]
    fn a_turn_is_compared_with_those_that_got_as_far() {
        // Returns at the first turn 3, 1, 2; at the second 2 and 0; the third turn is alone.
        let episodes: &[&[f64]] = &[&[1.0, 0.0, 2.0], &[1.0, 0.0], &[2.0]];
        let rloo = advantages(TurnCredit::Returns, GroupShaping::Rloo, episodes);
        assert_eq!(rloo, [vec![1.5, 2.0, 0.0], vec![-1.5, -2.0], vec![0.0]]);
        let mean = advantages(TurnCredit::Returns, GroupShaping::MeanBaseline, episodes);
        assert_eq!(mean, [vec![1.0, 1.0, 0.0], vec![-1.0, -1.0], vec![0.0]]);
        // Turns of 1, 4 and 6 tokens: the mean is 19 / 11. At the second turn 2 and 5 tokens.
        let weighted = advantages(TurnCredit::Returns, GroupShaping::LengthWeighted, episodes);
        let base = (3.0 + 4.0 + 12.0) / 11.0;
        assert_eq!(weighted[0], [(3.0 - base) as f32, (2.0f64 - 4.0 / 7.0) as f32, 0.0]);
        assert_eq!(weighted[1], [(1.0 - base) as f32, (-4.0f64 / 7.0) as f32]);
    }

    #[test]
    fn a_step_is_compared_with_all_steps_and_paid_for_those_after_it() {
        // Mean 1 of six rewards; less the mean 0, -1, 1; 0, -1; 1.
        let episodes: &[&[f64]] = &[&[1.0, 0.0, 2.0], &[1.0, 0.0], &[2.0]];
        let mean = advantages(TurnCredit::Process, GroupShaping::MeanBaseline, episodes);
        assert_eq!(mean, [vec![0.0, 0.0, 1.0], vec![-1.0, -1.0], vec![1.0]]);
    }

    #[test]
    fn equal_numbers_give_exactly_zero_and_one_of_one_turn_is_the_whole_return() {
        let norm = GroupShaping::GroupNorm { eps: 1e-9 };
        for how in [TurnCredit::Returns, TurnCredit::Process] {
            let same = advantages(how, norm, &[&[0.1, 0.1], &[0.1, 0.1], &[0.1, 0.1]]);
            assert!(same.concat().iter().all(|&it| it == 0.0), "{how:?} {same:?}");
            // An episode without turns takes no part, and the one that is left is alone.
            assert_eq!(advantages(how, norm, &[&[3.0], &[]]), [vec![0.0], vec![]], "{how:?}");
            assert!(advantages(how, norm, &[&[], &[]]).concat().is_empty(), "{how:?}");
            let ones: &[&[f64]] = &[&[0.3], &[0.9], &[-4.0]];
            let mut whole = [0f32; 3];
            let shaping = Shaping { overlong: None, group: norm, clip: [-10.0, 10.0] };
            shape_rewards(&shaping, &[Some(0.3), Some(0.9), Some(-4.0)], &[], 3, &mut whole).expect("three");
            assert_eq!(advantages(how, norm, ones).concat(), whole, "{how:?}");
        }
        // The same return in another order of the turns: 0.1 + 0.2 and 0.3 are one number here.
        let order = advantages(TurnCredit::Returns, norm, &[&[0.1, 0.2], &[0.3], &[0.2, 0.1]]);
        assert_eq!([order[0][0], order[1][0], order[2][0]], [0.0; 3]);
    }
}
