//! Softmax attention of a layer, with or without output gates or norms of values: from its input to that of its output
//! projection, and back.

pub(crate) mod regions;
pub(crate) mod value_regions;
mod values;

use crate::cache_index::Place;
use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, MixerGradients, Product};
use crate::weights::LayerParams;
use plimsoll_arch::{AttentionSpec, Site};
use plimsoll_device::{
    ALL_KEYS, AttentionBackward, GateHeadsBackward, Heads, QkNorm, QkNormBackward, RopeBackward, Scores,
    SinkBackward,
};
use plimsoll_memory::Buf;
use regions::AttentionBufs;

/// Computes the input of the output projection.
pub(super) fn forward(layer: &LayerPass<'_, '_, '_>, bufs: &AttentionBufs<'_>) {
    layer.product(Site::Qkv, layer.bufs.norm_attn, layer.bufs.qkv);
    attend(layer, bufs, qkv(layer, bufs), layer.bufs.attn);
    gate(layer, bufs);
}

/// Rotates adjacent queries, keys and values, adds keys and values to the cache, and computes heads into `out`.
pub(super) fn attend(layer: &LayerPass<'_, '_, '_>, bufs: &AttentionBufs<'_>, qkv: Buf<'_>, out: Buf<'_>) {
    let LayerPass { dev, decoder, index, .. } = *layer;
    let scores = scores(&bufs.spec, layer.w);
    let Place { batch, copies } = layer.pass.place(scores.window);
    dev.rope(
        qkv,
        qk_norm(layer, &bufs.spec),
        decoder.rotation(&bufs.spec, index, layer.pass),
        batch,
        bufs.kv,
        bufs.q,
    );
    if let Some(copies) = copies {
        dev.copy_kv(bufs.kv, copies);
    }
    dev.attention(bufs.q, bufs.kv, batch, scores, out, bufs.lse);
}

/// Returns adjacent queries, keys and values.
fn qkv<'p>(layer: &LayerPass<'_, '_, 'p>, bufs: &AttentionBufs<'p>) -> Buf<'p> {
    if let Some(values) = &bufs.values {
        values::normalise(layer, &bufs.spec, values);
        return values.qkv;
    }
    let Some(gates) = bufs.gates else { return layer.bufs.qkv };
    layer.dev.split_gates(layer.bufs.qkv, heads(&bufs.spec), gates.qkv);
    gates.qkv
}

/// Multiplies heads by their gates, if they have them.
pub(super) fn gate(layer: &LayerPass<'_, '_, '_>, bufs: &AttentionBufs<'_>) {
    if let Some(gates) = bufs.gates {
        layer.dev.gate_heads(layer.bufs.qkv, heads(&bufs.spec), layer.bufs.attn, gates.out);
    }
}

/// Computes the gradients of both projections, and of the weights between.
pub(super) fn backward(step: &LayerBackward<'_, '_, '_>, bufs: &AttentionBufs<'_>, of: MixerGradients<'_>) {
    let LayerPass { dev, decoder, index, pass, bufs: layer, .. } = *step.layer;
    let (heads, batch) = (heads(&bufs.spec), pass.batch);
    match bufs.gates {
        Some(gates) => {
            step.input_gradient(of.output, of.d_mixed);
            let (x, attn, d, dx, out) = (layer.qkv, layer.attn, of.d_mixed, of.d_first, Some(gates.out));
            dev.gate_heads_backward(GateHeadsBackward { heads, x, attn, d, dx, out });
            step.weight_gradient(of.output);
        }
        None => {
            step.weight_gradient(of.output);
            step.input_gradient(of.output, of.d_mixed);
        }
    }
    let [dq, dkv] = bufs.gradients.expect("an update");
    let (q, kv, lse) = (bufs.q, bufs.kv, bufs.lse.expect("the update keeps log-sum-exps"));
    let (scores, out, dout) = (scores(&bufs.spec, step.layer.w), layer.attn, of.d_mixed);
    dev.attention_backward(AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv });
    if let Some((sinks, grad)) = scores.sinks.zip(step.weights().and_then(|grads| grads.sinks)) {
        dev.sink_backward(SinkBackward { sinks, out, lse, dout, grad, add: step.add });
    }
    let (rotation, positions) = (decoder.rotation(&bufs.spec, index, pass), batch.positions);
    let (norms, dqkv) = (norm_gradients(step, bufs), bufs.d_qkv().unwrap_or(of.d_first));
    dev.rope_backward(RopeBackward { dq, dkv, rotation, positions, heads, norms, dqkv });
    if let Some(values) = &bufs.values {
        values::backward(step, &bufs.spec, values, of.d_first);
    }
    if bufs.gates.is_some() {
        dev.join_gates(dqkv, heads, of.d_first);
    }
    let qkv = Product { site: Site::Qkv, x: layer.norm_attn, dy: of.d_first };
    step.product_gradients(qkv, of.d_input);
}

fn qk_norm<'a>(layer: &LayerPass<'_, 'a, '_>, attention: &AttentionSpec) -> Option<QkNorm<'a>> {
    let spec = layer.spec();
    let (of, (q, k)) = attention.qk_norms.zip(layer.w.q_norm.zip(layer.w.k_norm))?;
    Some(QkNorm { q, k, eps: spec.rms_eps, offset: spec.architecture().norm_offset, of })
}

/// Returns the gradients of qk-norms, and the inputs of these norms.
fn norm_gradients<'s>(
    step: &'s LayerBackward<'_, '_, '_>,
    bufs: &AttentionBufs<'s>,
) -> Option<QkNormBackward<'s>> {
    let norm = qk_norm(step.layer, &bufs.spec)?;
    let (dq_weight, dk_weight) = step.weights().and_then(|grads| grads.q_norm.zip(grads.k_norm)).unzip();
    if !step.add {
        [dq_weight, dk_weight].into_iter().flatten().for_each(|grad| step.layer.dev.zero(grad));
    }
    Some(QkNormBackward { norm, qkv: qkv(step.layer, bufs), dq_weight, dk_weight })
}

fn heads(of: &AttentionSpec) -> Heads {
    Heads { heads: of.heads as usize, kv_heads: of.kv_heads as usize, head_dim: of.head_dim as usize }
}

/// Returns the window, the soft cap and the sinks of scores, and what values have of keys.
pub(super) fn scores<'w>(of: &AttentionSpec, w: &LayerParams<'w>) -> Scores<'w> {
    let window = of.window.map_or(ALL_KEYS, |keys| keys as usize);
    let latent = of.rotated.filter(|_| of.over_latents).map(|columns| columns as usize);
    Scores { window, cap: of.score_cap, sinks: w.sinks, latent, is_whole: false }
}
