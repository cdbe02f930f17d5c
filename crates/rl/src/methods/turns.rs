//! Rewards of turns that are compared within a group: one advantage for each turn of a step's samples, instead of
//! one for each sample. What the formulas are is in `plimsoll_algo::turns`.

use crate::context::StepContext;
use crate::methods::batch::Batch;
use crate::methods::buffers::StepBuffers;
use plimsoll_algo::turns::{Turns, compare_turns};
use plimsoll_base::Result;
use std::ops::Range;

/// The compared turns of a step.
pub(crate) struct Compared {
    /// For each turn, its tokens among those of the step.
    tokens: Vec<Range<usize>>,
    advantages: Vec<f32>,
}

/// Compares the turns of a step's episodes; `None` where whole samples are compared. `shaped`: the rewards of whole
/// samples, which are 0 where turns have their place.
///
/// An episode that a fault ended, or that has no score, takes no part.
/// Errors: `group-too-small`.
pub(crate) fn compare(
    cx: &StepContext<'_>,
    batch: &Batch<'_>,
    buffers: &StepBuffers,
    shaped: &mut [f32],
) -> Result<Option<Compared>> {
    let (Some(how), Some(episodes)) = (cx.run.turn_credit(), &cx.episodes) else { return Ok(None) };
    shaped.fill(0.0);
    let (mut tokens, mut rewards, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
    for (s, of_turns) in batch.which.clone().zip(episodes.turn_rewards()) {
        if let Some(of_turns) = of_turns {
            let first = buffers.offsets[s - batch.which.start];
            let turns = batch.samples.turns(s);
            assert_eq!(turns.len(), of_turns.len(), "every turn of episode {s} has a reward");
            tokens.extend(turns.iter().map(|turn| first + turn.start as usize..first + turn.end as usize));
            rewards.extend(of_turns);
        }
        offsets.push(rewards.len());
    }
    let lengths: Vec<usize> = tokens.iter().map(ExactSizeIterator::len).collect();
    let mut advantages = vec![0f32; rewards.len()];
    let turns = Turns { rewards: &rewards, tokens: &lengths, offsets: &offsets };
    let group = cx.run.rollout.group_size as usize;
    compare_turns(how, &cx.objective.shaping, turns, group, &mut advantages)?;
    Ok(Some(Compared { tokens, advantages }))
}

impl Compared {
    /// Adds the advantage of each turn to those of its trained tokens, which have what is not compared: a KL.
    pub(crate) fn credit(&self, buffers: &mut StepBuffers) {
        for (tokens, advantage) in self.tokens.iter().zip(&self.advantages) {
            for t in tokens.clone().filter(|&t| buffers.mask[t] != 0.0) {
                buffers.advantages[t] += advantage;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_plan::StepArrays;

    #[test]
    fn every_trained_token_of_a_turn_has_its_advantage() {
        let mut buffers = StepBuffers::with_capacity(2, 4, StepArrays::default());
        buffers.begin([4, 3].into_iter());
        buffers.mask.copy_from_slice(&[1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
        buffers.advantages.fill(0.25);
        // The second sequence has a turn whose response is left out.
        let compared =
            Compared { tokens: vec![0..2, 3..4, 4..6, 6..7], advantages: vec![1.5, -0.5, 9.0, 2.0] };
        compared.credit(&mut buffers);
        assert_eq!(buffers.advantages, [1.75, 1.75, 0.25, -0.25, 0.25, 0.25, 2.25]);
    }
}
