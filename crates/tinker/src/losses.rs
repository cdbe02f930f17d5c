//! The losses that clients can ask for: their names, what each reads of a datum, its options; and one pass's loss from
//! log-probs, with the metrics that clients get.

use crate::job::{Metrics, TrainDatum};
use plimsoll_algo::sum_loss::{LossTotals, SumBatch, SumLoss, sum_loss};
use plimsoll_base::{Error, Result, nearest_name};

/// A loss that clients can name.
pub struct LossRow {
    pub name: &'static str,
    /// Inputs of a datum that must be there.
    pub needs: &'static [&'static str],
    /// Inputs that can be there.
    pub may: &'static [&'static str],
    /// Options with their defaults.
    pub options: &'static [(&'static str, f64)],
}

const RATIO: &[&str] = &["target_tokens", "logprobs", "advantages"];
const CLIP: &[(&str, f64)] = &[("clip_low_threshold", 0.8), ("clip_high_threshold", 1.2)];

pub const LOSSES: [LossRow; 6] = [
    LossRow { name: "cross_entropy", needs: &["target_tokens"], may: &["weights"], options: &[] },
    LossRow { name: "importance_sampling", needs: RATIO, may: &[], options: &[] },
    LossRow { name: "ppo", needs: RATIO, may: &[], options: CLIP },
    LossRow { name: "cispo", needs: RATIO, may: &[], options: CLIP },
    LossRow { name: "dro", needs: RATIO, may: &[], options: &[("beta", 0.05)] },
    LossRow {
        name: "gspo",
        needs: &["target_tokens", "logprobs", "advantages", "sequence_ratio_mask"],
        may: &[],
        options: CLIP,
    },
];

/// Finds a loss by its name.
///
/// Errors: `tinker-unknown-loss`.
pub fn find(name: &str) -> Result<&'static LossRow> {
    if let Some(row) = LOSSES.iter().find(|row| row.name == name) {
        return Ok(row);
    }
    let error = Error::new("tinker-unknown-loss", format!("there is no loss {name:?}"));
    let error = match name {
        "stable_reinforce" => error.hint(
            "its formula is not published: ask for importance_sampling (loss_fn=importance_sampling in the cookbook)",
        ),
        "custom" => error.hint("send custom losses as forward_backward_custom does without a server's own losses"),
        _ => match nearest_name(name, LOSSES.iter().map(|row| row.name)) {
            Some(near) => error.hint(format!("did you mean {near:?}?")),
            None => error,
        },
    };
    Err(error.hint(format!("the losses are {}", joined(LOSSES.iter().map(|row| row.name)))))
}

impl LossRow {
    /// Returns the loss with options that a client gave.
    ///
    /// Errors: `tinker-unknown-key` for an option that it has not; `tinker-bad-request` for a value that it cannot
    /// have.
    pub fn with(&self, given: &[(String, f64)]) -> Result<SumLoss> {
        for (key, value) in given {
            if !self.options.iter().any(|(name, _)| name == key) {
                return Err(self.unknown("option", key, self.options.iter().map(|(name, _)| *name)));
            }
            if !value.is_finite() || *value < 0.0 {
                let message =
                    format!("loss_fn_config {key} = {value} of {}: it is a number of 0 or more", self.name);
                return Err(Error::new("tinker-bad-request", message));
            }
        }
        let option = |name: &str| {
            let default = self.options.iter().find(|(key, _)| *key == name).map_or(0.0, |(_, value)| *value);
            given.iter().rev().find(|(key, _)| key == name).map_or(default, |(_, value)| *value)
        };
        let clip = [option("clip_low_threshold"), option("clip_high_threshold")];
        if clip[0] > clip[1] {
            let message = format!(
                "{} has the bounds {} to {}: the lower is above the upper",
                self.name, clip[0], clip[1]
            );
            return Err(Error::new("tinker-bad-request", message));
        }
        Ok(match self.name {
            "ppo" => SumLoss::Ppo { clip },
            "cispo" => SumLoss::Cispo { clip },
            "gspo" => SumLoss::Gspo { clip },
            "dro" => SumLoss::Dro { beta: option("beta") },
            "importance_sampling" => SumLoss::ImportanceSampling,
            _ => SumLoss::CrossEntropy,
        })
    }

    /// Refuses something that the loss does not have, with the names that it has.
    pub fn unknown(&self, what: &str, key: &str, known: impl Iterator<Item = &'static str> + Clone) -> Error {
        let error = Error::new(
            "tinker-unknown-key",
            format!("{} has no {what} {:?}", self.name, plimsoll_base::shown(key)),
        );
        let error = match nearest_name(key, known.clone()) {
            Some(near) => error.hint(format!("did you mean {near:?}?")),
            None => error,
        };
        if known.clone().next().is_none() {
            return error.hint(format!("{} has none", self.name));
        }
        error.hint(format!("it has {}", joined(known)))
    }
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// What a pass's loss was.
#[derive(Debug)]
pub struct PassLoss {
    /// [datum][N * width]: d loss / d log-prob.
    pub d_logp: Vec<Vec<f32>>,
    pub metrics: Metrics,
}

/// Computes the loss of a pass. `logprobs`: [datum][N * width], of the targets.
pub fn pass_loss(loss: &SumLoss, datums: &[TrainDatum], logprobs: &[Vec<f32>]) -> PassLoss {
    let mut totals = LossTotals::default();
    let mut all = Vec::with_capacity(datums.len());
    for (datum, logp) in datums.iter().zip(logprobs) {
        let batch = SumBatch {
            logp,
            weights: &datum.weights,
            old_logp: &datum.old_logp,
            advantages: &datum.advantages,
            ratio_mask: &datum.ratio_mask,
            seq_offsets: &[0, logp.len()],
        };
        let mut d_logp = vec![0.0; logp.len()];
        let one = sum_loss(loss, &batch, &mut d_logp);
        totals.loss += one.loss;
        totals.tokens += one.tokens;
        totals.clipped += one.clipped;
        totals.kl_to_old += one.kl_to_old;
        totals.ratios = [totals.ratios[0].min(one.ratios[0]), totals.ratios[1].max(one.ratios[1])];
        all.push(d_logp);
    }
    PassLoss { d_logp: all, metrics: metrics(loss, &totals) }
}

fn metrics(loss: &SumLoss, totals: &LossTotals) -> Metrics {
    let mut metrics = vec![("loss:sum".to_string(), totals.loss), ("tokens:sum".to_string(), totals.tokens)];
    if *loss != SumLoss::CrossEntropy && totals.tokens > 0.0 {
        metrics.push(("clipped_tokens:sum".into(), totals.clipped));
        metrics.push(("kl_sampler_trainer:sum".into(), totals.kl_to_old));
        metrics.push(("ratio:min".into(), totals.ratios[0]));
        metrics.push(("ratio:max".into(), totals.ratios[1]));
    }
    metrics
}
