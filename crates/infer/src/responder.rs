//! Holds what responds to prompts and scores responses: models of a command alone, or a trainer's during its run.

use crate::grading::{GradedRequest, Grading};
use crate::sampler::Sampler;
use crate::text::Item;
use plimsoll_base::Result;
use plimsoll_plan::RoleName;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Request, RolloutStats, StopCondition};
use plimsoll_train::Sequence;

pub trait Responder<'a> {
    fn sampler(&mut self) -> &mut Sampler<'a>;

    /// Samples responses into the sampler's `samples`.
    ///
    /// Errors: those of sampling.
    fn rollout(&mut self, request: &Request<'_>, stop: &mut dyn StopCondition) -> Result<RolloutStats>;

    /// Returns a reward model's score of each sequence, read at its last token.
    ///
    /// Errors: those of packing and of the device.
    fn reward_scores(&mut self, role: RoleName, sequences: &[Sequence<'_>]) -> Result<Vec<f32>>;

    /// Returns the optimizer updates of the weights that are sampled from.
    fn updates(&self) -> u64 {
        0
    }

    /// True if no other ranks take part of the prompts.
    fn is_alone(&self) -> bool {
        true
    }

    /// Samples and grades responses, those of all ranks if there are several. Returns their texts and scores.
    ///
    /// Errors: those of sampling and of the rewards.
    fn respond(
        &mut self,
        rewards: &mut Rewards,
        of: &GradedRequest<'_>,
    ) -> Result<(Vec<String>, Vec<Scored>)>;
}

/// Holds what one rank sampled and graded.
pub struct Graded {
    pub stats: RolloutStats,
    pub texts: Vec<String>,
    pub scored: Vec<Scored>,
}

impl Graded {
    /// Samples and grades responses to some items of a request, in the order of `request`. `sampled` is called when no
    /// more are sampled.
    ///
    /// Errors: those of sampling and of the rewards.
    pub fn sample<'a, 'i>(
        responder: &mut impl Responder<'a>,
        rewards: &mut Rewards,
        of: &GradedRequest<'_>,
        items: impl ExactSizeIterator<Item = &'i Item>,
        request: &Request<'_>,
        sampled: &mut dyn FnMut(),
    ) -> Result<Graded> {
        let mut grading = Grading::begin(rewards, of, items)?;
        let stats = responder.rollout(request, &mut grading)?;
        let texts = grading.texts();
        sampled();
        Ok(Graded { stats, texts, scored: rewards.finish()? })
    }
}
