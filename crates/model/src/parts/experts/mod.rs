//! Mixture of experts: the feed-forward part of a layer whose router sends rows to experts.
//!
//! Legend: M rows, E experts of which each row uses k, P = M k pairs, h hidden, f feed-forward width of an expert.

pub(super) mod joined;
pub(crate) mod joined_regions;
pub(crate) mod load;
pub(crate) mod regions;

use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, LayerGrads};
use crate::parts::shared;
use crate::weights::LayerParams;
use plimsoll_arch::{ExpertsSpec, SigmoidSpec, Site};
use plimsoll_device::{
    AdaptExpertsBackward, Balance, ExpertBiasBackward, Experts, ExpertsAdapter, ExpertsBackward,
    GluExpertsBackward, Matrix, RouteBackward, Routes, Routing, RowsOf, Sigmoid,
};
use plimsoll_memory::Buf;
use regions::{ExpertBufs, GradientRegions};

/// Routes the rows, and computes gates and ups of their pairs.
pub(crate) fn to_gates(layer: &LayerPass<'_, '_, '_>, of: &ExpertBufs<'_>) {
    let LayerPass { dev, w, bufs, .. } = *layer;
    of.joined.iter().for_each(|of| joined::inputs(layer, of));
    let (x, routed) = inputs(layer, of);
    dev.matmul(routed, router(w), w.router_bias, of.logits, false);
    dev.route(of.logits, routing(of, w), of.routes);
    of.joined.iter().for_each(|joined| joined::weigh(layer, of, joined));
    product(layer, of, Site::GateUp, x, RowsOf::Rows, bufs.gate_up);
    adapt(layer, of, Site::GateUp, x, RowsOf::Rows, bufs.gate_up);
    add_bias(layer, of, Site::GateUp, bufs.gate_up, false);
    of.shared.iter().for_each(|of| shared::to_gates(layer, of));
}

/// Computes the residual after the part, after `to_gates`.
pub(crate) fn add_product(layer: &LayerPass<'_, '_, '_>, of: &ExpertBufs<'_>) {
    let (LayerPass { dev, bufs, .. }, y) = (*layer, of.out);
    let gate = layer.spec().architecture().gate;
    dev.glu_experts(gate, bufs.gate_up, of.experts.ffn as usize, weighed(of), bufs.product);
    product(layer, of, Site::Down, bufs.product, RowsOf::Pairs, y);
    adapt(layer, of, Site::Down, bufs.product, RowsOf::Pairs, y);
    add_bias(layer, of, Site::Down, y, true);
    if let Some(joined) = &of.joined {
        return joined::add_product(layer, of, joined);
    }
    dev.combine(y, of.routes, Some(bufs.mid), bufs.next);
    of.shared.iter().for_each(|of| shared::add_product(layer, of));
}

