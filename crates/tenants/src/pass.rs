//! A request's passes: its sequences cut into micro-batches, forward, the loss of each, backward. The gradients of the
//! whole request are formed apart and then added, so a request that fails changes nothing.
//!
//! What neighbours begin with alike, as the samples of one prompt do, has rows once in each micro-batch.

use crate::alike::beginnings;
use crate::slots::InSlot;
use plimsoll_algo::sum_loss::SumLoss;
use plimsoll_base::{Error, Result};
use plimsoll_device::Device;
use plimsoll_memory::InPhase;
use plimsoll_model::{Activations, Adapters, Derivatives, ParamTable, Pass, backward, head, layers};
use plimsoll_plan::{PassShape, RoleName, RoleShape};
use plimsoll_tinker::{JobAnswer, TrainDatum, pass_loss};
use plimsoll_train::{HeadRow, Packer, Sequence, first_not_finite, gradient_not_finite};
use std::borrow::Cow;
use std::ops::Range;

/// What all passes that train share.
pub struct TrainingPasses<'x, 'p> {
    pub dev: &'x dyn Device,
    pub phase: &'x InPhase<'p>,
    pub shape: &'x RoleShape,
    pub table: &'x ParamTable,
    pub packer: &'x mut Packer,
}

/// A request's sequences with the loss over them.
#[derive(Clone, Copy)]
pub struct Request<'x> {
    pub datums: &'x [TrainDatum],
    pub loss: SumLoss,
    /// False to compute log-probabilities alone.
    pub gradients: bool,
}

/// Consecutive targets of each position of a datum, as many as one pass has rows for.
struct Piece<'x> {
    of: usize,
    /// The first of its targets at each position.
    first: usize,
    datum: Cow<'x, TrainDatum>,
}

/// Runs a request's passes over a model. Calls `between` after each micro-batch, when no pass is under way.
///
/// Errors: `sequence-too-long`, `loss-not-finite`, `gradient-not-finite`, those of the device and of `between`; the
/// model's gradients are then as they were.
pub fn run(
    passes: &mut TrainingPasses<'_, '_>,
    model: InSlot<'_, '_>,
    request: Request<'_>,
    between: &mut dyn FnMut() -> Result<()>,
) -> Result<JobAnswer> {
    let TrainingPasses { dev, phase, shape, table, packer } = passes;
    let PassShape { mode, limits, .. } = shape.update.expect("a plan that trains").pass;
    let pieces = pieces(request.datums, limits.head_rows);
    let (sequences, targets) = sequences(&pieces);
    let acts = Activations::bind(phase, mode, limits);
    let all = phase.buf(&format!("{}.grads", RoleName::Actor.name()));
    let grads = Adapters::bind(&shape.spec, table, shape.weights, model.lora.shape, model.scale, all);
    let mut logprobs: Vec<Vec<f32>> =
        request.datums.iter().map(|datum| vec![0.0; datum.targets.len()]).collect();
    let (mut numbers, mut slopes, zeros) = (Vec::new(), Vec::new(), vec![0.0; limits.head_rows]);
    if request.gradients {
        dev.zero(all);
    }
    let mut first = 0;
    while first < sequences.len() {
        let batch = packer.pack_targets(&sequences, &targets, first)?;
        let (which, rows) = (batch.sequences, batch.head.len());
        let heads = rows_of_targets(batch.head, &sequences, &targets, which.clone());
        let pass = Pass::upload(*dev, acts, batch.index);
        layers(*dev, &model.decoder, &pass);
        head(*dev, &model.decoder, &pass, 1.0);
        numbers.resize(rows, 0.0);
        dev.read_f32(pass.head_out().logprobs, 0, &mut numbers);
        slopes.clear();
        slopes.resize(rows, 0.0);
        for (piece, heads) in pieces[which.clone()].iter().zip(&heads) {
            let own = [heads.iter().map(|row| numbers[*row as usize]).collect()];
            if request.gradients {
                piece.slopes(&request.loss, &own, |at, d| slopes[heads[at] as usize] += d)?;
            }
            piece.put(&own[0], &mut logprobs[piece.of], request.datums[piece.of].width);
        }
        if request.gradients {
            let of = Derivatives::Vocabulary {
                inv_temperature: 1.0,
                logprobs: &slopes,
                entropy: &zeros[..rows],
                divergence: &[],
            };
            backward(*dev, &model.decoder, &grads, first > 0, &pass, of);
        }
        dev.check()?;
        first = which.end;
        between()?;
    }
    let metrics = pass_loss(&request.loss, request.datums, &logprobs).metrics;
    if request.gradients {
        if !model.optimizer.grad_norm(*dev, all).is_finite() {
            let broken = first_not_finite(*dev, table, model.optimizer.owned(), all);
            return Err(gradient_not_finite(table, broken));
        }
        dev.accumulate(all, model.sums, *model.has_sums);
        dev.sync();
        dev.check()?;
        *model.has_sums = true;
    }
    Ok(JobAnswer::Pass { logprobs, metrics })
}

