//! Rewards of turns, or of steps of a response, that are compared within a group: one advantage for each turn of a
//! step's samples, instead of one for each sample. What the formulas are is in `plimsoll_algo::turns`.

use crate::arrays::TokenArrays;
use crate::context::StepContext;
use crate::methods::batch::Batch;
use crate::players::Episodes;
use plimsoll_algo::turns::{Turns, compare_turns};
use plimsoll_base::Result;
use plimsoll_reward::RewardStep;
use plimsoll_text::{StreamDecoder, Tokenizer};
use std::ops::Range;

/// The compared turns of a step.
pub(crate) struct Compared {
    /// For each turn, its tokens among those of the step.
    tokens: Vec<Range<usize>>,
    advantages: Vec<f32>,
}

/// The turns of a step's samples, sample after sample, before they are compared.
struct Rewarded {
    tokens: Vec<Range<usize>>,
    rewards: Vec<f64>,
    /// Where the turns of each sample begin and end.
    offsets: Vec<usize>,
}

/// Compares the turns of a step's samples; `None` where whole samples are compared. `shaped`: the rewards of whole
/// samples, which are 0 where turns have their place.
///
/// A sample that a fault ended, or that has no score, takes no part.
/// Errors: `group-too-small`.
pub(crate) fn compare(
    cx: &StepContext<'_>,
    batch: &Batch<'_>,
    buffers: &TokenArrays,
    shaped: &mut [f32],
) -> Result<Option<Compared>> {
    let Some(how) = cx.run.turn_credit() else { return Ok(None) };
    shaped.fill(0.0);
    let Rewarded { tokens, rewards, offsets } = match cx.player.episodes() {
        Some(episodes) => Rewarded::of_episodes(episodes, batch, buffers),
        None => Rewarded::of_responses(&cx.text.tokenizer, batch, buffers),
    };
    let lengths: Vec<usize> = tokens.iter().map(ExactSizeIterator::len).collect();
    let mut advantages = vec![0f32; rewards.len()];
    let turns = Turns { rewards: &rewards, tokens: &lengths, offsets: &offsets };
    let group = cx.run.rollout.group_size as usize;
    compare_turns(how, &cx.objective.shaping, turns, group, &mut advantages)?;
    Ok(Some(Compared { tokens, advantages }))
}

impl Compared {
    /// Adds the advantage of each turn to those of its trained tokens, which have what is not compared: a KL.
    pub(crate) fn credit(&self, buffers: &mut TokenArrays) {
        for (tokens, advantage) in self.tokens.iter().zip(&self.advantages) {
            for t in tokens.clone().filter(|&t| buffers.mask[t] != 0.0) {
                buffers.advantages[t] += advantage;
            }
        }
    }
}

impl Rewarded {
    fn new() -> Rewarded {
        Rewarded { tokens: Vec::new(), rewards: Vec::new(), offsets: vec![0] }
    }

    fn push(&mut self, tokens: Range<usize>, reward: f64) {
        self.tokens.push(tokens);
        self.rewards.push(reward);
    }

    fn end_sample(&mut self) {
        self.offsets.push(self.rewards.len());
    }

    /// Takes the turns of episodes.
    fn of_episodes(episodes: &Episodes, batch: &Batch<'_>, buffers: &TokenArrays) -> Rewarded {
        let mut all = Rewarded::new();
        for ((i, s), rewards) in batch.which.clone().enumerate().zip(episodes.turn_rewards()) {
            if let Some(rewards) = rewards {
                let (first, turns) = (buffers.offsets[i], batch.samples.turns(s));
                assert_eq!(turns.len(), rewards.len(), "every turn of episode {s} has a reward");
                for (turn, reward) in turns.iter().zip(rewards) {
                    all.push(first + turn.start as usize..first + turn.end as usize, reward);
                }
            }
            all.end_sample();
        }
        all
    }

    /// Takes the steps of responses; what follows a response's last step is one more, whose reward is the score.
    fn of_responses(tokenizer: &Tokenizer, batch: &Batch<'_>, buffers: &TokenArrays) -> Rewarded {
        let mut all = Rewarded::new();
        let samples = batch.groups.iter().flat_map(|group| group.scored.iter().zip(&group.texts));
        for ((i, s), (scored, text)) in batch.which.clone().enumerate().zip(samples) {
            if let Some(total) = scored.total {
                let (first, ids) = (buffers.offsets[i], batch.samples.ids(s));
                let ends = ends_in_tokens(tokenizer, ids, text, &scored.steps);
                all.push_steps(first, ids.len(), &scored.steps, &ends, f64::from(total));
            }
            all.end_sample();
        }
        all
    }

