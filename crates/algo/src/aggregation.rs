//! Averages per-token losses: the weight of a token in the loss of an optimizer step.
//!
//! Totals are global over the step and all ranks, so the gradient does not depend on how the step is cut into
//! micro-batches: a token's weight is a function of its own sequence and the totals, never of its batch mates. A
//! sequence must not be cut between micro-batches.

use crate::packed::{self, Packed};

plimsoll_base::names! {
    /// The ways to average token losses over an optimizer step.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    AggregationKind {
        /// sum(l m) / N_tok.
        #[default]
        TokenMean = "token_mean",
        /// Mean over sequences of the mean over their tokens (original GRPO).
        SeqMeanTokenMean = "seq_mean_token_mean",
        /// Mean over sequences of the sum over their tokens.
        SeqMeanTokenSum = "seq_mean_token_sum",
        /// Mean over sequences of the sum over their tokens, divided by a constant length (Dr.GRPO).
        SeqMeanTokenSumNorm = "seq_mean_token_sum_norm",
        /// sum(l m).
        TokenSum = "token_sum",
    }
}

/// An aggregation with its totals, global over the whole optimizer step and all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregation {
    /// The kind of average.
    pub kind: AggregationKind,
    /// N_tok: the sum of the loss mask over the step.
    pub total_tokens: f64,
    /// N_seq: sequences of the step with at least one trained token.
    pub total_sequences: f64,
    /// The constant length of `SeqMeanTokenSumNorm`, usually `max_new_tokens`; other kinds do not read it.
    pub length_norm: f64,
}

impl Aggregation {
    /// Returns the aggregation of a step that consists of this one batch.
    pub fn of_batch(kind: AggregationKind, batch: Packed<'_>, length_norm: f64) -> Aggregation {
        let (total_tokens, total_sequences) = (batch.count_tokens(), batch.count_sequences());
        Aggregation { kind, total_tokens, total_sequences, length_norm }
    }

    /// Returns the weight of each trained token of a sequence with the mask `seq_mask`.
    pub fn token_weight(&self, seq_mask: &[f32]) -> f64 {
        match self.kind {
            AggregationKind::TokenMean => 1.0 / self.total_tokens,
            AggregationKind::SeqMeanTokenMean => 1.0 / (self.total_sequences * packed::sum(seq_mask)),
            AggregationKind::SeqMeanTokenSum => 1.0 / self.total_sequences,
            AggregationKind::SeqMeanTokenSumNorm => 1.0 / (self.total_sequences * self.length_norm),
            AggregationKind::TokenSum => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_token() {
        let mask = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0];
        let batch = Packed { mask: &mask, seq_offsets: &[0, 3, 4, 6] }; // the last sequence has no trained token
        let check = |kind, seq: std::ops::Range<usize>, expect: f64| {
            let agg = Aggregation::of_batch(kind, batch, 8.0);
            assert_eq!(agg.token_weight(&mask[seq]), expect, "{kind:?}");
        };
        check(AggregationKind::TokenMean, 0..3, 1.0 / 3.0);
        check(AggregationKind::SeqMeanTokenMean, 0..3, 1.0 / 4.0);
        check(AggregationKind::SeqMeanTokenMean, 3..4, 1.0 / 2.0);
        check(AggregationKind::SeqMeanTokenSum, 0..3, 1.0 / 2.0);
        check(AggregationKind::SeqMeanTokenSumNorm, 0..3, 1.0 / 16.0);
        check(AggregationKind::TokenSum, 0..3, 1.0);
    }

    #[test]
    fn names_are_those_of_serde() {
        for kind in AggregationKind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("a unit variant"), kind.name());
        }
    }
}
