//! Latent attention of a layer: from its input to that of its output projection, and back.
//!
//! Queries meet latents: a head's query goes through the transposed key rows of the head, and the sum of latents that
//! attention gives goes through its value rows. So a row has one key for all heads, D wide: its rotated part, then the
//! latent. It is the value, too, whose first columns are not used.
//!
//! Legend: as in `arch::LatentSpec`, and M rows.

pub(crate) mod regions;
mod up;

use super::attention::{attend, scores};
use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, MixerGradients, Product};
use plimsoll_arch::Site;
use plimsoll_device::{
    AttentionBackward, ColumnOrder, Columns, Heads, MoveColumns, Norm, NormGrads, RopeBackward,
};
use plimsoll_memory::Buf;
use regions::{GradientBufs, LatentBufs};
use up::{Part, gradients, is_trained, product};

/// Blocks of columns on their way, of all heads or of one.
struct Blocks<'b> {
    from: Columns<'b>,
    to: Columns<'b>,
    columns: usize,
    order: ColumnOrder,
}

/// Computes the input of the output projection.
pub(super) fn forward(layer: &LayerPass<'_, '_, '_>, bufs: &LatentBufs<'_>) {
    let first = layer.bufs.qkv;
    layer.product(Site::Qkv, layer.bufs.norm_attn, first);
    normalise(layer, bufs);
    if let Some(query) = bufs.query {
        layer.product(Site::QueryUp, query.normed, query.queries);
    }
    let queries = bufs.queries(first);
    let to = bufs.latents(bufs.adjacent, bufs.heads + 2);
    product(layer, bufs, (Part::Keys, true), [queries, to]);
    let rotated = Columns { first: queries.first + bufs.key_dim, ..queries };
    let to = Columns { first: 0, ..to };
    move_heads(
        layer,
        bufs,
        Blocks { from: rotated, to, columns: bufs.rotated, order: ColumnOrder::ToHalves },
    );
    key_and_value(layer, bufs);
    attend(layer, &bufs.attention, bufs.adjacent, bufs.out);
    let values = bufs.values_in_rows(layer.bufs.attn);
    product(layer, bufs, (Part::Values, false), [bufs.latents(bufs.out, bufs.heads), values]);
}

/// Computes the gradients of all products, and of the norms of latents.
pub(super) fn backward(step: &LayerBackward<'_, '_, '_>, bufs: &LatentBufs<'_>, of: MixerGradients<'_>) {
    let (layer, dev, d) = (step.layer, step.layer.dev, bufs.gradients.expect("an update"));
    step.weight_gradient(of.output);
    step.input_gradient(of.output, of.d_mixed);
    values_backward(step, bufs, &d, of.d_mixed);
    let [dq, dkv] = bufs.attention.gradients.expect("an update");
    let lse = bufs.attention.lse.expect("the update keeps log-sum-exps");
    let (batch, scores) = (layer.pass.batch, scores(&bufs.attention.spec, layer.w));
    let (q, kv, out, dout) = (bufs.attention.q, bufs.attention.kv, bufs.out, d.out);
    dev.attention_backward(AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv });
    let rotation = layer.decoder.rotation(&bufs.attention.spec, layer.index, layer.pass);
    let heads = Heads { heads: bufs.heads, kv_heads: 1, head_dim: bufs.key_width() };
    let (positions, dqkv) = (batch.positions, bufs.adjacent);
    dev.rope_backward(RopeBackward { dq, dkv, rotation, positions, heads, norms: None, dqkv });
    normalise(layer, bufs);
    queries_backward(step, bufs, &d, of.d_first);
    keys_backward(step, bufs, &d, of.d_first);
    let first = Product { site: Site::Qkv, x: layer.bufs.norm_attn, dy: of.d_first };
    step.product_gradients(first, of.d_input);
}