    /// Adds the steps of a response of `len` tokens, of which the step's first is `first`.
    fn push_steps(&mut self, first: usize, len: usize, steps: &[RewardStep], ends: &[usize], score: f64) {
        let (mut from, mut num_own) = (0, 0);
        let with_score = steps.iter().zip(ends).map(|(step, &end)| (end, step.reward)).chain([(len, score)]);
        for (end, reward) in with_score {
            match (end > from, num_own > 0) {
                // A step that ends within the last token of the one before it has none of its own.
                (false, true) => *self.rewards.last_mut().expect("it has a step") += reward,
                (false, false) => {}
                (true, _) => {
                    self.push(first + from..first + end, reward);
                    (from, num_own) = (end, num_own + 1);
                }
            }
        }
    }
}

/// Returns for each step the number of tokens up to its end: up to the one with the last byte before it.
///
/// `text`: the response as its rewards saw it. A step that ends with the text has all tokens that are left, so that the
/// end of the sequence and a stop string, which the text lacks, are no step of their own.
fn ends_in_tokens(tokenizer: &Tokenizer, ids: &[u32], text: &str, steps: &[RewardStep]) -> Vec<usize> {
    let mut ends = Vec::with_capacity(steps.len());
    let Some(last) = steps.last() else { return ends };
    let (mut decoder, mut piece, mut seen) = (StreamDecoder::new(true), String::new(), 0);
    for (t, &id) in ids.iter().enumerate() {
        decoder.push(tokenizer, id, &mut piece);
        seen += piece.chars().count();
        piece.clear();
        while steps.get(ends.len()).is_some_and(|step| step.end as usize <= seen) {
            ends.push(t + 1);
        }
    }
    // What the decoder held back ends with the response.
    ends.resize(steps.len(), ids.len());
    if last.end as usize == text.chars().count() {
        ends[steps.len() - 1] = ids.len();
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_files::TokenizerFiles;
    use plimsoll_plan::StepArrays;

    #[test]
    fn every_trained_token_of_a_turn_has_its_advantage() {
        let mut buffers =
            TokenArrays::bind(&StepArrays { sequences: 2, response_tokens: 4, parts: Vec::new() });
        buffers.begin([4, 3].into_iter());
        buffers.mask.copy_from_slice(&[1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
        buffers.advantages.fill(0.25);
        // The second sequence has a turn whose response is left out.
        let compared =
            Compared { tokens: vec![0..2, 3..4, 4..6, 6..7], advantages: vec![1.5, -0.5, 9.0, 2.0] };
        compared.credit(&mut buffers);
        assert_eq!(buffers.advantages, [1.75, 1.75, 0.25, -0.25, 0.25, 0.25, 2.25]);
    }

    fn steps(ends: &[u32]) -> Vec<RewardStep> {
        ends.iter().map(|&end| RewardStep { end, reward: f64::from(end) }).collect()
    }

    #[test]
    fn a_step_ends_with_the_token_that_has_its_last_byte() {
        let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
        let tokenizer = Tokenizer::from_files(&files, 259).expect("bytes need no file");
        let of = |text: &str, more: &[u32], ends: &[u32]| {
            let ids: Vec<u32> = text.bytes().map(u32::from).chain(more.iter().copied()).collect();
            ends_in_tokens(&tokenizer, &ids, text, &steps(ends))
        };
        assert_eq!(of("1+2=3", &[], &[2, 4]), [2, 4]);
        // A character of two bytes is two tokens, and one of three bytes is three.
        assert_eq!(of("é=€", &[], &[1, 2]), [2, 3]);
        // The end of the sequence belongs to a step that ends with the text, and to no other.
        assert_eq!(of("é=€", &[257], &[1, 3]), [2, 7]);
        assert_eq!(of("12", &[257], &[1]), [1]);
        assert_eq!(of("12", &[257], &[]), [0usize; 0]);
        // The text was cut before a stop string.
        let ids: Vec<u32> = "12;".bytes().map(u32::from).collect();
        assert_eq!(ends_in_tokens(&tokenizer, &ids, "12", &steps(&[1, 2])), [1, 3]);
    }

    #[test]
    fn what_follows_the_last_step_has_the_score() {
        let of = |len, ends: &[usize]| {
            let mut all = Rewarded::new();
            let steps: Vec<RewardStep> = ends.iter().map(|_| RewardStep { end: 1, reward: 0.5 }).collect();
            all.push_steps(10, len, &steps, ends, 3.0);
            all.end_sample();
            assert_eq!(all.offsets, [0, all.rewards.len()]);
            let tokens: Vec<[usize; 2]> =
                all.tokens.iter().map(|tokens| [tokens.start, tokens.end]).collect();
            (tokens, all.rewards)
        };
        assert_eq!(of(5, &[]), (vec![[10, 15]], vec![3.0]));
        assert_eq!(of(5, &[2, 4]), (vec![[10, 12], [12, 14], [14, 15]], vec![0.5, 0.5, 3.0]));
        // The last step takes the score where nothing follows it, and one without a token joins the one before.
        assert_eq!(of(5, &[2, 5]), (vec![[10, 12], [12, 15]], vec![0.5, 3.5]));
        assert_eq!(of(5, &[2, 2]), (vec![[10, 12], [12, 15]], vec![1.0, 3.0]));
        assert_eq!(of(0, &[]), (vec![], vec![]));
    }
}
