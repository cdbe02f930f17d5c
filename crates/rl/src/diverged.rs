//! The check that weights are usable: they are finite, and so are the numbers that they give.

use crate::roles::Trainer;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::Sampling;
use plimsoll_files::Head;
use plimsoll_infer::responder::Responder;
use plimsoll_plan::RoleName;
use plimsoll_ranks::Group;
use plimsoll_rollout::{NeverStop, Request};
use plimsoll_train::{Sequence, finite_weights};

/// Requires that every weight is finite and that a pass with them gives finite logits.
///
/// Errors: `model-weight-not-finite` names the tensor; `rollout-not-finite`. The samples of the last rollout are lost.
pub fn prove(trainer: &mut Trainer<'_>) -> Result<()> {
    let names: Vec<RoleName> = trainer.trained().map(|role| role.shape.name).collect();
    let [first, others @ ..] = &names[..] else { return Ok(()) };
    trainer.with_gathered(*first, finite_weights)?;
    for name in others {
        let sum = trainer.with_gathered(*name, |dev, _, weights| dev.sum_squares(weights));
        if !sum.is_finite() {
            let name = name.name();
            let message = format!("the {name}'s weights are not finite after an update");
            return Err(Error::new(slugs::MODEL_WEIGHT_NOT_FINITE, message)
                .hint(format!("lower {name}.learning_rate")));
        }
    }
    if trainer.sampler.shape.head == Head::Score {
        return prove_score(trainer);
    }
    let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
    let request = Request {
        prompts: &[&[0]],
        group_size: 1,
        max_new_tokens: 1,
        sampling,
        eos: &[],
        first_sample_id: 0,
        numbers: &[],
    };
    trainer.rollout(&request, &mut NeverStop).map(|_| ())
}

/// Requires a finite score of a reward model, which samples nothing.
fn prove_score(trainer: &mut Trainer<'_>) -> Result<()> {
    // Each rank checks alone: a rank with an error of its own does so without the others.
    let group = std::mem::replace(&mut trainer.group, Group::alone());
    let scores =
        trainer.reward_scores(RoleName::Reward(0), &[Sequence { group: 0, prompt: &[0], response: &[0] }]);
    trainer.group = group;
    let scores = scores?;
    if scores[0].is_finite() {
        Ok(())
    } else {
        Err(Error::new(slugs::LOSS_NOT_FINITE, format!("the score of a token is {}", scores[0]))
            .hint("lower train.learning_rate"))
    }
}
