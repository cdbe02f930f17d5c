//! The reports of a step and of an evaluation over pairs of answers.

use crate::roles::UpdateStats;
use plimsoll_algo::preference::PairSums;
use plimsoll_run::scores::PairScore;

#[derive(Debug, Default)]
pub struct PairReport {
    pub sums: PairSums,
    /// Mean summed log-probs of the chosen and the rejected answers; none for scores.
    pub logps: Option<[f64; 2]>,
    /// The KL that labelled answers are compared with; none for pairs.
    pub kl: Option<f64>,
    pub update: UpdateStats,
    pub learning_rate: f64,
}

/// Returns the score over the sums of all pairs.
pub(crate) fn pair_score(sums: &PairSums) -> PairScore {
    let (accuracy, margin) = (sums.accuracy(), sums.mean_margin());
    PairScore { accuracy, margin, loss: sums.loss, num_pairs: sums.pairs as usize }
}
