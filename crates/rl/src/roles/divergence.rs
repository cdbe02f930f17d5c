//! The divergences of a micro-batch from the teacher's lists, or from its head over the whole vocabulary, after its
//! forward pass.

use super::role::Role;
use crate::arrays::TokenArrays;
use plimsoll_algo::divergence::Divergence;
use plimsoll_device::{Device, ListedTokens, Measure};
use plimsoll_memory::InPhase;
use plimsoll_model::{Decoder, Layers, Pass, TeacherHead, head_divergence, head_listed, head_top};
use std::ops::Range;

impl Role<'_> {
    /// True if its scoring pass keeps the rows that its head reads: it is a teacher of its whole vocabulary.
    pub(super) fn keeps_rows(&self) -> bool {
        self.shape.score.is_some_and(|pass| pass.limits.taught > 0)
    }

    /// Returns the head that an update compares its rows with, if it does: that of `teacher`, or its own.
    pub(super) fn teacher_head<'x>(
        &self,
        dev: &dyn Device,
        phase: &InPhase<'x>,
        teacher: Option<&'x Role<'_>>,
        own: &dyn Layers<'x>,
        how: Option<Divergence>,
        inv_temperature: f32,
    ) -> Option<TeacherHead<'x>> {
        if self.update_shape().pass.limits.taught == 0 {
            return None;
        }
        let how = match how? {
            Divergence::Reverse => Measure::Reverse,
            Divergence::Forward => Measure::Forward,
            Divergence::Jsd { beta } => Measure::Jsd { beta: beta as f32 },
        };
        let other = teacher.map(|teacher| teacher.layers(dev, phase));
        let decoder = other.as_ref().map_or(own, |other| &**other).decoder();
        Some(TeacherHead::new(decoder, self.shape.spec.vocab, inv_temperature, how))
    }

    /// Computes the divergences of a micro-batch whose head has run, if its pass lists tokens, and uploads how they
    /// follow from its logits.
    pub(super) fn diverge(
        &self,
        dev: &dyn Device,
        decoder: &Decoder<'_>,
        pass: &Pass<'_>,
        inv_temperature: f32,
        buffers: &mut TokenArrays,
        tokens: Range<usize>,
    ) {
        let TokenArrays { mask, divergence, .. } = buffers;
        let Some(of) = divergence else { return };
        if let Some(values) =
            head_divergence(dev, decoder, pass, inv_temperature, &of.rows[of.rows_of(&tokens)])
        {
            dev.read_f32(values, 0, &mut of.values[tokens.clone()]);
            return of.leave_out(mask, tokens);
        }
        let Some(ListedTokens { logprobs, .. }) = pass.listed() else { return };
        let (rows, vocab) = (tokens.len(), self.shape.spec.vocab as usize);
        let k = of.per_token();
        head_listed(dev, decoder, pass, inv_temperature, &of.ids[of.lists_of(&tokens)]);
        dev.read_f32(logprobs, 0, &mut of.student[..rows * k]);
        of.compute(mask, tokens, vocab);
        pass.set_divergence(dev, &of.slopes[..rows * k], &of.rest[..rows]);
    }

    /// Runs what a pass with a teacher's rows does besides its head, once, for rows of zeros.
    pub(super) fn rehearse_whole(
        &self,
        dev: &dyn Device,
        decoder: &Decoder<'_>,
        pass: &Pass<'_>,
        heads: usize,
    ) {
        let (width, stored) = (self.update_shape().pass.limits.taught, self.shape.weights.bytes() as usize);
        head_divergence(dev, decoder, pass, 1.0, &vec![0; heads * width * stored]);
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
