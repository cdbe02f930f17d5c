//! A teacher that is a role of the run: the actor as it is, the actor as it was, or a model of its own.

use super::teacher::{ServerReport, Teacher};
use crate::arrays::TokenArrays;
use crate::methods::batch::Batch;
use crate::roles::Trainer;
use plimsoll_algo::divergence::listed_mass;
use plimsoll_base::Result;
use plimsoll_plan::RoleName;
use plimsoll_run::metrics::Metrics;

/// A role that scores the student's samples.
pub(super) struct RoleTeacher(pub(super) RoleName);

impl Teacher for RoleTeacher {
    fn score(
        &mut self,
        trainer: &mut Trainer<'_>,
        batch: &Batch<'_>,
        logprobs: &mut Vec<f32>,
    ) -> Result<Option<ServerReport>> {
        trainer.score_teacher(self.0, &batch.taught(), batch.inv_temperature, logprobs)?;
        Ok(None)
    }

    fn metrics(&self, tokens: &TokenArrays) -> Metrics {
        let lists = tokens.divergence.as_ref().filter(|of| of.per_token() > 0);
        let mass = lists.map(|of| listed_mass(tokens.packed(), of.per_token(), &of.teacher));
        mass.map(|mass| ("distill/top_k_mass".to_string(), mass)).into_iter().collect()
    }
}
