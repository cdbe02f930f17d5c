//! The loop over an update's micro-batches: forward, loss, backward. A rank alone accumulates gradients in the products
//! that compute them. Several ranks take one micro-batch each per round, and `chained` adds their gradients.

use super::chained::{Chain, Round};
use super::role::{Loss, LossFor, LossOf, Role, UpdateStats};
use super::update::{Update, rows_of};
use crate::methods::buffers::StepBuffers;
use crate::ranks::{gather_f32, gather_f64};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::Device;
use plimsoll_files::Head;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{Activations, ExpertLoad, ExpertUse, Pass, PassIndex, backward, layers};
use plimsoll_plan::UpdateShape;
use plimsoll_ranks::Group;
use plimsoll_train::{Packer, Units};
use std::ops::Range;
use std::time::Instant;

impl Role<'_> {
    /// Computes the gradients of some sequences, from zero. With a group, returns this rank's part of the sum; every
    /// rank then computes the loss of every micro-batch from exchanged numbers, so that all have the same sums.
    ///
    /// Errors: `loss-not-finite`; `rank-lost`; those of packing and of the device.
    pub(super) fn gradients<'p>(
        &self,
        (dev, teacher): (&dyn Device, Option<&Role<'_>>),
        phase: &InPhase<'p>,
        packer: &mut Packer,
        buffers: &mut StepBuffers,
        of: LossOf<'_, '_>,
        group: Option<&Group>,
    ) -> Result<(Buf<'p>, UpdateStats)> {
        let UpdateShape { pass, cut, .. } = self.update_shape();
        let units = Units { packing: pass.packing, hidden: u64::from(self.shape.spec.hidden) };
        packer.cut(cut, units, of.sequences, of.which.clone())?;
        let rows = packer.rows_of_sequences(pass.packing.heads, of.sequences, of.which.start);
        let layers = self.layers(dev, phase);
        let teacher =
            self.teacher_head((dev, phase), teacher, &*layers, buffers.divergence.how, of.inv_temperature);
        let update = Update {
            dev,
            role: self,
            layers,
            teacher,
            acts: Activations::bind(phase, pass.mode, pass.limits),
            grads: self.bind_gradients(phase),
            partial: self.partial(phase),
            inv_temperature: of.inv_temperature,
            balance: self.balance_factor(rows),
            sequence_rows: rows,
        };
        let chain = group.map(|group| Chain::bind(&update, phase, group));
        let sum = chain.as_ref().map_or_else(|| update.grads.all(), |chain| chain.sum.shard);
        // After an error that all ranks meet, work put aside may still be running, in memory that other phases share.
        let settle = |err: &Error| {
            if slugs::OF_ALL_RANKS.contains(&err.slug) {
                dev.sync();
            }
        };
        let stats = update.rounds(chain.as_ref(), packer, buffers, of).inspect_err(settle)?;
        Ok((sum, stats))
    }

    /// Returns the derivative of the balance loss, a mean over layers and the rows of sequences, by the probability of
    /// an expert that all rows of its segment chose.
    fn balance_factor(&self, rows: u64) -> f32 {
        let mut layers = self.shape.spec.each_layer();
        let Some(experts) = layers.find_map(|layer| layer.experts()) else { return 0.0 };
        let numbers = rows.max(1) as f64 * f64::from(self.shape.spec.expert_layers());
        (self.update_shape().balance_coef * f64::from(experts.count) / numbers) as f32
    }

    /// Computes the loss of a micro-batch whose numbers are in the buffers.
    fn loss(
        &self,
        buffers: &mut StepBuffers,
        of: &Range<usize>,
        loss: &mut Loss<'_>,
        what_for: LossFor,
    ) -> Result<()> {
        buffers.set_micro(of);
        let tokens = buffers.tokens(of);
        loss(buffers, tokens, what_for)
    }

    /// Returns what the other ranks need of a micro-batch: its row count, the head's outputs and, for a vocabulary
    /// head, the entropies and the divergences, if there are any.
    fn numbers(&self, buffers: &StepBuffers, of: &Range<usize>, rows: usize) -> Vec<f32> {
        let tokens = buffers.tokens(of);
        let divergence = &buffers.divergence;
        let (values, entropies, divergences): (_, &[f32], &[f32]) = match self.shape.head {
            Head::Vocabulary => (
                &buffers.logprobs[tokens.clone()],
                &buffers.entropy[tokens.clone()],
                &divergence.values[divergence.of(tokens)],
            ),
            Head::Score => (&buffers.critic.values[tokens], &[], &[]),
        };
        [&[f32::from_bits(rows as u32)], values, entropies, divergences].concat()
    }

    /// Copies the `numbers` of a micro-batch to the buffers.
    fn take(&self, buffers: &mut StepBuffers, of: &Range<usize>, numbers: &[f32]) {
        let tokens = buffers.tokens(of);
        let (values, others) = numbers[1..].split_at(tokens.len());
        match self.shape.head {
            Head::Vocabulary => {
                let (entropies, divergences) = others.split_at(tokens.len());
                buffers.logprobs[tokens.clone()].copy_from_slice(values);
                buffers.entropy[tokens.clone()].copy_from_slice(entropies);
                let to = buffers.divergence.of(tokens);
                buffers.divergence.values[to].copy_from_slice(divergences);
            }
            Head::Score => buffers.critic.values[tokens].copy_from_slice(values),
        }
    }
}

