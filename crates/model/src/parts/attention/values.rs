//! Values whose heads are divided by the root of their mean square: products of the input, or keys before their norm.
//!
//! Between the input projection and rotation a row becomes queries, keys and such values, side by side.

use super::value_regions::ValueBufs;
use crate::layer::LayerPass;
use crate::layer_backward::LayerBackward;
use plimsoll_arch::{AttentionSpec, Values};
use plimsoll_device::{ColumnOrder, Columns, MoveColumns, Norm, NormGrads};
use plimsoll_memory::Buf;

/// Where the parts of a row are: in what the input projection gives, and in the row with values.
struct Places {
    /// Width of the queries.
    q: usize,
    /// Width of the keys, and of the values.
    kv: usize,
    /// Width of what the input projection gives.
    first: usize,
    /// Where that has what values come from.
    values: usize,
}

impl Places {
    fn of(spec: &AttentionSpec) -> Places {
        let [q, kv, first] =
            [spec.q_width(), spec.kv_width(), spec.input_width()].map(|width| width as usize);
        let values = if spec.values == Values::OfKeys { q } else { q + kv };
        Places { q, kv, first, values }
    }

    /// Returns columns of what the input projection gives.
    fn in_first<'b>(&self, buf: Buf<'b>, at: usize) -> Columns<'b> {
        Columns::of_rows(buf, at, self.first)
    }

    /// Returns columns of rows with values.
    fn in_row<'b>(&self, buf: Buf<'b>, at: usize) -> Columns<'b> {
        Columns::of_rows(buf, at, self.q + 2 * self.kv)
    }

    /// Returns the columns of a matrix of values.
    fn alone<'b>(&self, buf: Buf<'b>) -> Columns<'b> {
        Columns::of_rows(buf, 0, self.kv)
    }
}

/// Puts queries, keys and normalised values side by side.
pub(super) fn normalise(layer: &LayerPass<'_, '_, '_>, spec: &AttentionSpec, bufs: &ValueBufs<'_>) {
    let (dev, at, first) = (layer.dev, Places::of(spec), layer.bufs.qkv);
    copy(layer, at.in_first(first, 0), at.in_row(bufs.qkv, 0), at.q + at.kv);
    copy(layer, at.in_first(first, at.values), at.alone(bufs.input), at.kv);
    dev.zero(bufs.zeros);
    dev.rms_norm(bufs.input, norm(layer, bufs), bufs.normed);
    copy(layer, at.alone(bufs.normed), at.in_row(bufs.qkv, at.q + at.kv), at.kv);
}

/// Computes the gradient of what the input projection gives, after `normalise` of the same rows: from that of queries,
/// keys and values in `ValueGradients::qkv`. The gradients of keys that are values are added in f32, and rounded once.
pub(super) fn backward(
    step: &LayerBackward<'_, '_, '_>,
    spec: &AttentionSpec,
    bufs: &ValueBufs<'_>,
    d_first: Buf<'_>,
) {
    let (layer, at, d) = (step.layer, Places::of(spec), bufs.gradients.expect("an update of values"));
    copy(layer, at.in_row(d.qkv, at.q + at.kv), at.alone(bufs.normed), at.kv);
    if spec.values == Values::OfKeys {
        copy(layer, at.in_row(d.qkv, at.q), at.alone(d.input), at.kv);
    } else {
        layer.dev.zero(d.input);
    }
    let to = NormGrads { dx: d.input, rounded: None, dw: None, add: false, rstd: d.rstd };
    layer.dev.rms_norm_backward(bufs.input, norm(layer, bufs), bufs.normed, to);
    copy(layer, at.in_row(d.qkv, 0), at.in_first(d_first, 0), at.values);
    copy(layer, at.alone(d.input), at.in_first(d_first, at.values), at.kv);
}

/// Returns the norm of a head, whose weights are 1.
fn norm<'b>(layer: &LayerPass<'_, '_, '_>, bufs: &ValueBufs<'b>) -> Norm<'b> {
    Norm { w: bufs.zeros, eps: layer.spec().rms_eps, offset: 1.0 }
}

/// Copies a block of columns of all rows.
fn copy(layer: &LayerPass<'_, '_, '_>, from: Columns<'_>, to: Columns<'_>, columns: usize) {
    let (rows, order) = (layer.pass.rows, ColumnOrder::Same);
    layer.dev.move_columns(MoveColumns { from, to, rows, heads: 1, columns, order, add: false });
}
