//! The linear attention of a layer: from its input to that of its output projection, and back.

pub(crate) mod places;
pub(crate) mod regions;

use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, MixerGradients, Product};
use crate::weights::LayerDelta;
use plimsoll_arch::Site;
use plimsoll_device::{
    DeltaInputs, DeltaInputsBackward, DeltaRule, DeltaRuleBackward, NormGated, NormGatedBackward,
};
use regions::{DeltaBufs, DeltaRegions, GradientRegions};

/// Computes the input of the output projection.
pub(super) fn forward(layer: &LayerPass<'_, '_, '_>, bufs: &DeltaBufs<'_>) {
    layer.product(Site::Delta, layer.bufs.norm_attn, layer.bufs.qkv);
    to_out(layer, bufs);
    let (heads, o, w, eps) = (bufs.heads, bufs.regions.out, weights(layer).norm, layer.spec().rms_eps);
    layer.dev.norm_gated(NormGated { heads, o, x: layer.bufs.qkv, w, eps, y: layer.bufs.attn });
}

/// Computes what the backward pass reads from the input projection's output: all but the output projection's input.
fn to_out(layer: &LayerPass<'_, '_, '_>, bufs: &DeltaBufs<'_>) {
    let (heads, x, weights) = (bufs.heads, layer.bufs.qkv, weights(layer).inputs);
    let DeltaRegions { qkv, gates, out, states, tails, rest, .. } = bufs.regions;
    let places = bufs.places(layer.pass.batch.segments);
    layer.dev.delta_inputs(DeltaInputs { heads, x, weights, places, tails, qkv, gates });
    layer.dev.delta_rule(DeltaRule { heads, qkv, gates, places, states, out, rest });
}

/// Computes the gradients of both projections, and of the weights between.
pub(super) fn backward(step: &LayerBackward<'_, '_, '_>, bufs: &DeltaBufs<'_>, of: MixerGradients<'_>) {
    let (layer, add) = (step.layer, step.add);
    step.weight_gradient(of.output);
    step.input_gradient(of.output, of.d_mixed);
    if !layer.is_made_again() {
        to_out(layer, bufs);
    }
    let (heads, x, w, eps) = (bufs.heads, layer.bufs.qkv, weights(layer), layer.spec().rms_eps);
    let (grads, segments) = (step.weights().and_then(|grads| grads.delta), layer.pass.batch.segments);
    let DeltaRegions { qkv, gates, out, states, rest, gradients, .. } = bufs.regions;
    let GradientRegions { d_rest, d_states, d_qkv, d_gates } = gradients.expect("an update");
    let (d, dx, dw) = (of.d_mixed, of.d_first, grads.map(|grads| grads.norm));
    layer.dev.norm_gated_backward(NormGatedBackward { heads, o: out, x, w: w.norm, eps, d, dx, dw, add });
    layer.dev.delta_rule_backward(DeltaRuleBackward {
        heads,
        qkv,
        gates,
        places: bufs.places(segments),
        states,
        rest: rest.expect("an update"),
        dout: d,
        d_rest,
        d_states,
        d_qkv,
        d_gates,
    });
    let (weights, grads) = (w.inputs, grads.map(|grads| grads.inputs));
    let backward = DeltaInputsBackward { heads, x, weights, segments, d_qkv, d_gates, dx, grads, add };
    layer.dev.delta_inputs_backward(backward);
    let qkv = Product { site: Site::Delta, x: layer.bufs.norm_attn, dy: dx };
    step.product_gradients(qkv, of.d_input);
}

fn weights<'a>(layer: &LayerPass<'_, 'a, '_>) -> LayerDelta<'a> {
    layer.w.delta.expect("a layer with linear attention has its weights")
}