impl<'x, 'p: 'x> Update<'x, '_, 'p> {
    /// Runs all micro-batches in rounds of one per rank.
    fn rounds(
        &self,
        chain: Option<&Chain<'_, '_, '_, 'p>>,
        packer: &mut Packer,
        buffers: &mut StepBuffers,
        of: LossOf<'_, '_>,
    ) -> Result<UpdateStats> {
        let Update { dev, role, .. } = *self;
        let LossOf { sequences, which, loss, .. } = of;
        let shape = role.update_shape().pass;
        let (mut stats, count) = (UpdateStats::default(), packer.num_micro_batches());
        self.begin(chain, count);
        let (rank, ranks) = chain.map_or((0, 1), |chain| (chain.group.rank(), chain.group.ranks()));
        let mut load = ExpertLoad::of(&role.shape.spec);
        for first in (0..count).step_by(ranks) {
            let started = Instant::now();
            let round = first..(first + ranks).min(count);
            let batches: Vec<Range<usize>> =
                round.map(|index| packer.sequences(which.start, index)).collect();
            let (own, mut pass, mut rows) = (batches.get(rank), None, 0);
            if let Some(own) = own {
                let batch = packer.micro_batch(shape.packing, sequences, own.start, first + rank)?;
                rows = batch.index.ids.len();
                pass = Some(self.forward(batch.index, buffers, own, chain)?);
                match chain {
                    None => role.loss(buffers, own, loss, LossFor::Sums)?,
                    // An error is met again below, where every rank computes all losses.
                    Some(_) => drop(role.loss(buffers, own, loss, LossFor::Derivatives)),
                }
            } else if let Some(chain) = chain {
                chain.settle()?;
            }
            stats.forward_s += started.elapsed().as_secs_f64();
            let started = Instant::now();
            let round = chain.map(|chain| Round { chain, ranks: batches.len(), first, count });
            match (&round, own.zip(pass.as_ref())) {
                (Some(round), own) => round.backward(buffers, own),
                (None, Some((own, pass))) => {
                    let of = self.derivatives(buffers, own);
                    backward(dev, &*self.layers, self.grads.to(), first > 0, pass, of);
                }
                (None, None) => unreachable!("a rank alone has every micro-batch"),
            }
            for (load, pass) in load.iter_mut().zip(&pass) {
                pass.add_load(dev, load);
            }
            if let Some(round) = round {
                // Cards compute during this exchange.
                let numbers = own.map_or(vec![0.0], |own| role.numbers(buffers, own, rows));
                let all = gather_f32(round.chain.group, &numbers)?;
                for (batch, numbers) in batches.iter().zip(&all) {
                    role.take(buffers, batch, numbers);
                    role.loss(buffers, batch, loss, LossFor::Sums)?;
                }
                rows = all.iter().take(batches.len()).map(|numbers| rows_of(numbers)).sum();
                round.end(&all)?;
            }
            stats.micro_batches += batches.len() as u32;
            stats.rows += rows as u64;
            stats.backward_s += started.elapsed().as_secs_f64();
        }
        let started = Instant::now();
        stats.experts = self.used(chain, load)?;
        stats.backward_s += started.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// Prepares the gradients to which the first of `count` micro-batches is added.
    fn begin(&self, chain: Option<&Chain<'_, '_, '_, 'p>>, count: usize) {
        match chain {
            None if count == 0 => self.dev.zero(self.grads.all()),
            None => self.role.trained().begin_gradients(self.dev, self.partial),
            Some(chain) if count == 0 => self.dev.zero(chain.sum.shard),
            // A rank starts from zero with each micro-batch.
            Some(_) => {}
        }
    }

    /// Runs a micro-batch forward, and copies what the head computed to the buffers.
    fn forward(
        &self,
        index: &PassIndex,
        buffers: &mut StepBuffers,
        of: &Range<usize>,
        chain: Option<&Chain<'_, '_, '_, 'p>>,
    ) -> Result<Pass<'x>> {
        let Update { dev, role, layers: ref from, .. } = *self;
        let pass = Pass::upload(dev, self.acts, index).with_balance(self.balance).with_teacher(self.teacher);
        layers(dev, &**from, &pass);
        let head = role.head(dev, from.decoder(), &pass, self.inv_temperature);
        if let Some(chain) = chain {
            // The card is busy while the ranks meet.
            chain.settle()?;
        }
        let tokens = buffers.tokens(of);
        match role.shape.head {
            Head::Vocabulary => {
                dev.read_f32(head, 0, &mut buffers.logprobs[tokens.clone()]);
                dev.read_f32(pass.head_out().entropy, 0, &mut buffers.entropy[tokens.clone()]);
                role.diverge(dev, from.decoder(), &pass, self.inv_temperature, (buffers, tokens));
            }
            Head::Score => dev.read_f32(head, 0, &mut buffers.critic.values[tokens]),
        }
        dev.check()?;
        Ok(pass)
    }

    /// Waits until the ranks have added everything, and returns the expert load balance over all ranks.
    fn used(
        &self,
        chain: Option<&Chain<'_, '_, '_, 'p>>,
        load: Option<ExpertLoad>,
    ) -> Result<Option<ExpertUse>> {
        if let Some(chain) = chain {
            chain.settle()?;
        }
        let Some(load) = load else { return Ok(None) };
        let all = match chain {
            Some(chain) => gather_f64(chain.group, load.numbers())?,
            None => vec![load.numbers().to_vec()],
        };
        Ok(Some(load.used(&all, self.sequence_rows)))
    }
}
