//! The methods: policy methods with their actor and critic, preference pairs, and supervised completions.

pub mod actor;
pub mod batch;
mod correction;
mod covariance;
pub mod critic;
pub mod dpo;
pub mod estimator;
pub mod kto;
pub mod metrics;
pub mod pairs;
pub mod parts;
pub mod policy;
pub mod report;
pub mod reward_model;
pub mod sft;
mod sharp;
pub(crate) mod turns;

use crate::roles::Trainer;
use pairs::PairReport;
use plimsoll_base::Result;
use plimsoll_config::{Method, RunSpec};
use plimsoll_infer::text::Item;
use plimsoll_run::scores::PairScore;

pub struct PairMethod {
    pub method: Method,
    /// Makes one step, from 1, over some pairs: a single update.
    pub step: fn(&mut Trainer<'_>, &RunSpec, &[Item], u32) -> Result<PairReport>,
    /// Scores held-out pairs without an update.
    pub score: fn(&mut Trainer<'_>, &RunSpec, &[Item]) -> Result<PairScore>,
}

pub(crate) const PAIR_METHODS: &[PairMethod] = &[
    PairMethod { method: Method::Dpo, step: dpo::dpo_step, score: dpo::score_pairs },
    PairMethod { method: Method::Simpo, step: dpo::dpo_step, score: dpo::score_pairs },
    PairMethod { method: Method::Cpo, step: dpo::dpo_step, score: dpo::score_pairs },
    PairMethod { method: Method::Orpo, step: dpo::dpo_step, score: dpo::score_pairs },
    PairMethod { method: Method::Kto, step: kto::kto_step, score: kto::score_answers },
    PairMethod {
        method: Method::RewardModel,
        step: reward_model::reward_model_step,
        score: reward_model::score_pairs,
    },
];

impl PairMethod {
    /// Returns a method's row.
    ///
    /// # Panics
    /// If the method does not learn from pairs.
    pub fn of(method: Method) -> &'static PairMethod {
        PAIR_METHODS.iter().find(|row| row.method == method).expect("a method over pairs has a row")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_over_pairs_has_a_row() {
        for method in Method::ALL.into_iter().filter(|m| m.needs().learns_from.is_judged()) {
            assert_eq!(PairMethod::of(method).method, method);
        }
    }
}
