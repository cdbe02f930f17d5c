//! The supervised step: the same packing, forward, backward and optimizer, with the log-likelihood as loss.

use crate::roles::{InOrder, Trainer, UpdateStats};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::supervised::{SftSums, sft_loss};
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::text::Item;
use plimsoll_plan::RoleName;
use plimsoll_run::ending::finite_loss;
use plimsoll_train::Sequence;

#[derive(Debug, Default)]
pub struct SftReport {
    pub sums: SftSums,
    pub update: UpdateStats,
    pub learning_rate: f64,
}

/// Makes one supervised step over rows with completions. `step` counts from 1.
pub(crate) fn sft_step(
    trainer: &mut Trainer<'_>,
    run: &RunSpec,
    items: &[Item],
    step: u32,
) -> Result<SftReport> {
    let sequences: Vec<Sequence<'_>> = items
        .iter()
        .enumerate()
        .map(|(group, item)| Sequence { group, prompt: &item.ids, response: &item.completion })
        .collect();
    trainer.arrays.begin(sequences.iter().map(|s| s.response.len()));
    items.iter().enumerate().for_each(|(sequence, item)| trainer.arrays.learn_only(sequence, &item.learnt));
    let (learnt, _) = trainer.arrays.trained(&(0..items.len())).expect("every row has a token to learn");
    let aggregation = Aggregation {
        kind: AggregationKind::TokenMean,
        total_tokens: learnt,
        total_sequences: sequences.len() as f64,
        length_norm: 1.0,
    };
    let how = run.train().update_options(step, run.seed);
    let mut sums = SftSums::default();
    let mut order = InOrder::from(0, |micro| sums.merge(micro));
    let update = trainer.update(
        RoleName::Actor,
        &sequences,
        0..sequences.len(),
        1.0,
        how,
        &mut |buffers, tokens| {
            let micro = buffers.micro_batch(tokens.clone());
            let sums = sft_loss(micro.packed, micro.logprobs, &aggregation, micro.d_logprobs);
            finite_loss(step, sums.loss)?;
            order.add(tokens, sums);
            Ok(())
        },
    )?;
    Ok(SftReport { sums, update, learning_rate: f64::from(how.lr) })
}
