//! Gradients of a script's own: given with the request, or asked for by micro-batch while its activations are there, so
//! that a loss of the script's own takes no second pass.

use super::fault::{Fault, Served, bad_array, bad_request};
use super::link::{Link, Numbers};
use super::room::{ScriptArrays, ScriptGradients};
use super::verbs::{LearnBy, Verb};
use crate::arrays::TokenArrays;
use crate::methods::actor::ActorSums;
use plimsoll_algo::entropy::entropy_bonus;
use plimsoll_algo::policy_loss::PolicySums;
use plimsoll_base::{Error, Result};
use plimsoll_config::Objective;
use serde_json::json;
use std::ops::Range;

/// The loss of a script's own, micro-batch by micro-batch.
pub(super) struct OwnLoss<'o> {
    pub by: LearnBy,
    pub link: &'o mut Link,
    /// Arrays of a question's answer, which has none but gradients.
    pub arrays: &'o mut ScriptArrays,
    pub gradients: &'o mut ScriptGradients,
    pub objective: &'o Objective,
    /// Trained tokens and sequences of the update.
    pub totals: (f64, f64),
    /// Why an answer was refused: of the request, and not of the run.
    pub refused: Option<Error>,
}

impl OwnLoss<'_> {
    /// Writes the derivatives for the tokens of a micro-batch, and returns its sums.
    ///
    /// Errors: `script-ended`; those of the answer, which `refused` then has too.
    pub(super) fn micro_batch(
        &mut self,
        buffers: &mut TokenArrays,
        tokens: Range<usize>,
    ) -> Result<ActorSums> {
        let value = match self.by {
            LearnBy::Questions => match self.ask(buffers, &tokens) {
                Ok(value) => value,
                Err(Fault::OfRun(error)) => return Err(error),
                Err(Fault::OfRequest(error)) => {
                    self.refused = Some(error.clone());
                    return Err(error);
                }
            },
            LearnBy::Arrays | LearnBy::Loss => 0.0,
        };
        let aggregation = self.objective.aggregation_of(self.totals.0, self.totals.1);
        let micro = buffers.micro_batch(tokens.clone());
        let entropy = entropy_bonus(0.0, micro.packed, micro.entropy, &aggregation, micro.d_entropy);
        let mut sums = PolicySums { loss: value, ..PolicySums::default() };
        let given = match self.by {
            LearnBy::Questions => 0..tokens.len(),
            LearnBy::Arrays | LearnBy::Loss => tokens.clone(),
        };
        for (t, at) in given.enumerate() {
            let trained = micro.packed.mask[t] != 0.0;
            let of = |numbers: &[f32]| numbers.get(at).copied().filter(|_| trained).unwrap_or(0.0);
            micro.d_logprobs[t] = of(&self.gradients.logprobs);
            micro.d_entropy[t] = of(&self.gradients.entropy);
            if trained {
                let log_ratio = f64::from(micro.logprobs[t]) - f64::from(micro.old_logprobs[t]);
                let ratio = plimsoll_base::math::exp(log_ratio);
                sums.tokens += 1.0;
                sums.kl_to_old -= log_ratio;
                sums.ratios += ratio;
                (sums.ratio_min, sums.ratio_max) = (sums.ratio_min.min(ratio), sums.ratio_max.max(ratio));
            }
        }
        Ok(ActorSums { policy: sums, entropy, ..ActorSums::default() })
    }

    /// Asks for the gradients of a micro-batch, and returns its part of the loss.
    fn ask(&mut self, buffers: &TokenArrays, tokens: &Range<usize>) -> Served<f64> {
        let numbers = [
            ("logprobs", Numbers::F32(vec![&buffers.logprobs[tokens.clone()]])),
            ("entropy", Numbers::F32(vec![&buffers.entropy[tokens.clone()]])),
        ];
        let question = json!({ "ask": "gradients", "start": tokens.start, "end": tokens.end });
        self.link.answer(question, &numbers)?;
        let value = match self.link.request((self.arrays, self.gradients))? {
            Verb::Gradients { loss } => loss.unwrap_or(0.0),
            Verb::Abandon {} => {
                return Err(bad_request("the script's loss raised an error", "its traceback says which"));
            }
            _ => {
                return Err(bad_request(
                    "a question for gradients has another answer",
                    "answer with gradients",
                ));
            }
        };
        check(self.gradients, tokens.len(), &buffers.mask[tokens.clone()])?;
        Ok(if value.is_finite() { value } else { 0.0 })
    }
}

/// Requires finite gradients, one for each of `tokens`.
pub(super) fn check(gradients: &ScriptGradients, tokens: usize, mask: &[f32]) -> Served<()> {
    one_each("gradients", &gradients.logprobs, tokens, mask)?;
    if gradients.entropy.is_empty() {
        return Ok(());
    }
    one_each("entropy_gradients", &gradients.entropy, tokens, mask)
}

/// Requires a number for each of `tokens`, finite where the mask is not 0.
pub(super) fn one_each(name: &str, numbers: &[f32], tokens: usize, mask: &[f32]) -> Served<()> {
    if numbers.len() != tokens {
        return Err(bad_array(name, format!("{} entries for {tokens} tokens", numbers.len())));
    }
    let broken = numbers.iter().zip(mask).position(|(number, mask)| *mask != 0.0 && !number.is_finite());
    match broken {
        Some(at) => Err(bad_array(name, format!("entry {at} is {}", numbers[at]))),
        None => Ok(()),
    }
}
