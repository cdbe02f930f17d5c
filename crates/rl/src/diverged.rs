//! Handling of numbers that stop being finite: names the tensor, and checks which weights are still usable. It repairs
//! nothing: a run that diverged ends.

use crate::roles::Trainer;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::Sampling;
use plimsoll_files::Head;
use plimsoll_model::Param;
use plimsoll_rollout::{NeverStop, Request};
use plimsoll_train::Sequence;

/// Adds the tensor that grew most to an error of a divergence.
pub fn name_tensor(trainer: &Trainer<'_>, error: Error) -> Error {
    let role = trainer.first();
    let rms = |p: &Param| (role.sum_squares_of(trainer.dev, p) / p.elements as f64).sqrt();
    let sized = role.table.params.iter().map(|p| (p, rms(p)));
    // NaN sorts above every number.
    let Some((param, rms)) = sized.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) else { return error };
    error.fact(format!("largest weights: `{}`, root mean square {rms:.3e}", param.parts[0].name))
}

/// Requires that every weight is finite and that a pass with them gives finite logits.
///
/// Errors: `model-weight-not-finite` names the tensor; `rollout-not-finite`. The samples of the last rollout are lost.
pub fn prove(trainer: &mut Trainer<'_>) -> Result<()> {
    let first = trainer.first();
    let broken = first.table.params.iter().find(|p| !first.sum_squares_of(trainer.dev, p).is_finite());
    if let Some(param) = broken {
        let message = format!("tensor `{}` is not finite after an update", param.parts[0].name);
        return Err(Error::new(slugs::MODEL_WEIGHT_NOT_FINITE, message).hint("lower train.learning_rate"));
    }
    for role in trainer.trained().skip(1) {
        if !trainer.dev.sum_squares(role.decoder().params.all).is_finite() {
            let name = role.shape.name.name();
            let message = format!("the {name}'s weights are not finite after an update");
            return Err(Error::new(slugs::MODEL_WEIGHT_NOT_FINITE, message)
                .hint(format!("lower {name}.learning_rate")));
        }
    }
    if trainer.shape.head == Head::Score {
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
    };
    trainer.rollout(&request, &mut NeverStop).map(|_| ())
}

/// Requires a finite score of a reward model, which samples nothing.
fn prove_score(trainer: &mut Trainer<'_>) -> Result<()> {
    let scores = trainer.reward_scores(&[Sequence { group: 0, prompt: &[0], response: &[0] }])?;
    match scores[0].is_finite() {
        true => Ok(()),
        false => Err(Error::new(slugs::LOSS_NOT_FINITE, format!("the score of a token is {}", scores[0]))
            .hint("lower train.learning_rate")),
    }
}
