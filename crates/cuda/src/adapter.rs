//! Low-rank adapters of linear layers and their gradients.
//!
//! Legend: M rows, N outputs and K inputs of the layer, S blocks of rank r, e the storage of activations. On Hopper
//! adapters are a part of the layer's own product (`adapted.rs`). Elsewhere `adapter.cu` has kernels for the forward's
//! narrow or shallow products, whose bits do not depend on M and which round a sum once. The first runs on a second
//! stream, in parallel to the layer's own product. Gradients have `adapter_gradients.cu`; odd sizes go to `sgemm.cu`.

use super::adapted::BLOCKS_MAX;
use super::chosen::Chosen;
use super::lt::{Op, Shape, Strides};
use super::matmul::{Product, by_library, product, rows};
use super::sgemm::{self, Columns, Sum};
use super::{
    Arg, CudaDevice, Launch, adapted, adapted_codes, adapter_gradients, blocks, chain, count, fp8, matmul,
    memory,
};
use plimsoll_base::DType;
use plimsoll_device::{AdaptBackward, Adapted, Adapter, Matrix, MatrixLayout};
use plimsoll_memory::Buf;
use std::ops::Range;

/// Rows and columns of a block of `adapter_up` and `adapter_dx`, and columns of one of `adapter_down`.
const UP_TILE: usize = 64;
const DOWN_COLS: usize = 32;
/// Rows from which a block of `adapter_down` takes 32 of them instead of 16.
const MANY_ROWS: usize = 1024;

/// Computes u, and out = x W^T with bias, or resid + x W^T, plus u_i B_i^T at the outputs of each block.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    of: Adapted<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) {
    let Adapted { w, bias, adapter, .. } = of;
    let m = rows(x, w.k);
    assert_eq!((u.len(), u.dtype()), (m * adapter.a.n, x.dtype()), "u of [{m}, {}]", adapter.a.n);
    assert_eq!((out.len(), w.layout, adapter.a.k), (m * w.n, MatrixLayout::Rows, w.k), "[{m}, {}]", w.n);
    let is_sum = |of: Buf<'_>| of.len() == out.len() && [of.dtype(), out.dtype()] == [DType::F32; 2];
    assert!(resid.is_none_or(|of| bias.is_none() && is_sum(of)), "an f32 sum without a bias");
    assert!(bias.is_none_or(|b| b.len() == w.n), "a bias of {} outputs", w.n);
    check(&adapter, m, u, out);
    if let Some(rounded) = of.fp8 {
        fp8::forward(dev, x, rounded, bias, resid, out);
        down(dev, x, adapter, u);
        return up(dev, u, adapter, out, Chosen::All);
    }
    if adapted_codes::forward(dev, x, &of, resid, u, out) {
        return;
    }
    of.codes.into_iter().for_each(|codes| blocks::dequantize(dev, codes, w));
    if adapted::forward(dev, x, &of, resid, u, out) {
        return;
    }
    beside(dev, x, adapter, u);
    match resid {
        Some(resid) => matmul::forward_add(dev, x, w, resid, out),
        None => matmul::forward(dev, x, w, bias, out, false),
    }
    dev.join_fork();
    up(dev, u, adapter, out, Chosen::All);
}

/// Computes dx = dy W + du A.
pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, of: Adapted<'_>, du: Buf<'_>, dx: Buf<'_>) {
    let m = rows(dy, of.w.n);
    assert_eq!((dx.len(), du.len()), (m * of.w.k, m * of.adapter.a.n), "[{m}, {}]", of.w.k);
    assert_eq!((of.w.layout, of.adapter.a.k), (MatrixLayout::Rows, of.w.k));
    of.codes.into_iter().for_each(|codes| blocks::dequantize(dev, codes, of.w));
    match of.fp8 {
        Some(rounded) => fp8::backward_x(dev, dy, rounded, dx),
        None if adapted::backward_x(dev, dy, &of, du, dx) => return,
        None => matmul::backward_x(dev, dy, of.w, dx, false),
    }
    if !add_dx(dev, du, of.adapter.a, dx) {
        matmul::backward_x(dev, du, of.adapter.a, dx, true);
    }
}

/// Computes u = scale x A^T, rounded. `x`: [M, K] e; `u`: [M, S r] e.
pub(crate) fn down(dev: &CudaDevice, x: Buf<'_>, adapter: Adapter<'_>, u: Buf<'_>) {
    let m = rows(x, adapter.a.k);
    assert_eq!((u.len(), u.dtype()), (m * adapter.a.n, x.dtype()), "u of [{m}, {}]", adapter.a.n);
    if !adapted::down(dev, m, x, &adapter, u) {
        beside(dev, x, adapter, u);
        dev.join_fork();
    }
}

/// Computes u in parallel to the operations that follow, until `up`: they may not write `x`.
fn beside(dev: &CudaDevice, x: Buf<'_>, adapter: Adapter<'_>, u: Buf<'_>) {
    dev.fork(|| down_of(dev, x, &adapter, u, Chosen::All));
}

