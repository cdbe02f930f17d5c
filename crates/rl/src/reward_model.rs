//! Training a reward model: a decoder's body and one linear map, whose value at a text's last token is its score.

use crate::buffers::StepBuffers;
use crate::dataset::Item;
use crate::pairs::{PairReport, pair_score, sequences};
use crate::trainer::{Trainer, enter};
use crate::value_passes::ValuePasses;
use plimsoll_algo::preference::{PairSums, reward_model_loss};
use plimsoll_base::{Phase, Result};
use plimsoll_config::RunFile;
use plimsoll_model::Activations;
use plimsoll_run::ending::loss_not_finite;
use plimsoll_run::scores::PairScore;
use plimsoll_train::Sequence;
use std::ops::Range;

/// One step over pairs: a single update. `step` counts from 1.
///
/// Errors: `loss-not-finite`, `gradient-not-finite`; those of the device.
pub fn reward_model_step(
    trainer: &mut Trainer<'_>,
    run: &RunFile,
    items: &[Item],
    step: u32,
) -> Result<PairReport> {
    let sequences = sequences(items);
    let pairs = items.len() as f64;
    let how = run.train.update_options(step, run.seed);
    let mut sums = PairSums::default();
    let mut of_micro_batch = |buffers: &mut StepBuffers, entries: Range<usize>| -> Result<()> {
        let items = &items[entries.start / 2..entries.end / 2];
        let critic = &mut buffers.critic;
        let micro = pair_loss(items, &critic.values[entries.clone()], pairs, &mut critic.d_values[entries]);
        if !micro.loss.is_finite() {
            return Err(loss_not_finite(step, micro.loss));
        }
        sums.merge(micro);
        Ok(())
    };
    let update = trainer.update_scores(&sequences, &mut of_micro_batch)?;
    let update = trainer.apply(update, how)?;
    Ok(PairReport { sums, logps: None, update, learning_rate: f64::from(how.lr) })
}

/// Accuracy, margin and loss over held-out pairs, without an update.
pub fn score_pairs(trainer: &mut Trainer<'_>, run: &RunFile, items: &[Item]) -> Result<PairScore> {
    let mut sums = PairSums::default();
    let mut scores = Vec::with_capacity(run.sequences_per_step() as usize);
    for items in items.chunks(run.rollout.prompts_per_step as usize) {
        trainer.scores(&sequences(items), &mut scores)?;
        sums.merge(pair_loss(items, &scores, 1.0, &mut vec![0.0; scores.len()]));
    }
    sums.loss /= sums.pairs.max(1.0);
    Ok(pair_score(&sums))
}

/// The loss of pairs whose scores stand beside each other, chosen first; writes its derivatives, [2 P].
fn pair_loss(items: &[Item], scores: &[f32], total_pairs: f64, d_scores: &mut [f32]) -> PairSums {
    assert_eq!(scores.len(), 2 * items.len(), "a pair's halves stand in one micro-batch");
    let half = |which: usize| -> Vec<f32> { scores.iter().skip(which).step_by(2).copied().collect() };
    let margins: Vec<f32> = items.iter().map(|item| item.margin).collect();
    let mut d = [vec![0f32; items.len()], vec![0f32; items.len()]];
    let [d_chosen, d_rejected] = &mut d;
    let sums = reward_model_loss(&half(0), &half(1), Some(&margins), total_pairs, d_chosen, d_rejected);
    for (i, d_score) in d_scores.iter_mut().enumerate() {
        *d_score = d[i % 2][i / 2];
    }
    sums
}

impl Trainer<'_> {
    /// The score of each sequence under the reward model that is trained, into `out`: phase Update.
    ///
    /// Errors: those of the device.
    pub fn scores(&mut self, sequences: &[Sequence<'_>], out: &mut Vec<f32>) -> Result<()> {
        let dev = self.dev;
        let phase = enter(dev, &mut self.overlay, Phase::Update);
        let acts = Activations::bind(&phase, self.shape.update_mode(), self.shape.pass());
        let packing = self.shape.training.expect("a training run").packing;
        let packer = self.packer.as_mut().expect("a training run packs");
        out.clear();
        out.resize(sequences.len(), 0.0);
        let mut passes = ValuePasses { dev, decoder: &self.roles.actor, acts, packer, packing };
        passes.score(sequences, &mut |batch, scores| dev.read_f32(scores, 0, &mut out[batch]))
    }

    /// Gradients of all sequences, from zero: phase Update. `loss` finds a micro-batch's scores in `buffers.critic.values`,
    /// an entry a sequence, and fills `buffers.critic.d_values`.
    fn update_scores(
        &mut self,
        sequences: &[Sequence<'_>],
        loss: &mut dyn FnMut(&mut StepBuffers, Range<usize>) -> Result<()>,
    ) -> Result<crate::trainer::UpdateStats> {
        self.buffers.begin(sequences.iter().map(|_| 1));
        let phase = enter(self.dev, &mut self.overlay, Phase::Update);
        let acts = Activations::bind(&phase, self.shape.update_mode(), self.shape.pass());
        let packing = self.shape.training.expect("a training run").packing;
        let packer = self.packer.as_mut().expect("a training run packs");
        let optimizer = self.roles.optimizer.as_ref().expect("a training run has an optimizer");
        let mut passes = ValuePasses { dev: self.dev, decoder: &self.roles.actor, acts, packer, packing };
        passes.gradients(&optimizer.grads, &mut self.buffers, sequences, 0..sequences.len(), loss)
    }
}
