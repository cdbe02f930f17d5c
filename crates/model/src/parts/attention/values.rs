//! Values whose heads are divided by the root of their mean square: products of the input, or keys before their norm.
//!
//! Between the input projection and rotation a row becomes queries, keys and such values, side by side.

use super::value_regions::{Role, ValueBufs};
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
        let values = match spec.values {
            Values::Own | Values::Normed | Values::Shared => q + kv,
            Values::OfKeys => q,
        };
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

    /// Returns the columns of a matrix of keys and values.
    fn both<'b>(&self, buf: Buf<'b>) -> Columns<'b> {
        Columns::of_rows(buf, 0, 2 * self.kv)
    }

    /// Returns the columns of a matrix of values.
    fn alone<'b>(&self, buf: Buf<'b>) -> Columns<'b> {
        Columns::of_rows(buf, 0, self.kv)
    }
}

/// Puts queries, keys and normalised values side by side.
pub(super) fn normalise(layer: &LayerPass<'_, '_, '_>, spec: &AttentionSpec, bufs: &ValueBufs<'_>) {
    let (dev, at, first) = (layer.dev, Places::of(spec), layer.bufs.qkv);
    if let Some(shared) = bufs.shared.filter(|shared| shared.is_given()) {
        copy(layer, at.in_first(first, 0), at.in_row(bufs.qkv, 0), at.q);
        return copy(layer, at.both(shared.rows), at.in_row(bufs.qkv, at.q), 2 * at.kv);
    }
    copy(layer, at.in_first(first, 0), at.in_row(bufs.qkv, 0), at.q + at.kv);
    copy(layer, at.in_first(first, at.values), at.alone(bufs.input), at.kv);
    dev.zero(bufs.zeros);
    dev.rms_norm(bufs.input, norm(layer, bufs), bufs.normed);
    copy(layer, at.alone(bufs.normed), at.in_row(bufs.qkv, at.q + at.kv), at.kv);
    if let Some(shared) = bufs.shared {
        copy(layer, at.in_row(bufs.qkv, at.q), at.both(shared.rows), 2 * at.kv);
    }
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
    if let Some(shared) = bufs.shared {
        let of_all = shared.d.expect("an update of shared keys");
        if shared.is_given() {
            let to = at.both(of_all);
            add(layer, at.in_row(d.qkv, at.q), to, 2 * at.kv, shared.role != Role::LastSharer);
            return copy(layer, at.in_row(d.qkv, 0), at.in_first(d_first, 0), at.q);
        }
        for part in [0, at.kv] {
            // In f32, rounded once.
            copy(layer, at.in_row(d.qkv, at.q + part), at.alone(d.input), at.kv);
            let from = Columns::of_rows(of_all, part, 2 * at.kv);
            add(layer, from, at.alone(d.input), at.kv, true);
            copy(layer, at.alone(d.input), at.in_row(d.qkv, at.q + part), at.kv);
        }
    }
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
    add(layer, from, to, columns, false);
}

/// Adds a block of columns of all rows to what is there, or copies it.
fn add(layer: &LayerPass<'_, '_, '_>, from: Columns<'_>, to: Columns<'_>, columns: usize, add: bool) {
    let (rows, order) = (layer.pass.rows, ColumnOrder::Same);
    layer.dev.move_columns(MoveColumns { from, to, rows, heads: 1, columns, order, add });
}
