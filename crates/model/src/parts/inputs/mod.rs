//! Inputs of each token that a layer has of its own, and adds, gated by its rows, after the feed-forward part.
//!
//! They are rows of a table next to products of the embeddings. Only models with frozen weights are trained: nothing
//! has a gradient here but the residual stream.

pub(crate) mod regions;

use crate::decoder::Decoder;
use crate::layer::LayerPass;
use crate::layer_backward::LayerBackward;
use crate::pass::Pass;
use plimsoll_device::{ColumnOrder, Columns, Device, MoveColumns};
use plimsoll_memory::Buf;
use regions::{InputBufs, InputRegions};

/// Computes the inputs of all layers from the tokens and their embeddings, if layers have them.
pub(crate) fn begin(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>, embedded: Buf<'_>) {
    let Some((of, regions)) = decoder.params.inputs.zip(pass.acts.parts.inputs) else { return };
    let (m, all, h) = (pass.rows, of.table.k, decoder.spec.hidden as usize);
    let InputRegions { rows, context, x, .. } = regions;
    let (rows, context, x) = (rows.slice(0, m * all), context.slice(0, m * all), x.slice(0, m * h));
    dev.embed(of.table, pass.ids, rows);
    dev.scale(rows, (of.norm.len() as f32).sqrt());
    dev.cast(embedded, x);
    dev.matmul(x, of.context, None, context, false);
    dev.scale(context, 1.0 / (h as f32).sqrt());
    dev.rms_norm_add(context, decoder.norm(of.norm), rows, rows);
    dev.scale(rows, std::f32::consts::FRAC_1_SQRT_2);
}

/// Adds a layer's own input to the residual after it, if it has one.
pub(crate) fn add(layer: &LayerPass<'_, '_, '_>) {
    let LayerPass { dev, w, decoder, bufs, index, .. } = *layer;
    let Some((of, w)) = bufs.input.zip(w.input) else { return };
    dev.cast(bufs.next, of.x);
    dev.matmul(of.x, w.gate, None, of.gate, false);
    let from = Columns::of_rows(of.rows, index as usize * of.width, of.rows.len() / layer.pass.rows);
    copy(layer, &of, Columns::of_rows(of.gate, 0, of.width), Columns::of_rows(of.gate_up, 0, 2 * of.width));
    copy(layer, &of, from, Columns::of_rows(of.gate_up, of.width, 2 * of.width));
    dev.glu(layer.spec().architecture().gate, of.gate_up, of.width, of.product);
    dev.matmul(of.product, w.projection, None, of.out, false);
    dev.rms_norm_add(of.out, decoder.norm(w.norm), bufs.next, bufs.next);
}

/// Adds the gradient of a layer's residual through its own input, if it has one.
pub(crate) fn backward(step: &LayerBackward<'_, '_, '_>) {
    let LayerPass { dev, w, bufs, .. } = *step.layer;
    let Some((of, w)) = bufs.input.zip(w.input) else { return };
    let d = step.back.d_branch.expect("a norm follows the input").slice(0, of.out.len());
    dev.zero(d);
    step.norm_backward_into(of.out, |w| w.input.map(|own| own.norm), step.d_resid, (d, Some(step.d_out)));
    dev.matmul_dx(step.d_out, w.projection, of.product, false);
    dev.glu_backward(
        step.layer.spec().architecture().gate,
        of.gate_up,
        of.width,
        of.product,
        of.gate_up,
        None,
    );
    let gates = Columns::of_rows(of.gate_up, 0, 2 * of.width);
    copy(step.layer, &of, gates, Columns::of_rows(of.gate, 0, of.width));
    dev.matmul_dx(of.gate, w.gate, d, false);
    dev.accumulate(d, step.d_resid, true);
    dev.cast(step.d_resid, step.d_out);
}

/// Copies as many columns of all rows as an input has.
fn copy(layer: &LayerPass<'_, '_, '_>, of: &InputBufs<'_>, from: Columns<'_>, to: Columns<'_>) {
    let (rows, columns, order) = (layer.pass.rows, of.width, ColumnOrder::Same);
    layer.dev.move_columns(MoveColumns { from, to, rows, heads: 1, columns, order, add: false });
}
