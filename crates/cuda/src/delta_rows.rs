//! Launchers of linear attention's row operations around its rule: `delta_inputs.cu` and `delta_norm.cu`.
//!
//! Sums over rows go through partial sums in the scratch; how rows are cut into chunks depends on their number alone.

use super::delta::{check_heads, head_args, placed, segments};
use super::rows::{add_partials, blocks, typed};
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_arch::DeltaSpec;
use plimsoll_base::DType;
use plimsoll_device::{
    CONV_TAPS, DeltaHeads, DeltaInputs, DeltaInputsBackward, DeltaWeights, NormGated, NormGatedBackward,
};
use plimsoll_memory::Buf;

/// Heads of a block, a warp each.
const WARPS: usize = 8;
/// Maximum rows of a block that looks up their segments once; blocks per multiprocessor with fewer rows.
const LOOKED_UP: usize = 32;
const BLOCKS_EACH: usize = 8;
/// Channels of a block that has four a thread.
const BLOCK_CHANNELS: usize = 1024;
/// Rows of a block of the convolution's gradient by its inputs; each block reads three rows more.
const CONVOLVED_ROWS: usize = 16;
/// Maximum chunks of rows of the gradients by weights, and minimum rows of one.
const CHUNKS_MAX: usize = 128;
const CHUNK_ROWS: usize = 32;
/// Maximum blocks of the norm's gradient, and heads of rows that a warp reads at once.
const NORM_BLOCKS_MAX: usize = 1024;
const NORM_AHEAD: usize = 2;

/// Returns the bytes of scratch for gradients of rows of linear attention.
pub(crate) fn scratch_bytes(spec: DeltaSpec, rows: u64) -> u64 {
    let sums = (4 * u64::from(spec.conv_width()) + 2 * u64::from(spec.value_heads)).next_multiple_of(4);
    let chunks = rows.div_ceil(CHUNK_ROWS as u64).min(CHUNKS_MAX as u64);
    4 * (chunks * sums).max(NORM_BLOCKS_MAX as u64 * u64::from(spec.value_dim))
}

/// Returns the blocks of all heads of a row: those of q, k and v, and one for gates.
fn head_blocks(heads: DeltaHeads) -> usize {
    (2 * heads.key_heads + heads.value_heads + 1).div_ceil(WARPS)
}

/// Checks whether rows of inputs, of any even length, are whole groups of four elements at aligned addresses.
fn is_wide(dev: &CudaDevice, heads: DeltaHeads, bufs: &[Buf<'_>]) -> Arg {
    Arg::U32(super::rows::wide(dev, heads.input_width(), 4, bufs).into())
}

/// Asserts the shape of inputs. Returns their rows.
fn check_inputs(heads: DeltaHeads, x: Buf<'_>, weights: DeltaWeights<'_>) -> usize {
    check_heads(heads);
    let DeltaWeights { conv, decay, bias } = weights;
    assert_eq!([conv, decay, bias].map(|b| b.dtype()), [x.dtype(); 3], "weights of the inputs' dtype");
    check_weights(heads, weights);
    super::matmul::rows(x, heads.input_width())
}

fn check_weights(heads: DeltaHeads, weights: DeltaWeights<'_>) {
    let DeltaWeights { conv, decay, bias } = weights;
    let lens = [heads.conv_width() * CONV_TAPS, heads.value_heads, heads.value_heads];
    assert_eq!([conv, decay, bias].map(|b| b.len()), lens, "weights of {heads:?}");
}

pub(crate) fn inputs(dev: &CudaDevice, args: DeltaInputs<'_>) {
    let DeltaInputs { heads, x, weights, places, tails, qkv, gates } = args;
    let (rows, segments) = (check_inputs(heads, x, weights), placed(places));
    assert_eq!((qkv.len(), qkv.dtype()), (rows * heads.conv_width(), x.dtype()), "[{rows}, C] of q, k, v");
    assert_eq!((gates.len(), gates.dtype()), (rows * 2 * heads.value_heads, DType::F32), "g and beta");
    let num_places = tails.map_or(0, |tails| {
        assert_eq!((tails.dtype(), tails.len() % heads.tail()), (x.dtype(), 0), "tails of {heads:?}");
        tails.len() / heads.tail()
    });
    let index = [places.places, places.segments].map(|b| dev.arg(b));
    let pass = [&head_args(heads)[..], &[count(rows), count(segments), count(num_places)]].concat();
    let how = [Arg::U32(places.has_parents.into()), is_wide(dev, heads, &[x])];
    let old = tails.map_or(Arg::Ptr(0), |tails| dev.arg(tails));
    // Rows that are segments of their own leave their tails where they are computed.
    let leaves_tails = tails.is_some() && rows == segments;
    let new = if leaves_tails { old } else { Arg::Ptr(0) };
    let groups = head_blocks(heads);
    let each = (rows * groups).div_ceil(BLOCKS_EACH * dev.multiprocessors() as usize);
    // Four rows are computed together.
    let each = if each > 2 { each.next_multiple_of(4).min(LOOKED_UP) } else { each.max(1) };
    let DeltaWeights { conv, decay, bias } = weights;
    let of = [conv, decay, bias, qkv, gates].map(|b| dev.arg(b));
    let args = [&[dev.arg(x), old], &index[..], &of, &[new], &pass, &how, &[count(each)]].concat();
    let grid = [groups as u32, rows.div_ceil(each) as u32, 1];
    let launch = Launch { grid, block: 32 * WARPS as u32, shared: 0 };
    dev.launch("delta_inputs", typed!("delta_inputs", x), launch, &args);
    if tails.is_some() && !leaves_tails {
        let args = [&[dev.arg(x), old], &index[..], &pass, &how].concat();
        let grid = [heads.conv_width().div_ceil(BLOCK_CHANNELS) as u32, segments as u32, 1];
        let launch = Launch { grid, block: 256, shared: 0 };
        dev.launch("delta_inputs", typed!("delta_tails", x), launch, &args);
    }
}

pub(crate) fn inputs_backward(dev: &CudaDevice, args: DeltaInputsBackward<'_>) {
    let DeltaInputsBackward { heads, x, weights, segments: records, d_qkv, d_gates, dx, grads, add } = args;
    let (rows, segments) = (check_inputs(heads, x, weights), segments(records));
    assert_eq!((d_qkv.len(), d_qkv.dtype()), (rows * heads.conv_width(), DType::F32), "[{rows}, C] f32");
    assert_eq!((d_gates.len(), d_gates.dtype()), (rows * 2 * heads.value_heads, DType::F32), "of gates");
    assert_eq!((dx.len(), dx.dtype()), (x.len(), x.dtype()), "gradients of inputs");
    grads.into_iter().for_each(|grads| check_weights(heads, grads));
    let each = rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS);
    let chunks = rows.div_ceil(each);
    let sums = heads.conv_width() * CONV_TAPS;
    let stride = (sums + 2 * heads.value_heads).next_multiple_of(4);
    let partials = grads.map_or(0, |_| dev.scratch(4 * (chunks * stride) as u64));
    let wide = is_wide(dev, heads, &[x, dx]);
    let pass = [&head_args(heads)[..], &[count(rows), count(segments), wide]].concat();
    let DeltaWeights { conv, decay, bias } = weights;
    let of = [x, records, conv, decay, bias, d_qkv, d_gates, dx].map(|b| dev.arg(b));
    let args = [&of[..], &[Arg::Ptr(partials)], &pass, &[count(each)]].concat();
    let grid = [head_blocks(heads) as u32, chunks as u32, 1];
    let launch = Launch { grid, block: 32 * WARPS as u32, shared: 0 };
    dev.launch("delta_inputs", typed!("delta_inputs_backward", x), launch, &args);
    let of = [x, records, conv, d_qkv, dx].map(|b| dev.arg(b));
    let args = [&of[..], &pass, &[count(CONVOLVED_ROWS)]].concat();
    let groups = heads.conv_width().div_ceil(BLOCK_CHANNELS) as u32;
    let grid = [groups, rows.div_ceil(CONVOLVED_ROWS) as u32, 1];
    let launch = Launch { grid, block: 256, shared: 0 };
    dev.launch("delta_inputs", typed!("delta_convolve_backward", x), launch, &args);
    let Some(DeltaWeights { conv, decay, bias }) = grads else { return };
    let mut first = 0;
    for grad in [conv, decay, bias] {
        add_partials(dev, Arg::Ptr(partials + 4 * first as u64), chunks, stride, grad, add);
        first += grad.len();
    }
}

