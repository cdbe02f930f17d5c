//! Experts next to the dense part of a layer: both read the residual stream before the feed-forward part, each through
//! a norm of its own, and norms follow each of the two and their sum. The dense part has the buffers of a shared
//! expert.
//!
//! The router reads rows through a norm without weights, times numbers of the router and 1/sqrt(h). The weights of a
//! row's experts, which add up to 1, are multiplied by a number of each expert.

use super::joined_regions::JoinedBufs;
use super::regions::ExpertBufs;
use crate::layer::LayerPass;
use crate::layer_backward::LayerBackward;
use crate::parts::shared;
use crate::weights::{LayerJoined, LayerParams};
use plimsoll_device::{ExpertBiasBackward, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Computes what the router reads and what the experts read. Overwrites the output of the part.
pub(crate) fn inputs(layer: &LayerPass<'_, '_, '_>, of: &JoinedBufs<'_>) {
    let LayerPass { dev, w, decoder, bufs, .. } = *layer;
    let (own, x) = (weights(w), bufs.mid);
    let scratch = out(layer);
    dev.zero(scratch);
    dev.rms_norm_add(x, decoder.norm(own.router_scale), scratch, scratch);
    dev.scale(scratch, router_factor(layer));
    dev.cast(scratch, of.routed);
    dev.rms_norm(x, decoder.norm(own.experts_norm), of.input);
}

/// Multiplies the weights of experts by the experts' numbers, after `route`.
pub(super) fn weigh(layer: &LayerPass<'_, '_, '_>, of: &ExpertBufs<'_>, joined: &JoinedBufs<'_>) {
    let dev = layer.dev;
    dev.zero(joined.pairs);
    dev.add_expert_bias(joined.pairs, weights(layer.w).expert_scale, of.routes, true);
    dev.gather_rows(joined.pairs, of.routes.places, joined.weights);
}

/// Computes the residual after the part from what the experts give.
pub(super) fn add_product(layer: &LayerPass<'_, '_, '_>, of: &ExpertBufs<'_>, joined: &JoinedBufs<'_>) {
    let LayerPass { dev, w, decoder, bufs, .. } = *layer;
    dev.combine(of.out, of.routes, None, joined.experts_out);
    let dense = of.shared.expect("a dense part");
    shared::product(layer, &dense);
    layer.dense_out(dense.product, joined.dense_out);
    add(layer, joined);
    let norm = w.ffn_post_norm.expect("a norm of the sum");
    dev.rms_norm_add(out(layer), decoder.norm(norm), bufs.mid, bufs.next);
}

/// Adds the norms of what the two parts give.
pub(crate) fn add(layer: &LayerPass<'_, '_, '_>, of: &JoinedBufs<'_>) {
    let LayerPass { dev, w, decoder, .. } = *layer;
    let (own, out) = (weights(w), out(layer));
    dev.zero(out);
    dev.rms_norm_add(of.dense_out, decoder.norm(own.dense_post_norm), out, out);
    dev.rms_norm_add(of.experts_out, decoder.norm(own.experts_post_norm), out, out);
}

/// Computes the gradients of what the two parts give: of the experts into `d_out`, where the gradient of the sum was.
pub(super) fn branch_gradients(
    step: &LayerBackward<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    joined: &JoinedBufs<'_>,
) {
    let dev = step.layer.dev;
    let dy = step.back.d_branch.expect("a norm follows the sum").slice(0, joined.dense_out.len());
    // The experts' outputs are no longer needed.
    let dx = of.out.slice(0, dy.len());
    dev.zero(dx);
    step.norm_backward_into(
        joined.dense_out,
        |w| w.joined.map(|own| own.dense_post_norm),
        dy,
        (dx, joined.d_dense),
    );
    dev.zero(dx);
    step.norm_backward_into(
        joined.experts_out,
        |w| w.joined.map(|own| own.experts_post_norm),
        dy,
        (dx, Some(step.d_out)),
    );
}

/// Computes the gradient of the experts' numbers from that of the weights times these, and makes the latter that of the
/// weights.
pub(super) fn weigh_backward(
    step: &LayerBackward<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    joined: &JoinedBufs<'_>,
    d_weights: Buf<'_>,
) {
    let (LayerPass { dev, w, .. }, routes, add) = (*step.layer, of.routes, step.add);
    if let Some(grads) = step.weights() {
        let (dy, grad) = (d_weights, weights(grads).expert_scale);
        dev.expert_bias_backward(ExpertBiasBackward {
            dy,
            dy_has: RowsOf::Pairs,
            routes,
            weighs: true,
            grad,
            add,
        });
    }
    dev.gather_rows(d_weights, routes.places, joined.pairs);
    dev.zero(d_weights);
    let by = Routes { weights: joined.pairs, ..routes };
    dev.add_expert_bias(d_weights, weights(w).expert_scale, by, true);
}

/// Completes the gradients of the part: those of the experts' and of the router's inputs are added to the gradient of
/// the residual stream, and that of the dense part's input is left in `d_input`, where the experts' was.
pub(super) fn backward(
    step: &LayerBackward<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    joined: &JoinedBufs<'_>,
    d_logits: Buf<'_>,
    d_input: Buf<'_>,
) {
    let LayerPass { dev, w, bufs, .. } = *step.layer;
    step.norm_backward_into(
        bufs.mid,
        |w| w.joined.map(|own| own.experts_norm),
        d_input,
        (step.d_resid, None),
    );
    let d_routed = of.out.slice(0, d_input.len());
    let router = w.router.expect("a layer with experts has a router");
    dev.matmul_dx(d_logits, router, d_routed, false);
    dev.scale(d_routed, router_factor(step.layer));
    step.norm_backward_into(
        bufs.mid,
        |w| w.joined.map(|own| own.router_scale),
        d_routed,
        (step.d_resid, None),
    );
    let dense = of.shared.expect("a dense part");
    let dy = joined.d_dense.expect("only the update runs backward");
    shared::products_backward(step, &dense, dy, d_input);
}

/// Returns the factor on what the router reads.
fn router_factor(layer: &LayerPass<'_, '_, '_>) -> f32 {
    1.0 / (layer.spec().hidden as f32).sqrt()
}

/// Returns the sum of what the two parts give, before its norm.
fn out<'p>(layer: &LayerPass<'_, '_, 'p>) -> Buf<'p> {
    layer.bufs.ffn_out.expect("a norm follows the part")
}

fn weights<'a>(of: &LayerParams<'a>) -> LayerJoined<'a> {
    of.joined.expect("a layer with experts next to a dense part")
}
