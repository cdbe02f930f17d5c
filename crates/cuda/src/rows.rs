//! Launchers of `rows.cu`: embedding, norms, gates, casts, and sums over rows.
//!
//! Sums over rows go through partial sums in the scratch; how rows are cut into chunks depends on their number alone.

use super::{Arg, CudaDevice, Launch, count};
use plimsoll_arch::Gate;
use plimsoll_base::DType;
use plimsoll_device::{Activation, Matrix, MatrixLayout, Norm, NormGrads};
use plimsoll_memory::Buf;
use std::sync::atomic::Ordering;

/// Maximum chunks of rows of a sum.
const CHUNKS_MAX: usize = 512;
/// Widest row of which 256 threads hold eight elements each in a norm's backward pass: more blocks run at once.
const SHORT_WIDTH_MAX: usize = 2048;
/// Minimum rows of a chunk of `column_sums`: eight for each of a block's warps.
const CHUNK_ROWS: usize = 64;
/// Widest row that a block holds in registers: 512 threads with 32 elements.
const HELD_WIDTH_MAX: usize = 16_384;
/// Codes of `index_ok` in common.cuh.
const BAD_TOKEN: u32 = 1;
const BAD_ROW: u32 = 5;

/// Selects the kernel for the dtypes of some buffers.
macro_rules! typed {
    (@ $name:expr,) => { $name };
    (@ $name:expr, $buf:expr $(, $more:expr)*) => {
        match $buf.dtype() {
            plimsoll_base::DType::F32 => $crate::rows::typed!(@ concat!($name, "_float"), $($more),*),
            plimsoll_base::DType::Bf16 => $crate::rows::typed!(@ concat!($name, "_bf16"), $($more),*),
            other => panic!("{} of {}", $name, other.name()),
        }
    };
    ($name:expr, $($buf:expr),+) => { $crate::rows::typed!(@ $name, $($buf),+) };
}
pub(super) use typed;

/// Returns a launch of `threads` threads for every `per` of `items`, in a row of blocks.
pub(super) fn blocks(items: usize, per: usize, threads: u32) -> Launch {
    let grid = u32::try_from(items.div_ceil(per)).expect("buffers of this size fit no card");
    Launch { grid: [grid, 1, 1], block: threads, shared: 0 }
}