/// Computes the gradients, after `to_gates` of the same pass; recomputes the products on the way.
pub(crate) fn backward(step: &LayerBackward<'_, '_, '_>, of: &ExpertBufs<'_>, d_input: Buf<'_>) {
    let LayerPass { dev, w, bufs, pass, .. } = *step.layer;
    let (gate_up, product, (input, routed)) = (bufs.gate_up, bufs.product, inputs(step.layer, of));
    let ExpertBufs { logits, routes, out, gradients, .. } = *of;
    let GradientRegions { d_weights, d_logits, balance: rows } =
        gradients.expect("only the update runs backward");
    of.joined.iter().for_each(|joined| joined::branch_gradients(step, of, joined));
    input_gradient(step, of, Site::Down, step.d_out, RowsOf::Rows, product);
    let (how, f) = (step.layer.spec().architecture().gate, of.experts.ffn as usize);
    let weighed = weighed(of);
    dev.glu_experts_backward(GluExpertsBackward {
        how,
        gate_up,
        f,
        routes: weighed,
        dout: product,
        d_weights,
    });
    of.joined.iter().for_each(|joined| joined::weigh_backward(step, of, joined, d_weights));
    if let Some(bias) = w.bias(Site::Down) {
        dev.bias_weights_backward(step.d_out, bias, routes, d_weights);
    }
    bias_gradient(step, of, Site::Down, (step.d_out, RowsOf::Rows), true);
    weight_gradient(step, of, Site::Down, step.d_out, RowsOf::Rows, product, RowsOf::Pairs);
    bias_gradient(step, of, Site::GateUp, (gate_up, RowsOf::Pairs), false);
    input_gradient(step, of, Site::GateUp, gate_up, RowsOf::Pairs, out);
    weight_gradient(step, of, Site::GateUp, gate_up, RowsOf::Pairs, input, RowsOf::Rows);
    dev.combine(out, routes, None, d_input);
    // The load balancing loss is reported even if its coefficient is 0.
    let balance = Some(Balance { segments: pass.batch.segments, factor: pass.balance, rows });
    let how = routing(of, w);
    dev.route_backward(RouteBackward { logits, how, routes, d_weights, balance, d_logits });
    if let Some(grads) = step.weights() {
        dev.matmul_dw(d_logits, routed, router(grads), step.add, step.back.pack);
        grads.router_bias.into_iter().for_each(|grad| dev.bias_backward(d_logits, grad, step.add));
    }
    if let Some(joined) = &of.joined {
        return joined::backward(step, of, joined, d_logits, d_input);
    }
    dev.matmul_dx(d_logits, router(w), d_input, true);
    // The experts' outputs are no longer needed.
    let d_x = out.slice(0, d_input.len());
    of.shared.iter().for_each(|of| shared::backward(step, of, d_x, d_input));
}

/// Computes a product of pairs, without adapters and biases.
fn product(
    layer: &LayerPass<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    site: Site,
    x: Buf<'_>,
    x_has: RowsOf,
    out: Buf<'_>,
) {
    let LayerPass { dev, w, .. } = *layer;
    match w.codes(site) {
        Some(codes) => dev.matmul_experts_codes(x, x_has, codes, w.at(site), of.routes, out),
        None => dev.matmul_experts(x, x_has, all(layer, of, site), of.routes, out),
    }
}

/// Returns what the experts read, and what their router reads.
fn inputs<'p>(layer: &LayerPass<'_, '_, 'p>, of: &ExpertBufs<'p>) -> (Buf<'p>, Buf<'p>) {
    let own = layer.bufs.norm_ffn;
    of.joined.map_or((own, own), |of| (of.input, of.routed))
}

/// Returns the routes with the weights that experts' products are multiplied by.
fn weighed<'p>(of: &ExpertBufs<'p>) -> Routes<'p> {
    of.joined.map_or(of.routes, |joined| Routes { weights: joined.weights, ..of.routes })
}

/// Adds the adapters' output to a product, unless they are merged into its weights.
fn adapt(
    layer: &LayerPass<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    site: Site,
    x: Buf<'_>,
    x_has: RowsOf,
    out: Buf<'_>,
) {
    let adapters = layer.w.adapters;
    if let Some(adapter) = adapters.of_experts(site).filter(|_| !adapters.are_merged) {
        layer.dev.adapt_experts(x, x_has, adapter, of.routes, u(layer, of, &adapter), Some(out));
    }
}

/// Adds the biases of a product, if it has them, each times the pair's weight if `weighs`.
fn add_bias(layer: &LayerPass<'_, '_, '_>, of: &ExpertBufs<'_>, site: Site, out: Buf<'_>, weighs: bool) {
    if let Some(bias) = layer.w.bias(site) {
        layer.dev.add_expert_bias(out, bias, of.routes, weighs);
    }
}