/// Computes the norms of latents from the input projection's output.
fn normalise(layer: &LayerPass<'_, '_, '_>, bufs: &LatentBufs<'_>) {
    let (first, [query_norm, key_norm]) = (layer.bufs.qkv, norms(layer, bufs));
    let widen = |at: usize, to: Buf<'_>, columns: usize| {
        let from = Columns::of_rows(first, at, bufs.first_width());
        let to = Columns::of_rows(to, 0, columns);
        move_rows(layer, bufs, Blocks { from, to, columns, order: ColumnOrder::Same }, false);
    };
    if let Some(query) = bufs.query {
        widen(0, query.input, query.width);
        layer.dev.rms_norm(query.input, query_norm.expect("a latent of queries has a norm"), query.normed);
    }
    widen(bufs.query_inputs, bufs.key_input, bufs.latent);
    layer.dev.rms_norm(bufs.key_input, key_norm.expect("a latent has a norm"), bufs.key);
}

/// Puts the key of each row, and its value, after the queries.
fn key_and_value(layer: &LayerPass<'_, '_, '_>, bufs: &LatentBufs<'_>) {
    let width = (bufs.heads + 2) * bufs.key_width();
    for part in [bufs.heads, bufs.heads + 1] {
        let at = part * bufs.key_width();
        let from = Columns::of_rows(layer.bufs.qkv, bufs.query_inputs + bufs.latent, bufs.first_width());
        let to = Columns::of_rows(bufs.adjacent, at, width);
        let rotated = Blocks { from, to, columns: bufs.rotated, order: ColumnOrder::ToHalves };
        move_rows(layer, bufs, rotated, false);
        let from = Columns::of_rows(bufs.key, 0, bufs.latent);
        let to = Columns::of_rows(bufs.adjacent, at + bufs.rotated, width);
        move_rows(layer, bufs, Blocks { from, to, columns: bufs.latent, order: ColumnOrder::Same }, false);
    }
}

/// Computes the gradients of the heads' value rows, and of what attention gives, into `d.out`.
fn values_backward(
    step: &LayerBackward<'_, '_, '_>,
    bufs: &LatentBufs<'_>,
    d: &GradientBufs<'_>,
    d_mixed: Buf<'_>,
) {
    let (layer, dev) = (step.layer, step.layer.dev);
    let values = bufs.values_in_rows(d_mixed);
    if is_trained(step) {
        bufs.heads(layer, values, bufs.values_by_head(), bufs.value_dim);
        bufs.heads(layer, bufs.latents(bufs.out, bufs.heads), bufs.by_head(bufs.wide), bufs.latent);
        gradients(step, bufs, Part::Values);
    }
    // The first columns of what attention gives are not used.
    dev.zero(d.out);
    product(layer, bufs, (Part::Values, true), [values, bufs.latents(d.out, bufs.heads)]);
}

/// Computes the gradients of the heads' key rows and of queries, from that of rotated queries, into `d_first`.
fn queries_backward(
    step: &LayerBackward<'_, '_, '_>,
    bufs: &LatentBufs<'_>,
    d: &GradientBufs<'_>,
    d_first: Buf<'_>,
) {
    let (layer, p) = (step.layer, bufs.key_dim);
    let rotated = bufs.latents(bufs.adjacent, bufs.heads + 2);
    if is_trained(step) {
        bufs.heads(layer, rotated, bufs.by_head(bufs.wide), bufs.latent);
        let by_head = Columns::by_head(bufs.keys, bufs.rows, p);
        bufs.heads(layer, bufs.queries(layer.bufs.qkv), by_head, p);
        gradients(step, bufs, Part::Keys);
    }
    let to = match bufs.query.zip(d.query) {
        Some((_, d)) => Columns { buf: d.queries, ..bufs.queries(layer.bufs.qkv) },
        None => Columns { buf: d_first, ..bufs.queries(layer.bufs.qkv) },
    };
    product(layer, bufs, (Part::Keys, false), [rotated, to]);
    let from = Columns { first: 0, ..rotated };
    let to = Columns { first: to.first + p, ..to };
    move_heads(layer, bufs, Blocks { from, to, columns: bufs.rotated, order: ColumnOrder::ToPairs });
    let Some((query, d_query)) = bufs.query.zip(d.query) else { return };
    let product = Product { site: Site::QueryUp, x: query.normed, dy: d_query.queries };
    step.product_gradients(product, Some(d_query.normed));
    let [norm, _] = norms(layer, bufs);
    let dw = step.weights().and_then(|grads| grads.q_norm);
    let dx = d.norm.slice(0, query.input.len());
    norm_backward(step, (query.input, norm), d_query.normed, (dx, dw));
    let to = Columns::of_rows(d_first, 0, bufs.first_width());
    let from = Columns::of_rows(dx, 0, query.width);
    move_rows(layer, bufs, Blocks { from, to, columns: query.width, order: ColumnOrder::Same }, false);
}