/// True if groups of `group` elements of rows of `width` are whole and aligned in all buffers.
pub(super) fn wide(dev: &CudaDevice, width: usize, group: usize, bufs: &[Buf<'_>]) -> bool {
    let aligned = |b: &Buf<'_>| dev.address(*b).is_multiple_of((group as u64 * b.dtype().bytes()).min(16));
    width.is_multiple_of(group) && bufs.iter().all(aligned)
}

/// Returns the scratch of sums over `rows` rows of `width`: norms, biases, and (width 2 d) norms of heads.
pub(crate) fn sum_scratch_bytes(rows: u64, width: u64) -> u64 {
    rows.min(CHUNKS_MAX as u64) * width * 4
}

/// Returns the scratch of `embed_backward` and `scatter_add_rows` for `rows` rows.
pub(crate) fn add_scratch_bytes(rows: u64) -> u64 {
    rows * 2 * 4
}

// ---- rows in and out ---------------------------------------------------------------------------------------------

pub(crate) fn embed(dev: &CudaDevice, table: Matrix<'_>, ids: Buf<'_>, out: Buf<'_>) {
    assert_eq!(table.layout, MatrixLayout::Rows);
    assert_eq!(out.len(), ids.len() * table.k, "[{}, {}] of embeddings", ids.len(), table.k);
    gather(dev, table.buf, table.n, ids, out, BAD_TOKEN);
}

pub(crate) fn gather_rows(dev: &CudaDevice, x: Buf<'_>, rows: Buf<'_>, out: Buf<'_>) {
    assert_eq!(x.dtype(), DType::F32);
    if rows.is_empty() {
        return;
    }
    let h = out.len() / rows.len();
    assert_eq!((out.len(), x.len() % h), (rows.len() * h, 0), "whole rows");
    gather(dev, x, x.len() / h, rows, out, BAD_ROW);
}

fn gather(dev: &CudaDevice, table: Buf<'_>, limit: usize, ids: Buf<'_>, out: Buf<'_>, code: u32) {
    assert_eq!((ids.dtype(), out.dtype()), (DType::U32, DType::F32));
    if ids.is_empty() {
        return;
    }
    let h = out.len() / ids.len();
    let wide = wide(dev, h, 4, &[table, out]);
    let threads = h.div_ceil(if wide { 4 } else { 1 }).next_multiple_of(32).min(256);
    dev.launch(
        "rows",
        typed!("gather", table),
        blocks(ids.len(), 1, threads as u32),
        &args![dev, table, ids, out, h, limit, code, wide],
    );
}

/// Computes x = by x.
pub(crate) fn scale(dev: &CudaDevice, x: Buf<'_>, by: f32) {
    assert_eq!(x.dtype(), DType::F32);
    let args = args![dev, x, by, x.len() as u64];
    dev.launch("rows", "scale", blocks(x.len(), 256, 256), &args);
}

/// Computes x = by x, where `by` is a number of the device.
pub(crate) fn scale_by(dev: &CudaDevice, x: Buf<'_>, by: Buf<'_>) {
    assert_eq!((x.dtype(), by.len()), (DType::F32, 1), "f32 by a number");
    let args = args![dev, x, by, x.len() as u64];
    dev.launch("rows", typed!("scale_by", by), blocks(x.len(), 256, 256), &args);
}

/// Computes x[m] += bias.
pub(crate) fn add_bias(dev: &CudaDevice, x: Buf<'_>, bias: Buf<'_>) {
    assert_eq!((x.dtype(), x.len() % bias.len()), (DType::F32, 0), "rows of {} f32", bias.len());
    let args = args![dev, x, bias, x.len() as u64, bias.len()];
    dev.launch("rows", typed!("add_bias", bias), blocks(x.len(), 256, 256), &args);
}

pub(crate) fn cast(dev: &CudaDevice, src: Buf<'_>, dst: Buf<'_>) {
    assert_eq!((src.len(), src.dtype()), (dst.len(), DType::F32), "lengths of a cast, from f32");
    let wide = wide(dev, 8, 8, &[src, dst]);
    let args = args![dev, src, dst, src.len() as u64, wide];
    dev.launch("rows", typed!("cast", dst), blocks(src.len(), 8 * 256, 256), &args);
}

// ---- gates -------------------------------------------------------------------------------------------------------

pub(crate) fn glu(dev: &CudaDevice, how: Gate, gate_up: Buf<'_>, f: usize, out: Buf<'_>) {
    let rows = out.len() / f;
    assert_eq!((out.len(), gate_up.len()), (rows * f, rows * 2 * f), "[{rows}, 2 x {f}] and [{rows}, {f}]");
    assert_eq!(gate_up.dtype(), out.dtype());
    let wide = wide(dev, f, 8, &[gate_up, out]);
    let items = if wide { out.len() / 8 } else { out.len() };
    let args = args![dev, gate_up, out, f, items, wide, is_gelu(how)];
    dev.launch("rows", typed!("glu", out), blocks(items, 256, 256), &args);
}

pub(super) fn is_gelu(how: Gate) -> Arg {
    assert!(how != Gate::ClampedSilu, "gates and ups that alternate are of experts");
    Arg::U32((how == Gate::GeluTanh).into())
}

/// Computes gradients of gate and up, which may take their place, and the product again, which may take its gradient's.
pub(crate) fn glu_backward(
    dev: &CudaDevice,
    how: Gate,
    gate_up: Buf<'_>,
    f: usize,
    dout: Buf<'_>,
    d_gate_up: Buf<'_>,
    out: Option<Buf<'_>>,
) {
    let rows = dout.len() / f;
    assert_eq!((dout.len(), gate_up.len()), (rows * f, rows * 2 * f), "[{rows}, 2 x {f}] and [{rows}, {f}]");
    assert_eq!(gate_up.len(), d_gate_up.len(), "gate and up, and their gradients");
    assert_eq!([gate_up.dtype(), d_gate_up.dtype()], [dout.dtype(); 2]);
    let again = out.unwrap_or(dout);
    assert_eq!((again.len(), again.dtype()), (dout.len(), dout.dtype()), "the product and its gradient");
    let wide = wide(dev, f, 8, &[gate_up, dout, d_gate_up, again]);
    let items = if wide { dout.len() / 8 } else { dout.len() };
    let args = args![dev, gate_up, dout, d_gate_up, out, f, items, wide, is_gelu(how)];
    dev.launch("rows", typed!("glu_backward", dout), blocks(items, 256, 256), &args);
}

// ---- activations -------------------------------------------------------------------------------------------------

/// Computes out = f(x); they may be the same memory.
pub(crate) fn activate(dev: &CudaDevice, how: Activation, x: Buf<'_>, out: Buf<'_>) {
    assert_eq!((x.len(), x.dtype()), (out.len(), out.dtype()), "an activation and what it is of");
    let relu = Arg::U32((how == Activation::Relu).into());
    let args = args![dev, x, out, x.len() as u64, relu];
    dev.launch("rows", typed!("activate", out), blocks(x.len(), 256, 256), &args);
}

/// Computes dx = dy times the slope at output y; they may be the same memory.
pub(crate) fn activate_backward(dev: &CudaDevice, how: Activation, y: Buf<'_>, dy: Buf<'_>, dx: Buf<'_>) {
    assert_eq!((y.len(), y.dtype()), (dy.len(), dy.dtype()), "an activation and its gradient");
    assert_eq!(
        (y.len(), y.dtype()),
        (dx.len(), dx.dtype()),
        "an activation and the gradient of what it is of"
    );
    let relu = Arg::U32((how == Activation::Relu).into());
    let args = args![dev, y, dy, dx, y.len() as u64, relu];
    dev.launch("rows", typed!("activate_backward", dx), blocks(y.len(), 256, 256), &args);
}

// ---- norms -------------------------------------------------------------------------------------------------------

/// Threads that share a row, by its length alone; `Any` takes rows of any length.
#[derive(Clone, Copy, PartialEq)]
enum Sharing {
    Warp,
    Block256,
    Block512,
    Any,
}

fn sharing(h: usize) -> Sharing {
    match h {
        _ if !h.is_multiple_of(4) || h > HELD_WIDTH_MAX => Sharing::Any,
        0..=1024 => Sharing::Warp,
        1025..=4096 => Sharing::Block256,
        _ => Sharing::Block512,
    }
}

/// Returns the kernel for the weights' dtype and that of the output's gradient, which is f32 or the same.
fn typed_two(name: &'static str, w: Buf<'_>, dy: Buf<'_>) -> &'static str {
    let mixed = w.dtype() != dy.dtype();
    assert!(!mixed || dy.dtype() == DType::F32, "gradients of {} of a norm", dy.dtype().name());
    match (name, mixed) {
        ("rms_norm_backward_warp", false) => typed!("rms_norm_backward_warp", w),
        ("rms_norm_backward_warp", true) => "rms_norm_backward_warp_bf16_float",
        ("rms_norm_backward_short", false) => typed!("rms_norm_backward_short", w),
        ("rms_norm_backward_short", true) => "rms_norm_backward_short_bf16_float",
        ("rms_norm_backward_256", false) => typed!("rms_norm_backward_256", w),
        ("rms_norm_backward_256", true) => "rms_norm_backward_256_bf16_float",
        ("rms_norm_backward_512", false) => typed!("rms_norm_backward_512", w),
        ("rms_norm_backward_512", true) => "rms_norm_backward_512_bf16_float",
        (_, false) => typed!("rms_norm_backward_any", w),
        (_, true) => "rms_norm_backward_any_bf16_float",
    }
}

/// Computes out = x / sqrt(mean(x^2) + eps) * w over each row.
pub(crate) fn rms_norm(dev: &CudaDevice, x: Buf<'_>, norm: Norm<'_>, out: Buf<'_>) {
    let Norm { w, eps, offset } = norm;
    let h = w.len();
    assert_eq!((x.len(), x.len() % h), (out.len(), 0), "x and out of a norm, rows of {h}");
    assert_eq!((x.dtype(), w.dtype()), (DType::F32, out.dtype()), "weights of the output's dtype");
    let rows = x.len() / h;
    // The kernel for any length adds in another order, which a test of exactness asks for.
    let sharing = if dev.perturbed.load(Ordering::Relaxed) { Sharing::Any } else { sharing(h) };
    assert!(sharing == Sharing::Any || wide(dev, h, 4, &[x, w, out]), "rows at aligned addresses");
    let args = args![dev, x, w, eps, offset, out, rows, h];
    let (kernel, how) = match sharing {
        // One warp a block where there are few rows, so that they spread over the card.
        Sharing::Warp if rows < 1024 => (typed!("rms_norm_warp", out), blocks(rows, 1, 32)),
        Sharing::Warp => (typed!("rms_norm_warp", out), blocks(rows, 4, 128)),
        Sharing::Block256 => (typed!("rms_norm_256", out), blocks(rows, 1, 256)),
        Sharing::Block512 => (typed!("rms_norm_512", out), blocks(rows, 1, 512)),
        Sharing::Any => (typed!("rms_norm_any", out), blocks(rows, 1, 256)),
    };
    dev.launch("rows", kernel, how, &args);
}

/// Computes out = resid + the norm of x.
pub(crate) fn rms_norm_add(dev: &CudaDevice, x: Buf<'_>, norm: Norm<'_>, resid: Buf<'_>, out: Buf<'_>) {
    let Norm { w, eps, offset } = norm;
    let h = w.len();
    assert_eq!([x.len(), resid.len()], [out.len(); 2], "x, resid and out of a norm");
    assert_eq!(x.len() % h, 0, "rows of {h}");
    assert_eq!([x, resid, out].map(|b| b.dtype()), [DType::F32; 3]);
    let args = args![dev, x, w, eps, offset, resid, out, h];
    dev.launch("rows", typed!("rms_norm_add", w), blocks(x.len() / h, 1, 256), &args);
}

/// Computes gradients through the norm; see `Device::rms_norm_backward`.
pub(crate) fn rms_norm_backward(
    dev: &CudaDevice,
    x: Buf<'_>,
    norm: Norm<'_>,
    dy: Buf<'_>,
    to: NormGrads<'_>,
) {
    let Norm { w, eps, offset } = norm;
    let NormGrads { dx, rounded, dw, add, rstd } = to;
    let h = w.len();
    let rows = x.len() / h;
    assert_eq!([x.len(), dy.len(), dx.len()], [rows * h; 3], "x, dy, dx of rows of {h}");
    assert_eq!((dw.map_or(h, Buf::len), rstd.len()), (h, rows), "dw and rstd of [{rows}, {h}]");
    assert_eq!([x, dx, rstd].map(|b| b.dtype()), [DType::F32; 3]);
    let same = rounded.map_or((rows * h, w.dtype()), |b| (b.len(), b.dtype()));
    assert_eq!(same, (rows * h, w.dtype()), "dx rounded to the weights' dtype");
    if rows == 0 {
        if let Some(dw) = dw.filter(|_| !add) {
            super::memory::zero(dev, dw);
        }
        return;
    }
    let sharing = sharing(h);
    // A frozen weight has no sums.
    let partials = dw.map_or(0, |_| dev.scratch(sum_scratch_bytes(rows as u64, h as u64)));
    let args = args![dev, x, w, eps, offset, dy, dx, rounded, rstd];
    if sharing == Sharing::Any {
        let args = [&args[..], &[count(h)]].concat();
        dev.launch("rows", typed_two("rms_norm_backward_any", w, dy), blocks(rows, 1, 256), &args);
        return dw.into_iter().for_each(|dw| column_sums(dev, dy, Some((x, rstd)), dw, add));
    }
    assert!(wide(dev, h, 4, &[x, w, dy, dx, rounded.unwrap_or(dx)]), "rows at aligned addresses");
    let args = [&args[..], &[Arg::Ptr(partials), count(rows), count(h)]].concat();
    let (kernel, per_block, threads) = match sharing {
        Sharing::Warp => ("rms_norm_backward_warp", 4, 128),
        Sharing::Block256 if h <= SHORT_WIDTH_MAX => ("rms_norm_backward_short", 1, 256),
        Sharing::Block256 => ("rms_norm_backward_256", 1, 256),
        _ => ("rms_norm_backward_512", 1, 512),
    };
    let chunks = rows.div_ceil(per_block).min(CHUNKS_MAX);
    dev.launch("rows", typed_two(kernel, w, dy), blocks(chunks, 1, threads), &args);
    dw.into_iter().for_each(|dw| add_partials(dev, Arg::Ptr(partials), chunks, h, dw, add));
}

// ---- sums over rows ----------------------------------------------------------------------------------------------

/// Computes grad[n] = sum over rows of dy, or grad[n] += .
pub(crate) fn bias_backward(dev: &CudaDevice, dy: Buf<'_>, grad: Buf<'_>, add: bool) {
    assert_eq!(dy.len() % grad.len(), 0, "rows of {}", grad.len());
    column_sums(dev, dy, None, grad, add);
}

/// Computes grad[c] = sum over rows of y[row][c], or of y x rstd[row]; or grad[c] += .
fn column_sums(dev: &CudaDevice, y: Buf<'_>, scaled: Option<(Buf<'_>, Buf<'_>)>, grad: Buf<'_>, add: bool) {
    let (n, rows) = (grad.len(), y.len() / grad.len());
    if rows == 0 {
        if !add {
            super::memory::zero(dev, grad);
        }
        return;
    }
    let chunk_rows = rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS);
    let chunks = rows.div_ceil(chunk_rows);
    let partials = Arg::Ptr(dev.scratch(sum_scratch_bytes(rows as u64, n as u64)));
    let (x, rstd) = scaled.map_or((Arg::Ptr(0), Arg::Ptr(0)), |(x, rstd)| (dev.arg(x), dev.arg(rstd)));
    let wide = wide(dev, n, 4, &[y, scaled.map_or(y, |s| s.0)]);
    let how = Launch { grid: [n.div_ceil(128) as u32, chunks as u32, 1], block: 256, shared: 0 };
    let args = args![dev, y, x, rstd, partials, rows, n, chunk_rows, wide];
    dev.launch("rows", typed!("column_sums", y), how, &args);
    add_partials(dev, partials, chunks, n, grad, add);
}

/// Computes grad[c] = sum over chunks of partials[chunk][c], `stride` elements apart; or grad[c] += .
pub(super) fn add_partials(
    dev: &CudaDevice,
    partials: Arg,
    chunks: usize,
    stride: usize,
    grad: Buf<'_>,
    add: bool,
) {
    let args = args![dev, partials, grad, chunks, stride, grad.len(), add];
    dev.launch("rows", typed!("add_partials", grad), blocks(grad.len(), 32, 1024), &args);
}

pub(crate) fn embed_backward(dev: &CudaDevice, d: Buf<'_>, ids: Buf<'_>, grad: Matrix<'_>) {
    assert_eq!(grad.layout, MatrixLayout::Rows);
    assert_eq!(d.len(), ids.len() * grad.k, "[{}, {}] of embedding gradients", ids.len(), grad.k);
    add_rows(dev, d, ids, grad.buf, grad.n, BAD_TOKEN, Adds::Sum);
}

pub(crate) fn scatter_add_rows(dev: &CudaDevice, src: Buf<'_>, rows: Buf<'_>, dst: Buf<'_>) {
    assert_eq!(dst.dtype(), DType::F32);
    if rows.is_empty() {
        return;
    }
    let h = src.len() / rows.len();
    assert_eq!((src.len(), dst.len() % h), (rows.len() * h, 0), "whole rows");
    add_rows(dev, src, rows, dst, dst.len() / h, BAD_ROW, Adds::Each);
}

/// Order in which the rows of a target are added to it.
#[derive(Clone, Copy, PartialEq)]
enum Adds {
    /// One after the other.
    Each,
    /// Their sum, once.
    Sum,
}

/// Adds rows to targets. Rows are sorted by target first, stably, so that one block adds a target's rows in order.
fn add_rows(
    dev: &CudaDevice,
    src: Buf<'_>,
    targets: Buf<'_>,
    dst: Buf<'_>,
    limit: usize,
    code: u32,
    how: Adds,
) {
    assert_eq!((src.dtype(), targets.dtype()), (DType::F32, DType::U32));
    let rows = targets.len();
    if rows == 0 {
        return;
    }
    let h = src.len() / rows;
    let scratch = dev.scratch(add_scratch_bytes(rows as u64));
    let (order, runs) = (Arg::Ptr(scratch), Arg::Ptr(scratch + 4 * rows as u64));
    dev.launch("rows", "order_rows", blocks(rows, 8, 256), &[dev.arg(targets), order, runs, count(rows)]);
    let launch = Launch { grid: [rows as u32, h.div_ceil(128) as u32, 1], block: 32, shared: 0 };
    let wide = wide(dev, h, 4, &[src, dst]);
    let args = args![dev, src, targets, order, runs, dst, h, limit, code, wide, how == Adds::Each];
    dev.launch("rows", typed!("add_rows", dst), launch, &args);
}