/// Checks shapes; returns the heads of rows, and the kernels' arguments about them.
fn norm_args(
    dev: &CudaDevice,
    heads: DeltaHeads,
    rows: &[Buf<'_>],
    inputs: &[Buf<'_>],
    w: Buf<'_>,
) -> (usize, [Arg; 6]) {
    check_heads(heads);
    let m = super::matmul::rows(rows[0], heads.value_width());
    let (e, width) = (rows[0].dtype(), heads.input_width());
    assert_eq!((w.len(), w.dtype()), (heads.value_dim, e), "[dv] of a norm");
    assert!(rows.iter().all(|b| b.len() == m * heads.value_width() && b.dtype() == e), "[{m}, H dv]");
    assert!(inputs.iter().all(|b| b.len() == m * width && b.dtype() == e), "[{m}, {width}]");
    let items = m * heads.value_heads;
    let sizes = [items, heads.value_heads, heads.value_dim, width, heads.conv_width()].map(count);
    let [items_arg, of, dim, width, z] = sizes;
    (items, [items_arg, of, dim, width, z, is_wide(dev, heads, inputs)])
}

pub(crate) fn norm(dev: &CudaDevice, args: NormGated<'_>) {
    let NormGated { heads, o, x, w, eps, y } = args;
    let (items, shape) = norm_args(dev, heads, &[o, y], &[x], w);
    let [o_arg, x_arg, w_arg, y_arg] = [o, x, w, y].map(|b| dev.arg(b));
    let args = [&[o_arg, x_arg, w_arg, Arg::F32(eps), y_arg], &shape[..]].concat();
    dev.launch("delta_norm", typed!("norm_gated", o), blocks(items, WARPS, 32 * WARPS as u32), &args);
}

pub(crate) fn norm_backward(dev: &CudaDevice, args: NormGatedBackward<'_>) {
    let NormGatedBackward { heads, o, x, w, eps, d, dx, dw, add } = args;
    let (items, shape) = norm_args(dev, heads, &[o, d], &[x, dx], w);
    let chunks = items.div_ceil(WARPS * NORM_AHEAD).min(NORM_BLOCKS_MAX);
    let partials = dw.map_or(0, |dw| dev.scratch(4 * (chunks * dw.len()) as u64));
    let [o_arg, x_arg, w_arg, d_arg, dx_arg] = [o, x, w, d, dx].map(|b| dev.arg(b));
    let of = [o_arg, x_arg, w_arg, Arg::F32(eps), d_arg, dx_arg, Arg::Ptr(partials)];
    let args = [&of[..], &shape].concat();
    let launch = blocks(chunks, 1, 32 * WARPS as u32);
    dev.launch("delta_norm", typed!("norm_gated_backward", o), launch, &args);
    if let Some(dw) = dw {
        assert_eq!(dw.len(), heads.value_dim, "[dv] of a norm");
        add_partials(dev, Arg::Ptr(partials), chunks, heads.value_dim, dw, add);
    }
}
