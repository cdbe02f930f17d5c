//! What mixes the rows of a sequence in a layer: attention over keys, with or without gates, or linear attention.

use crate::activations::bufs::LayerBufs;
use crate::decoder::Decoder;
use crate::delta::DeltaLayer;
use crate::pass::{Cache, Pass};
use crate::weights::LayerParams;
use plimsoll_arch::ModelSpec;
use plimsoll_device::{Device, Heads, QkNorm};

/// From what the layer's first product gave to what its last one reads.
pub(crate) fn forward(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    (w, l): (&LayerParams<'_>, u32),
    pass: &Pass<'_>,
    bufs: &LayerBufs<'_>,
) {
    if let Some(delta) = linear(dev, decoder, w, pass, bufs) {
        return delta.forward();
    }
    let scores = decoder.scores(l);
    let Cache { batch, copies } = pass.cache(scores.window);
    let qkv = qkv(dev, &decoder.spec, bufs);
    dev.rope(qkv, qk_norm(decoder, w), decoder.rotation(l), batch, bufs.kv, bufs.q);
    if let Some(copies) = copies {
        dev.copy_kv(bufs.kv, copies);
    }
    dev.attention(bufs.q, bufs.kv, batch, scores, bufs.attn, bufs.lse);
    gate(dev, &decoder.spec, bufs);
}

/// The layer's linear attention, if it has that.
pub(crate) fn linear<'x, 'a, 'p>(
    dev: &'x dyn Device,
    decoder: &Decoder<'_>,
    w: &LayerParams<'a>,
    pass: &Pass<'p>,
    bufs: &LayerBufs<'p>,
) -> Option<DeltaLayer<'x, 'a, 'p>> {
    let (w, delta) = w.delta.zip(bufs.delta)?;
    let (eps, segments) = (decoder.spec.rms_eps, pass.batch.segments);
    Some(DeltaLayer { dev, eps, w, bufs: delta, segments, x: bufs.qkv, y: bufs.attn })
}

/// Queries, keys and values next to each other.
pub(crate) fn qkv<'p>(dev: &dyn Device, spec: &ModelSpec, bufs: &LayerBufs<'p>) -> plimsoll_memory::Buf<'p> {
    let Some(gates) = bufs.gates else { return bufs.qkv };
    dev.split_gates(bufs.qkv, heads(spec), gates.qkv);
    gates.qkv
}

/// Multiplies heads by their gates, where they have such.
pub(crate) fn gate(dev: &dyn Device, spec: &ModelSpec, bufs: &LayerBufs<'_>) {
    if let Some(gates) = bufs.gates {
        dev.gate_heads(bufs.qkv, heads(spec), bufs.attn, gates.out);
    }
}

pub(crate) fn qk_norm<'a>(decoder: &Decoder<'_>, w: &LayerParams<'a>) -> Option<QkNorm<'a>> {
    let spec = &decoder.spec;
    let (of, (q, k)) = spec.qk_norms.zip(w.qk_norm)?;
    Some(QkNorm { q, k, eps: spec.rms_eps, offset: spec.architecture().norm_offset, of })
}

pub(crate) fn heads(spec: &ModelSpec) -> Heads {
    Heads { heads: spec.heads as usize, kv_heads: spec.kv_heads as usize, head_dim: spec.head_dim as usize }
}
