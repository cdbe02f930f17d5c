//! The shared expert of a layer with experts: a gated MLP of every row, whose product may be multiplied by the sigmoid
//! of a product of the row. What it gives is added after what the chosen experts give.

pub(crate) mod regions;

use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, Product};
use crate::weights::LayerParams;
use plimsoll_arch::Site;
use plimsoll_device::{GluSharedBackward, Matrix};
use plimsoll_memory::Buf;
use regions::SharedBufs;

/// Computes the logits of the rows, and gates and ups.
pub(super) fn to_gates(layer: &LayerPass<'_, '_, '_>, of: &SharedBufs<'_>) {
    if let Some(logits) = of.logits {
        layer.dev.matmul(layer.bufs.norm_ffn, gate(layer.w), None, logits, false);
    }
    layer.product(Site::SharedGateUp, layer.bufs.norm_ffn, of.gate_up);
}

/// Adds what the shared expert gives to the residual after the layer, after `to_gates`.
pub(super) fn add_product(layer: &LayerPass<'_, '_, '_>, of: &SharedBufs<'_>) {
    product(layer, of);
    layer.add_shared(of.product);
}

/// Computes the input of the down projection, after `to_gates`.
pub(super) fn product(layer: &LayerPass<'_, '_, '_>, of: &SharedBufs<'_>) {
    let how = layer.spec().architecture().gate;
    match of.logits {
        Some(logits) => layer.dev.glu_shared(how, of.gate_up, of.width, logits, of.product),
        None => layer.dev.glu(how, of.gate_up, of.width, of.product),
    }
}

/// Computes the gradients, after `to_gates` of the same pass, and adds that of the input to `d_input`. `d_x`: scratch
/// for it, [M, h] f32.
pub(super) fn backward(
    step: &LayerBackward<'_, '_, '_>,
    of: &SharedBufs<'_>,
    d_x: Buf<'_>,
    d_input: Buf<'_>,
) {
    let LayerPass { dev, w, bufs, .. } = *step.layer;
    let gated = products_backward(step, of, step.d_out, d_x);
    dev.accumulate(d_x, d_input, true);
    let Some(d_logits) = gated else { return };
    if let Some(grads) = step.weights() {
        dev.matmul_dw(d_logits, bufs.norm_ffn, gate(grads), step.add, step.back.pack);
    }
    dev.matmul_dx(d_logits, gate(w), d_input, true);
}

/// Computes the gradients of the products from that of what the expert gives, `dy`, and that of their input into `d_x`.
/// Returns the gradient of its logits, if it has them.
pub(super) fn products_backward<'p>(
    step: &LayerBackward<'_, '_, '_>,
    of: &SharedBufs<'p>,
    dy: Buf<'_>,
    d_x: Buf<'_>,
) -> Option<Buf<'p>> {
    let LayerPass { dev, bufs, .. } = *step.layer;
    let SharedBufs { gate_up, logits, product, width: f, d_logits } = *of;
    let down = Product { site: Site::SharedDown, x: product, dy };
    step.output_gradients(down);
    step.input_gradient(down, product);
    let how = step.layer.spec().architecture().gate;
    let gated = logits.map(|logits| (logits, d_logits.expect("only the update runs backward")));
    match gated {
        Some((logits, d_logits)) => {
            dev.glu_shared_backward(GluSharedBackward { how, gate_up, f, logits, dout: product, d_logits });
        }
        None => dev.glu_backward(how, gate_up, f, product, gate_up, Some(product)),
    }
    step.weight_gradient(down);
    let above = Product { site: Site::SharedGateUp, x: bufs.norm_ffn, dy: gate_up };
    step.product_gradients(above, Some(d_x));
    gated.map(|(_, d_logits)| d_logits)
}

fn gate<'w>(of: &LayerParams<'w>) -> Matrix<'w> {
    of.shared_gate.expect("a layer with a shared expert has its gate")
}
