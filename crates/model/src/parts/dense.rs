//! The dense feed-forward part of a layer.

use crate::activations::mode::Recompute;
use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, Product};
use plimsoll_arch::Site;
use plimsoll_memory::Buf;

/// True if gates and ups are not read: there is no backward pass, and they have neither adapters nor biases. Those in
/// codes or rounded are products of their own kind.
fn is_at_once(layer: &LayerPass<'_, '_, '_>) -> bool {
    let w = layer.w;
    layer.pass.acts.mode.recompute().is_none()
        && w.codes(Site::GateUp).is_none()
        && w.fp8(Site::GateUp).is_none()
        && w.adapters.added(Site::GateUp).is_none()
        && w.bias(Site::GateUp).is_none()
}

/// Computes gates and ups, where the backward pass continues: it makes the product with its gradient.
pub(super) fn to_gates(layer: &LayerPass<'_, '_, '_>) {
    let LayerPass { dev, w, bufs, .. } = *layer;
    if is_at_once(layer) {
        let gate = layer.spec().architecture().gate;
        return dev.gated(bufs.norm_ffn, w.at(Site::GateUp), gate, bufs.gate_up, bufs.product);
    }
    layer.product(Site::GateUp, bufs.norm_ffn, bufs.gate_up);
}

/// Computes the residual after this part, after `to_gates`; `f`: outputs of the gate and of the up projection.
pub(super) fn add_product(layer: &LayerPass<'_, '_, '_>, f: u32) {
    let (spec, bufs) = (layer.spec(), layer.bufs);
    if !is_at_once(layer) {
        layer.dev.glu(spec.architecture().gate, bufs.gate_up, f as usize, bufs.product);
    }
    layer.add_down();
}

/// Computes the gradients, after `to_gates` of the same pass.
pub(super) fn backward(step: &LayerBackward<'_, '_, '_>, f: u32, d_input: Buf<'_>) {
    let LayerPass { dev, bufs, .. } = *step.layer;
    let (spec, recompute) = (step.layer.spec(), step.layer.pass.acts.mode.recompute());
    let (gate, f) = (spec.architecture().gate, f as usize);
    // In place: gate and up are not read again, and a product and its gradient need each other's memory only once one
    // of them is done.
    let (d_product, d_gate_up) = (bufs.product, bufs.gate_up);
    let down = Product { site: Site::Down, x: bufs.product, dy: step.d_out };
    step.output_gradients(down);
    if recompute == Some(Recompute::None) && !spec.has_experts() {
        step.weight_gradient(down);
        step.input_gradient(down, d_product);
        dev.glu_backward(gate, bufs.gate_up, f, d_product, d_gate_up, None);
    } else {
        step.input_gradient(down, d_product);
        dev.glu_backward(gate, bufs.gate_up, f, d_product, d_gate_up, Some(bufs.product));
        step.weight_gradient(down);
    }
    let gate_up = Product { site: Site::GateUp, x: bufs.norm_ffn, dy: d_gate_up };
    step.product_gradients(gate_up, Some(d_input));
}