/// Computes u of the chosen rows.
pub(super) fn down_of(dev: &CudaDevice, x: Buf<'_>, adapter: &Adapter<'_>, u: Buf<'_>, chosen: Chosen<'_>) {
    let (a, m) = (adapter.a, rows(x, adapter.a.k));
    if m == 0 {
        return;
    }
    if !by_library(dev, &[x, a.buf], &[a.k]) {
        let (x, to) = (Columns::whole(x, a.k), Columns::whole(u, a.n));
        let sum = Sum { scale: adapter.scale, add: false };
        return sgemm::forward_rows(dev, m, x, a, None, to, sum, chosen);
    }
    let (kernel, rows) = if m < MANY_ROWS { ("adapter_down_few", 16) } else { ("adapter_down_many", 32) };
    let grid = [a.n.div_ceil(DOWN_COLS) as u32, m.div_ceil(rows) as u32, 1];
    let sizes = [m, a.n, a.k].map(count);
    let buffers = [x, a.buf, u].map(|buf| dev.arg(buf));
    let args = [&buffers[..], &sizes, &[Arg::F32(adapter.scale)], &chosen.args(dev)].concat();
    dev.launch("adapter", kernel, Launch { grid, block: 512, shared: 0 }, &args);
}

/// Adds u_i B_i^T to the outputs of each block. `u`: [M, S r] e; `out`: [M, N] e or f32.
pub(super) fn up(dev: &CudaDevice, u: Buf<'_>, adapter: Adapter<'_>, out: Buf<'_>, chosen: Chosen<'_>) {
    let (sr, r) = (adapter.a.n, adapter.rank());
    let m = rows(u, sr);
    let width = check(&adapter, m, u, out);
    if m == 0 {
        return;
    }
    let whole = adapter.blocks().all(|(_, block)| {
        by_library(dev, &[block.b.buf], &[block.first, block.b.n]) && dev.address(out).is_multiple_of(16)
    });
    let is_few = adapter.blocks().count() <= BLOCKS_MAX;
    if !is_few || !whole || !by_library(dev, &[u], &[sr, r, width]) {
        for (i, block) in adapter.blocks() {
            let (from, to) = (Columns::of(u, sr, i * r), Columns::of(out, width, block.first));
            let sum = Sum { scale: 1.0, add: true };
            sgemm::forward_rows(dev, m, from, block.b, None, to, sum, chosen);
        }
        return;
    }
    let (of_blocks, tiles) = block_args(dev, &adapter);
    let mut args = vec![dev.arg(u), count(sr)];
    args.extend(of_blocks);
    args.extend(args![dev, out, width, m, r]);
    args.extend(chosen.args(dev));
    let kernel = if out.dtype() == DType::F32 { "adapter_up_float" } else { "adapter_up_bf16" };
    dev.launch("adapter", kernel, tile_grid(tiles, m), &args);
}

/// Adds du A to dx in bf16: in f32, rounded once. False unless shapes are whole. `du`: [M, S r]; `dx`: [M, K].
fn add_dx(dev: &CudaDevice, du: Buf<'_>, a: Matrix<'_>, dx: Buf<'_>) -> bool {
    let m = rows(du, a.n);
    let whole = by_library(dev, &[du, a.buf], &[a.n, a.k]) && dev.address(dx).is_multiple_of(16);
    if !whole || a.n > DEPTH_MAX || dx.dtype() != DType::Bf16 {
        return false;
    }
    let args = args![dev, du, a.buf, dx, m, a.n, a.k];
    dev.launch("adapter", "adapter_dx_bf16", tile_grid(a.k.div_ceil(UP_TILE), m), &args);
    true
}

/// Depth up to which `add_dx` takes a shallow product: three adapters of the largest rank.
const DEPTH_MAX: usize = 768;

fn tile_grid(tiles: usize, m: usize) -> Launch {
    Launch { grid: [tiles as u32, m.div_ceil(UP_TILE) as u32, 1], block: 128, shared: 0 }
}

/// Computes du_i = scale dy_i B_i of each block. `dy`: [M, N] e; `du`: [M, S r] e.
pub(crate) fn backward_u(dev: &CudaDevice, dy: Buf<'_>, adapter: Adapter<'_>, du: Buf<'_>) {
    let (sr, r, scale) = (adapter.a.n, adapter.rank(), adapter.scale);
    let m = rows(du, sr);
    let width = check(&adapter, m, du, dy);
    assert_eq!(du.dtype(), dy.dtype(), "du is stored as gradients of outputs are");
    if m == 0 || adapted::backward_u(dev, (m, width), dy, &adapter, du) {
        return;
    }
    for (i, block) in adapter.blocks() {
        let b = block.b;
        let (from, to) = (Columns::of(dy, width, block.first), Columns::of(du, sr, i * r));
        if by_library(dev, &[from.buf, b.buf, to.buf], &[b.n, r, width, sr]) {
            let strides = Strides { a: r, b: width, out: sr };
            let shape = Shape { strides, of_many: true, ..Shape::new(Op::BackwardX, m, b.n, r, du.dtype()) };
            product(dev, shape, Product { scale, ..Product::new(b.buf, from.buf, to.buf) });
        } else {
            sgemm::backward_x_columns(dev, m, from, b, to, Sum { scale, add: false });
        }
    }
}

