//! `loss.advantage = "python:FILE.py:FUNCTION"`: a function of the user's estimates the advantages of a step. Rank 0
//! calls it and gives all ranks what it returned, so a function that is not deterministic cannot part them.

use crate::arrays::TokenArrays;
use crate::methods::batch::Batch;
use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_ranks::Group;
use plimsoll_reward::{EstimatorInputs, EstimatorSpec, PythonEstimator, Words};
use std::time::Duration;

/// The function's worker.
pub struct UserEstimator {
    /// None on ranks other than 0.
    worker: Option<PythonEstimator>,
}

impl UserEstimator {
    /// Starts the worker of a run's function on rank 0; `None` for an advantage by name.
    ///
    /// Errors: `advantage-function-missing`, `advantage-worker-failed`.
    pub(crate) fn start(
        spec: Option<&EstimatorSpec>,
        rank: usize,
        words: Words,
        start_timeout: Option<Duration>,
    ) -> Result<Option<UserEstimator>> {
        let Some(spec) = spec else { return Ok(None) };
        let worker = match rank {
            0 => Some(PythonEstimator::start(spec, words, start_timeout)?),
            _ => None,
        };
        Ok(Some(UserEstimator { worker }))
    }

    /// Writes the advantages of the trained tokens into `buffers`; those of others are 0.
    ///
    /// `rewards`: [S], shaped; the function gets NaN in place of those without a score.
    /// Errors: `advantage-function-raised`, `advantage-bad-reply`, `advantage-worker-failed`; `rank-lost`.
    pub(crate) fn estimate(
        &mut self,
        batch: &Batch<'_>,
        mut rewards: Vec<f32>,
        run: &RunSpec,
        group: &Group,
        buffers: &mut TokenArrays,
    ) -> Result<()> {
        let own = self.worker.as_mut().map_or(Ok(Vec::new()), |worker| {
            let groups: Vec<usize> =
                batch.groups.iter().enumerate().flat_map(|(g, it)| vec![g; it.num_sequences()]).collect();
            let columns: Vec<_> = groups.iter().map(|&g| &*batch.groups[g].item.columns).collect();
            let turns = turns_of(batch, buffers);
            let scored: Vec<bool> =
                batch.groups.iter().flat_map(|group| &group.scored).map(|s| s.total.is_some()).collect();
            let without = rewards.iter_mut().zip(&batch.owners).filter(|(_, owner)| !scored[**owner]);
            without.for_each(|(reward, _)| *reward = f32::NAN);
            worker.estimate(&EstimatorInputs {
                rewards: &rewards,
                token_rewards: &buffers.token_rewards,
                mask: &buffers.mask,
                offsets: &buffers.offsets,
                samples: &batch.owners,
                groups: &groups,
                turns: &turns,
                logprobs: &buffers.old_logprobs,
                ref_logprobs: if run.objective().is_some_and(|objective| objective.kl.is_some()) {
                    &buffers.ref_logprobs
                } else {
                    &[]
                },
                columns: &columns,
                step: batch.step,
                seed: run.seed,
            })
        });
        let advantages = exchange(group, Kind::Advantages, own)?.swap_remove(0);
        let trained = advantages.iter().zip(&buffers.mask);
        buffers.advantages.clear();
        buffers
            .advantages
            .extend(trained.map(|(advantage, mask)| if *mask == 0.0 { 0.0 } else { *advantage }));
        Ok(())
    }
}

/// Returns the turn of each token of a step, -1 for tokens that the policy did not draw.
fn turns_of(batch: &Batch<'_>, buffers: &TokenArrays) -> Vec<i32> {
    let mut turns = vec![-1; buffers.mask.len()];
    for (s, offset) in batch.which.clone().zip(&buffers.offsets) {
        for (number, turn) in batch.samples.turns(s).iter().enumerate() {
            let tokens = turn.tokens();
            turns[offset + tokens.start..offset + tokens.end].fill(number as i32);
        }
    }
    turns
}