/// Computes the gradients of latents and of rotated keys, from those of keys and values, into `d_first`.
fn keys_backward(
    step: &LayerBackward<'_, '_, '_>,
    bufs: &LatentBufs<'_>,
    d: &GradientBufs<'_>,
    d_first: Buf<'_>,
) {
    let (layer, width) = (step.layer, (bufs.heads + 2) * bufs.key_width());
    for (part, add) in [(bufs.heads, false), (bufs.heads + 1, true)] {
        let from = Columns::of_rows(bufs.adjacent, part * bufs.key_width() + bufs.rotated, width);
        let to = Columns::of_rows(d.key, 0, bufs.latent);
        move_rows(layer, bufs, Blocks { from, to, columns: bufs.latent, order: ColumnOrder::Same }, add);
    }
    let [_, norm] = norms(layer, bufs);
    let dw = step.weights().and_then(|grads| grads.k_norm);
    let dx = d.norm.slice(0, bufs.key_input.len());
    norm_backward(step, (bufs.key_input, norm), d.key, (dx, dw));
    let from = Columns::of_rows(dx, 0, bufs.latent);
    let to = Columns::of_rows(d_first, bufs.query_inputs, bufs.first_width());
    move_rows(layer, bufs, Blocks { from, to, columns: bufs.latent, order: ColumnOrder::Same }, false);
    let from = Columns::of_rows(bufs.adjacent, bufs.heads * bufs.key_width(), width);
    let to = Columns { first: bufs.query_inputs + bufs.latent, ..to };
    move_rows(layer, bufs, Blocks { from, to, columns: bufs.rotated, order: ColumnOrder::ToPairs }, false);
}

/// Computes the gradients of a latent's norm: that of its input into `dx`.
fn norm_backward(
    step: &LayerBackward<'_, '_, '_>,
    (x, norm): (Buf<'_>, Option<Norm<'_>>),
    dy: Buf<'_>,
    (dx, dw): (Buf<'_>, Option<Buf<'_>>),
) {
    let (dev, rstd) = (step.layer.dev, step.back.rstd.slice(0, step.layer.pass.rows));
    dev.zero(dx);
    let to = NormGrads { dx, rounded: None, dw, add: step.add, rstd };
    dev.rms_norm_backward(x, norm.expect("a latent has a norm"), dy, to);
}

/// Returns the norms of the latents of queries and of keys.
fn norms<'a>(layer: &LayerPass<'_, 'a, '_>, bufs: &LatentBufs<'_>) -> [Option<Norm<'a>>; 2] {
    [layer.w.q_norm, layer.w.k_norm].map(|w| w.map(|w| Norm::new(w, bufs.eps)))
}

impl LatentBufs<'_> {
    /// Moves a block of each head.
    fn heads(&self, layer: &LayerPass<'_, '_, '_>, from: Columns<'_>, to: Columns<'_>, columns: usize) {
        move_heads(layer, self, Blocks { from, to, columns, order: ColumnOrder::Same });
    }
}

fn move_heads(layer: &LayerPass<'_, '_, '_>, bufs: &LatentBufs<'_>, blocks: Blocks<'_>) {
    let Blocks { from, to, columns, order } = blocks;
    let (rows, heads) = (bufs.rows, bufs.heads);
    layer.dev.move_columns(MoveColumns { from, to, rows, heads, columns, order, add: false });
}

fn move_rows(layer: &LayerPass<'_, '_, '_>, bufs: &LatentBufs<'_>, blocks: Blocks<'_>, add: bool) {
    let Blocks { from, to, columns, order } = blocks;
    layer.dev.move_columns(MoveColumns { from, to, rows: bufs.rows, heads: 1, columns, order, add });
}
