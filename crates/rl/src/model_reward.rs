//! A reward model of the run's own (`[[reward]] kind = "model"`): its weights lie beside the actor's, and it scores prompt and
//! response behind each rollout, in a phase of its own. It is never trained.

use crate::dataset::Item;
use crate::trainer::{Trainer, enter, rehearse_passes};
use crate::value_passes::ValuePasses;
use plimsoll_base::{Error, Phase, Result};
use plimsoll_config::Reward;
use plimsoll_files::OpenModel;
use plimsoll_model::{Activations, Decoder, Mode, Params, layers, load, values};
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::Samples;
use plimsoll_train::{Heads, Packing, Sequence};

/// Its name in metrics.
const NAME: &str = "model";
/// A score a response, read at its last token.
const PACKING: Packing = Packing { heads: Heads::End, whole_groups: false };

/// Where the reward model's score stands among the rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelReward {
    /// Its place in the run file.
    index: usize,
    weight: f64,
}

/// The names of a run's rewards in metrics, in the order of their scores.
pub fn names<'n>(rewards: &'n Rewards, of: &[Reward]) -> Vec<&'n str> {
    names_with(rewards, ModelReward::of(of))
}

/// The same where it is known which of them is a model.
pub fn names_with(rewards: &Rewards, model: Option<ModelReward>) -> Vec<&str> {
    let mut names = rewards.names();
    if let Some(model) = model {
        names.insert(model.index, NAME);
    }
    names
}

impl ModelReward {
    /// That of a run's rewards, if one is a model.
    pub fn of(rewards: &[Reward]) -> Option<ModelReward> {
        let index = rewards.iter().position(Reward::is_model)?;
        Some(ModelReward { index, weight: rewards[index].weight })
    }

    /// Scores the responses of the last rollout, `group` to each item, and adds them to the other rewards' scores.
    ///
    /// Errors: `reward-not-finite`; those of the device.
    pub fn add(
        &self,
        trainer: &mut Trainer<'_>,
        items: &[Item],
        group: usize,
        scored: &mut [Scored],
    ) -> Result<()> {
        let samples = std::mem::replace(&mut trainer.samples, Samples::with_capacity(0, 1));
        let sequence =
            |s: usize| Sequence { group: s / group, prompt: &items[s / group].ids, response: samples.ids(s) };
        let sequences: Vec<Sequence<'_>> = (0..samples.len()).map(sequence).collect();
        let scores = trainer.reward_scores(&sequences);
        drop(sequences);
        trainer.samples = samples;
        for (sample, (one, score)) in scored.iter_mut().zip(scores?).enumerate() {
            let weighted = (f64::from(score) * self.weight) as f32;
            if !weighted.is_finite() {
                let message = format!("the reward model gave {score} for sample {sample}");
                return Err(Error::new("reward-not-finite", message)
                    .hint("check its weights, and the weight of the reward"));
            }
            one.parts.insert(self.index, Some(score));
            one.total = Some(one.total.unwrap_or(0.0) + weighted);
        }
        Ok(())
    }
}

impl<'a> Trainer<'a> {
    /// Binds the reward model that the run's shape has, and reads it from `model`. Does nothing where there is none.
    ///
    /// Errors: those of reading weights.
    pub fn bind_reward(&mut self, model: Option<&OpenModel>, seed: u64) -> Result<()> {
        let (Some(table), Some(spec), Some(model)) =
            (self.shape.reward_table(), self.shape.training.and_then(|t| t.reward), model)
        else {
            return Ok(());
        };
        let (dev, dtype) = (self.dev, self.shape.weights);
        let params = Params::bind(&spec, &table, dtype, self.resident.buf("reward.weights"));
        load(dev, model, &table, &params, seed, self.shape.host.staging)?;
        self.roles.reward = Some(Decoder { spec, dtype, params, rope: self.rope_of("reward", &spec) });
        Ok(())
    }

    /// Sum of squares of the reward model's weights, if there is one: another model has another.
    pub fn reward_sum(&self) -> Option<f64> {
        self.roles.reward.as_ref().map(|reward| self.dev.sum_squares(reward.params.all))
    }

    /// The reward model's part of `rehearse`.
    pub(crate) fn rehearse_reward(&mut self) -> Result<()> {
        let (dev, Some(reward)) = (self.dev, &self.roles.reward) else { return Ok(()) };
        let phase = enter(dev, &mut self.overlay, Phase::Reward);
        let acts = Activations::bind(&phase, Mode::Reward, self.shape.reward_pass());
        rehearse_passes(dev, acts, self.shape, self.shape.reward_pass(), &mut |pass, _| {
            layers(dev, reward, pass);
            values(dev, reward, pass);
        })
    }

    /// The reward model's score of each sequence, read at its last token: phase Reward.
    fn reward_scores(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<f32>> {
        let dev = self.dev;
        let decoder = self.roles.reward.as_ref().expect("a run with a reward model binds it");
        let phase = enter(dev, &mut self.overlay, Phase::Reward);
        let acts = Activations::bind(&phase, Mode::Reward, self.shape.reward_pass());
        let packer = self.packer.as_mut().expect("a training run packs");
        let mut scores = vec![0f32; sequences.len()];
        let mut passes = ValuePasses { dev, decoder, acts, packer, packing: PACKING };
        passes.score(sequences, &mut |batch, values| dev.read_f32(values, 0, &mut scores[batch]))?;
        Ok(scores)
    }
}
