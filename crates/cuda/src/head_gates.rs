//! Launchers of `head_gates.cu`: splitting rows with gates, gating attention's output, and the gradients.

use super::rows::{blocks, typed, wide};
use super::{Arg, CudaDevice, count};
use plimsoll_device::{GateHeadsBackward, Heads};
use plimsoll_memory::Buf;

/// Returns the elements of a row with gates, of one of q, k and v, and of one of attention's output.
fn widths(heads: Heads) -> [usize; 3] {
    let Heads { heads: a, kv_heads: k, head_dim: d } = heads;
    [2 * (a + k) * d, (a + 2 * k) * d, a * d]
}

/// Asserts that buffers have the same number of rows, each of its width, and one dtype. Returns the rows.
fn check(bufs: &[(Buf<'_>, usize)]) -> usize {
    let (first, width) = bufs[0];
    let rows = super::matmul::rows(first, width);
    for (buf, width) in bufs {
        assert_eq!((buf.len(), buf.dtype()), (rows * width, first.dtype()), "[{rows}, {width}]");
    }
    rows
}

/// Returns the heads' sizes with whether threads have eight elements, and the threads for rows of `width`.
fn shape(dev: &CudaDevice, heads: Heads, bufs: &[Buf<'_>], rows: usize, width: usize) -> (Vec<Arg>, usize) {
    let is_wide = wide(dev, heads.head_dim, 8, bufs);
    let items = rows * width / if is_wide { 8 } else { 1 };
    let kv = 2 * heads.kv_heads * heads.head_dim;
    let args = [heads.heads, heads.head_dim, kv, usize::from(is_wide), items];
    (args.map(count).to_vec(), items)
}

/// Copies q, k and v out of rows with gates.
pub(crate) fn split(dev: &CudaDevice, x: Buf<'_>, heads: Heads, out: Buf<'_>) {
    let [gated, plain, _] = widths(heads);
    let rows = check(&[(x, gated), (out, plain)]);
    let (shape, items) = shape(dev, heads, &[x, out], rows, plain);
    let args = [&[dev.arg(x), dev.arg(out)], &shape[..]].concat();
    dev.launch("head_gates", typed!("split_gates", x), blocks(items, 256, 256), &args);
}

/// Copies gradients of q, k and v to their places in rows with gates.
pub(crate) fn join(dev: &CudaDevice, d_qkv: Buf<'_>, heads: Heads, dx: Buf<'_>) {
    let [gated, plain, _] = widths(heads);
    let rows = check(&[(dx, gated), (d_qkv, plain)]);
    let (shape, items) = shape(dev, heads, &[d_qkv, dx], rows, plain);
    let args = [&[dev.arg(d_qkv), dev.arg(dx)], &shape[..]].concat();
    dev.launch("head_gates", typed!("join_gates", dx), blocks(items, 256, 256), &args);
}

/// Computes out = attn * sigmoid(gate).
pub(crate) fn forward(dev: &CudaDevice, x: Buf<'_>, heads: Heads, attn: Buf<'_>, out: Buf<'_>) {
    let [gated, _, width] = widths(heads);
    let rows = check(&[(x, gated), (attn, width), (out, width)]);
    let (shape, items) = shape(dev, heads, &[x, attn, out], rows, width);
    let args = [&[dev.arg(x), dev.arg(attn), dev.arg(out)], &shape[..]].concat();
    dev.launch("head_gates", typed!("gate_heads", x), blocks(items, 256, 256), &args);
}

pub(crate) fn backward(dev: &CudaDevice, args: GateHeadsBackward<'_>) {
    let GateHeadsBackward { heads, x, attn, d, dx, out } = args;
    let [gated, _, width] = widths(heads);
    let again = out.unwrap_or(d);
    let rows = check(&[(x, gated), (attn, width), (d, width), (dx, gated), (again, width)]);
    let (shape, items) = shape(dev, heads, &[x, attn, d, dx, again], rows, width);
    let to = out.map_or(Arg::Ptr(0), |out| dev.arg(out));
    let args = [&args![dev, x, attn, d, dx, to], &shape[..]].concat();
    dev.launch("head_gates", typed!("gate_heads_backward", x), blocks(items, 256, 256), &args);
}