/// Writes grad B_i = dy_i^T u_i of each block and grad A = du^T x, or adds them when `add`.
pub(crate) fn backward_w(dev: &CudaDevice, args: AdaptBackward<'_>) {
    let AdaptBackward { x, u, dy, du, grads, add, .. } = args;
    let (sr, r, m) = (grads.a.n, grads.rank(), rows(x, grads.a.k));
    let width = check(&grads, m, u, dy);
    let types = [u, dy, du].map(|buf| buf.dtype());
    assert_eq!((du.len(), types), (u.len(), [x.dtype(); 3]), "du is u's gradient, and all are stored alike");
    if adapter_gradients::run(dev, &args, m, width) {
        return;
    }
    for (i, block) in grads.blocks() {
        let (dy, u) = (Columns::of(dy, width, block.first), Columns::of(u, sr, i * r));
        begin_sum(dev, block.b, add);
        if m > 0 {
            sgemm::backward_w_columns(dev, m, dy, u, block.b);
        }
    }
    begin_sum(dev, grads.a, add);
    if m > 0 {
        sgemm::backward_w_columns(dev, m, Columns::whole(du, sr), Columns::whole(x, grads.a.k), grads.a);
    }
}

/// Computes out = w + scale B_i A_i at the outputs of each block, w elsewhere. `w`, `out`: [N, K].
pub(crate) fn merge(dev: &CudaDevice, w: Matrix<'_>, adapter: Adapter<'_>, out: Matrix<'_>) {
    let (a, r, scale) = (adapter.a, adapter.rank(), adapter.scale);
    assert_eq!((w.n, w.k, a.k), (out.n, out.k, w.k), "w and out of one shape, and A of as many inputs");
    assert_eq!([w.layout, out.layout, a.layout], [MatrixLayout::Rows; 3]);
    adapter.check_width(w.n);
    let whole = w.k.is_multiple_of(8)
        && adapter.blocks().count() <= BLOCKS_MAX
        && r.is_multiple_of(8)
        && by_library(dev, &[w.buf, out.buf, a.buf], &[w.k])
        && adapter.blocks().all(|(_, block)| by_library(dev, &[block.b.buf], &[]));
    let mut end = 0;
    let copy = |rows: Range<usize>| {
        chain::accumulate(dev, rows_of(w, rows.clone()), rows_of(out, rows), false);
    };
    for (i, block) in adapter.blocks() {
        let (first, n) = (block.first, block.b.n);
        copy(end..first);
        end = first + n;
        if !whole {
            let [from, to] = [w, out].map(|of| rows_of(of, first..end));
            chain::accumulate(dev, from, to, false);
            let a = Matrix::new(a.buf.slice(i * r * a.k, r * a.k), r, a.k, a.layout);
            let (b, to) = (Columns::whole(block.b.buf, r), Columns::whole(to, out.k));
            sgemm::backward_x_columns(dev, n, b, a, to, Sum { scale, add: true });
        }
    }
    copy(end..w.n);
    if whole {
        let (mut args, tiles) = block_args(dev, &adapter);
        args.extend([a.buf, w.buf, out.buf].map(|buf| dev.arg(buf)));
        args.extend([count(r), count(a.k), Arg::F32(scale)]);
        let grid = [a.k.div_ceil(UP_TILE) as u32, tiles as u32, 1];
        dev.launch("adapter", "adapter_merge_bf16", Launch { grid, block: 128, shared: 0 }, &args);
    }
}

/// Returns each block's B, first output and number of outputs, as kernel parameters; and the tiles of all blocks.
fn block_args(dev: &CudaDevice, adapter: &Adapter<'_>) -> (Vec<Arg>, usize) {
    let (mut args, mut tiles) = (Vec::new(), 0);
    for block in adapter.blocks.into_iter().take(BLOCKS_MAX) {
        let (b, first, n) = block.map_or((Arg::Ptr(0), 0, 0), |of| (dev.arg(of.b.buf), of.first, of.b.n));
        args.extend([b, count(first), count(n)]);
        tiles += n.div_ceil(UP_TILE);
    }
    (args, tiles)
}

fn rows_of<'a>(of: Matrix<'a>, rows: Range<usize>) -> Buf<'a> {
    of.buf.slice(rows.start * of.k, rows.len() * of.k)
}

/// Zeroes a gradient before a sum is added to it, unless `add`.
fn begin_sum(dev: &CudaDevice, grad: Matrix<'_>, add: bool) {
    if !add {
        memory::zero(dev, grad.buf);
    }
}

/// Checks u and the blocks against the layer's outputs (or their gradients); returns N, or 0 without rows.
pub(super) fn check(adapter: &Adapter<'_>, m: usize, u: Buf<'_>, out: Buf<'_>) -> usize {
    let a = adapter.a;
    assert_eq!((u.len(), a.layout), (m * a.n, MatrixLayout::Rows), "u of [{m}, {}]", a.n);
    adapter.check(m, out)
}
