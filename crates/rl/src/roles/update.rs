//! State that the micro-batches of one update share.

use super::adapters::RoleGradients;
use super::role::Role;
use crate::arrays::TokenArrays;
use plimsoll_device::Device;
use plimsoll_files::Head;
use plimsoll_infer::form::TextForm;
use plimsoll_model::tower::VectorTable;
use plimsoll_model::{Activations, Derivatives, Layers, SeenImages, TeacherHead};
use plimsoll_ranks::Group;
use plimsoll_train::Partial;
use std::ops::Range;

/// Everything that is fixed during an update.
pub(super) struct Update<'x, 'a, 'p> {
    pub(super) dev: &'x dyn Device,
    pub(super) group: &'x Group,
    pub(super) role: &'x Role<'a>,
    pub(super) layers: Box<dyn Layers<'x> + 'x>,
    pub(super) acts: Activations<'p>,
    /// The images of its prompts, if there are some.
    pub(super) seen: Option<SeenImages<'x, 'p>>,
    /// The gradients of images' vectors, if this is the phase that trains a tower.
    pub(super) d_vectors: Option<VectorTable<'p>>,
    /// Buffers for the gradients of this rank's micro-batches.
    pub(super) grads: RoleGradients<'p>,
    /// Places of those gradients in the flat buffer.
    pub(super) partial: Partial<'p>,
    pub(super) inv_temperature: f32,
    /// The derivative of the loss by the probability of an expert that all rows of its segment chose.
    pub(super) balance: f32,
    /// Rows of the update as its sequences have them: those of a prompt count for each of its responses.
    pub(super) sequence_rows: u64,
    /// The head that rows are compared with over the whole vocabulary, if the student learns so.
    pub(super) teacher: Option<TeacherHead<'x>>,
    /// What responses were held to.
    pub(super) form: Option<&'x TextForm>,
}

impl Update<'_, '_, '_> {
    /// Returns the derivatives of a micro-batch's loss, as `Loss` wrote them.
    pub(super) fn derivatives<'d>(&self, buffers: &'d TokenArrays, of: &Range<usize>) -> Derivatives<'d> {
        let tokens = buffers.tokens(of);
        let derivatives = match self.role.shape.head {
            Head::Vocabulary => {
                let divergence = buffers.divergence.as_ref();
                let by_divergence = divergence.map_or(&[][..], |of| &of.d_values[tokens.clone()]);
                [&buffers.d_logprobs[tokens.clone()], &buffers.d_entropy[tokens], by_divergence]
            }
            Head::Score => [&buffers.values().d_values[tokens], &[], &[]],
        };
        self.role.derivatives(self.inv_temperature, derivatives)
    }
}

/// Returns the rows of a micro-batch, from its numbers.
pub(super) fn rows_of(numbers: &[f32]) -> usize {
    numbers[0].to_bits() as usize
}
