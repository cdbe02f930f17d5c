//! The divergences of a micro-batch from the teacher's lists, after its forward pass.

use super::role::Role;
use crate::methods::buffers::StepBuffers;
use plimsoll_device::{Device, ListedTokens};
use plimsoll_model::{Decoder, Pass, head_listed, head_top};
use std::ops::Range;

impl Role<'_> {
    /// Computes the divergences of a micro-batch whose head has run, if its pass lists tokens, and uploads how they
    /// follow from its logits.
    pub(super) fn diverge(
        &self,
        dev: &dyn Device,
        decoder: &Decoder<'_>,
        pass: &Pass<'_>,
        inv_temperature: f32,
        (buffers, tokens): (&mut StepBuffers, Range<usize>),
    ) {
        let Some(ListedTokens { logprobs, .. }) = pass.listed() else { return };
        let (rows, vocab) = (tokens.len(), self.shape.spec.vocab as usize);
        let (mask, of) = (&buffers.mask, &mut buffers.divergence);
        let k = of.per_token();
        head_listed(dev, decoder, pass, inv_temperature, &of.ids[of.lists_of(&tokens)]);
        dev.read_f32(logprobs, 0, &mut of.student[..rows * k]);
        of.compute(mask, tokens, vocab);
        pass.set_divergence(dev, &of.slopes[..rows * k], &of.rest[..rows]);
    }

    /// Runs what a pass with listed tokens does besides its head, once: lists, and log-probabilities of given tokens.
    pub(super) fn rehearse_lists(&self, dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>) {
        let Some(ListedTokens { ids, .. }) = pass.listed() else { return };
        head_top(dev, decoder, pass, 1.0);
        let mut list = vec![0; ids.len()];
        dev.read_u32(ids, 0, &mut list);
        head_listed(dev, decoder, pass, 1.0, &list);
    }
}
