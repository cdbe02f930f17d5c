//! The parts of a layer: a mixer, of softmax, linear or latent attention, and a feed-forward part, dense or of experts.
//!
//! Each part owns its regions and how long they are kept, their handles, its forward pass and its gradients. A new kind
//! adds its folder, and its arms here and in `regions`. What passes from one product of a layer to the next belongs to
//! the layer, not to a part.

pub(crate) mod attention;
pub(crate) mod delta;
mod dense;
pub(crate) mod experts;
pub(crate) mod inputs;
mod latent;
pub(crate) mod regions;
mod shared;

use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, MixerGradients};
use plimsoll_memory::Buf;
use regions::{FfnBufs, MixerBufs};

/// Computes the input of a mixer's output projection from the mixer's own.
pub(crate) fn mix(layer: &LayerPass<'_, '_, '_>) {
    match &layer.bufs.mixer {
        MixerBufs::Attention(of) => attention::forward(layer, of),
        MixerBufs::Delta(of) => delta::forward(layer, of),
        MixerBufs::Latent(of) => latent::forward(layer, of),
    }
}

/// Computes the input of a mixer's output projection again, where the backward pass has all but its gates.
pub(crate) fn mix_again(layer: &LayerPass<'_, '_, '_>) {
    match &layer.bufs.mixer {
        MixerBufs::Attention(of) => attention::gate(layer, of),
        MixerBufs::Delta(_) | MixerBufs::Latent(_) => {}
    }
}

/// Computes the gradients of a mixer after those of its output projection's bias and adapters.
pub(crate) fn mix_backward(step: &LayerBackward<'_, '_, '_>, of: MixerGradients<'_>) {
    match &step.layer.bufs.mixer {
        MixerBufs::Attention(bufs) => attention::backward(step, bufs, of),
        MixerBufs::Delta(bufs) => delta::backward(step, bufs, of),
        MixerBufs::Latent(bufs) => latent::backward(step, bufs, of),
    }
}

/// Computes gates and ups, where the backward pass continues: it makes the product with its gradient.
pub(crate) fn to_gates(layer: &LayerPass<'_, '_, '_>) {
    match &layer.bufs.ffn {
        FfnBufs::Dense(_) => dense::to_gates(layer),
        FfnBufs::Experts(of) => experts::to_gates(layer, of),
    }
}

/// Computes the inputs of experts next to a dense part again, where the backward pass has the residual before them.
pub(crate) fn ffn_inputs_again(layer: &LayerPass<'_, '_, '_>) {
    if let FfnBufs::Experts(of) = &layer.bufs.ffn {
        of.joined.iter().for_each(|of| experts::joined::inputs(layer, of));
    }
}

/// Adds what a dense part and the experts next to it gave again, where the backward pass has both.
pub(crate) fn add_again(layer: &LayerPass<'_, '_, '_>) {
    if let FfnBufs::Experts(of) = &layer.bufs.ffn {
        of.joined.iter().for_each(|of| experts::joined::add(layer, of));
    }
}

/// Computes the residual after a feed-forward part, after `to_gates`.
pub(crate) fn add_ffn(layer: &LayerPass<'_, '_, '_>) {
    match &layer.bufs.ffn {
        FfnBufs::Dense(of) => dense::add_product(layer, of.width),
        FfnBufs::Experts(of) => experts::add_product(layer, of),
    }
}

/// Computes the gradients of a feed-forward part, after `to_gates` of the same pass.
pub(crate) fn ffn_backward(step: &LayerBackward<'_, '_, '_>, d_input: Buf<'_>) {
    match &step.layer.bufs.ffn {
        FfnBufs::Dense(of) => dense::backward(step, of.width, d_input),
        FfnBufs::Experts(of) => experts::backward(step, of, d_input),
    }
}