/// Returns the datums, those with more targets than a pass has rows for in several pieces, whose losses add up.
fn pieces(datums: &[TrainDatum], rows: usize) -> Vec<Piece<'_>> {
    let mut all = Vec::with_capacity(datums.len());
    for (of, datum) in datums.iter().enumerate() {
        let columns = (rows / datum.tokens.len().max(1)).clamp(1, datum.width.max(1));
        if columns == datum.width {
            all.push(Piece { of, first: 0, datum: Cow::Borrowed(datum) });
            continue;
        }
        for first in (0..datum.width).step_by(columns) {
            let width = columns.min(datum.width - first);
            let part = |values: &[f32]| {
                values.chunks(datum.width).flat_map(|row| row[first..first + width].to_vec()).collect()
            };
            let targets =
                datum.targets.chunks(datum.width).flat_map(|row| row[first..first + width].to_vec());
            let piece = TrainDatum {
                tokens: datum.tokens.clone(),
                targets: targets.collect(),
                width,
                weights: part(&datum.weights),
                ..TrainDatum::default()
            };
            all.push(Piece { of, first, datum: Cow::Owned(piece) });
        }
    }
    all
}

/// Returns the rows of pieces, those of a group with what they share as their prompt, and what they predict.
fn sequences<'x>(pieces: &'x [Piece<'_>]) -> (Vec<Sequence<'x>>, Vec<&'x [u32]>) {
    let tokens: Vec<&[u32]> = pieces.iter().map(|piece| &piece.datum.tokens[..]).collect();
    let can_share = |index: usize| pieces[index].datum.width == 1;
    let all = beginnings(&tokens, &can_share).into_iter().zip(&tokens).map(|(begin, tokens)| {
        let (prompt, response) = tokens.split_at(begin.tokens);
        Sequence { group: begin.group, prompt, response }
    });
    (all.collect(), pieces.iter().map(|piece| &piece.datum.targets[..]).collect())
}

/// Returns the head row of each target of the sequences `which`, whose micro-batch has these.
fn rows_of_targets(
    head: &[HeadRow],
    sequences: &[Sequence<'_>],
    targets: &[&[u32]],
    which: Range<usize>,
) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = Vec::with_capacity(which.len());
    let (mut own, mut root) = (head.iter().zip(0..).peekable(), which.start);
    for index in which.clone() {
        if sequences[index].group != sequences[root].group {
            root = index;
        }
        // A target that is shared has the head row of the first sequence, and its index there.
        let mut rows = if root == index { Vec::new() } else { all[root - which.start].clone() };
        rows.resize(targets[index].len(), 0);
        while let Some((head, row)) = own.next_if(|(head, _)| head.sequence as usize == index) {
            rows[head.token as usize] = row;
        }
        all.push(rows);
    }
    all
}

impl Piece<'_> {
    /// Copies its targets' numbers to their places among those of its datum, which has `width` at each position.
    fn put(&self, numbers: &[f32], to: &mut [f32], width: usize) {
        let own = self.datum.width;
        for (to, from) in to.chunks_mut(width).zip(numbers.chunks(own)) {
            to[self.first..self.first + own].copy_from_slice(from);
        }
    }

    /// Calls `each` with the derivatives of the loss by its log-probabilities, one for each target.
    ///
    /// Errors: `loss-not-finite`, as gradients would be none.
    fn slopes(
        &self,
        loss: &SumLoss,
        logprobs: &[Vec<f32>; 1],
        mut each: impl FnMut(usize, f32),
    ) -> Result<()> {
        let of = pass_loss(loss, std::slice::from_ref(&*self.datum), logprobs);
        for (at, d) in of.d_logp[0].iter().enumerate() {
            if !d.is_finite() {
                let (datum, position) = (self.of, at / self.datum.width);
                let message = format!(
                    "datum {datum}, position {position}: the derivative of the loss by the log-probability is {d}"
                );
                return Err(Error::new("loss-not-finite", message).hint(
                    "the log-probabilities that were sent, or the advantages, are too far from the model's",
                ));
            }
            each(at, *d);
        }
        Ok(())
    }
}