/// Computes the gradient of a product's biases, if they are trained.
fn bias_gradient(
    step: &LayerBackward<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    site: Site,
    (dy, dy_has): (Buf<'_>, RowsOf),
    weighs: bool,
) {
    if let Some(grad) = step.weights().and_then(|grads| grads.bias(site)) {
        let (routes, add) = (of.routes, step.add);
        step.layer.dev.expert_bias_backward(ExpertBiasBackward { dy, dy_has, routes, weighs, grad, add });
    }
}

/// Computes the gradients of a product's input and of u; `weight_gradient` continues from the latter.
fn input_gradient(
    step: &LayerBackward<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    site: Site,
    dy: Buf<'_>,
    dy_has: RowsOf,
    out: Buf<'_>,
) {
    let (LayerPass { dev, w, .. }, layer) = (*step.layer, step.layer);
    dev.matmul_experts_dx(dy, dy_has, all(layer, of, site), of.routes, out);
    if let (LayerGrads::Adapters(_), Some(adapter)) = (step.grads, w.adapters.of_experts(site)) {
        let du = step.room().0.slice(0, u(layer, of, &adapter).len());
        let added = (!w.adapters.are_merged).then_some(out);
        dev.adapt_experts_dx(dy, dy_has, adapter, of.routes, du, added);
    }
}

/// Computes the gradient of a product's weights, or of its adapters, whose u is recomputed.
fn weight_gradient(
    step: &LayerBackward<'_, '_, '_>,
    of: &ExpertBufs<'_>,
    site: Site,
    dy: Buf<'_>,
    dy_has: RowsOf,
    x: Buf<'_>,
    x_has: RowsOf,
) {
    let (LayerPass { dev, w, .. }, routes, add) = (*step.layer, of.routes, step.add);
    match step.grads {
        LayerGrads::Weights(grads) => {
            let (grad, pack) = (cut(grads.at(site), of.experts.count as usize), step.back.pack);
            dev.matmul_experts_dw(ExpertsBackward { dy, dy_has, x, x_has, routes, grad, add, pack });
        }
        LayerGrads::Adapters(grads) => {
            let Some(adapter) = w.adapters.of_experts(site) else { return };
            let (u, (d_u, pack)) = (u(step.layer, of, &adapter), step.room());
            dev.adapt_experts(x, x_has, adapter, routes, u, None);
            let (du, grads) =
                (d_u.slice(0, u.len()), grads.of_experts(site).expect("adapters have gradients"));
            #[rustfmt::skip]
            dev.adapt_experts_dw(AdaptExpertsBackward { x, x_has, u, dy, dy_has, du, routes, grads, add, pack });
        }
    }
}

/// Returns scratch for u of a product's adapters: [P, S r].
fn u<'p>(layer: &LayerPass<'_, '_, 'p>, of: &ExpertBufs<'_>, adapter: &ExpertsAdapter<'_>) -> Buf<'p> {
    let room = layer.bufs.u_once.expect("a pass with adapters of experts has room for u");
    room.slice(0, of.routes.pairs() * adapter.a.n)
}

fn routing<'w>(of: &ExpertBufs<'_>, w: &LayerParams<'w>) -> Routing<'w> {
    let ExpertsSpec { count, chosen, normalizes, sigmoid, .. } = of.experts;
    let sigmoid = sigmoid.map(|SigmoidSpec { groups, groups_chosen, factor }| Sigmoid {
        correction: w.router_correction.expect("a router of sigmoids has corrections"),
        groups: groups as usize,
        groups_chosen: groups_chosen as usize,
        factor,
    });
    Routing { experts: count as usize, chosen: chosen as usize, normalizes, sigmoid }
}

fn router<'w>(of: &LayerParams<'w>) -> Matrix<'w> {
    of.router.expect("a layer with experts has a router")
}

/// Returns the matrices of all experts, dequantized if they are stored in codes.
fn all<'a>(layer: &LayerPass<'_, 'a, '_>, of: &ExpertBufs<'_>, site: Site) -> Experts<'a> {
    cut(layer.w.ready(layer.dev, site), of.experts.count as usize)
}

/// Splits a matrix with the rows of all experts into one per expert.
pub(crate) fn cut(whole: Matrix<'_>, count: usize) -> Experts<'_> {
    Experts::cut(whole, count)
}
