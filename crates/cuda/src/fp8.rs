//! Products of numbers of eight bits, on Hopper, and the launcher of `fp8_round.cu`.
//!
//! Legend: M rows, N outputs, K inputs. Products of few rows are our own kernel's, those of many the library's where it
//! gives the same bits: both add the sums of 128 inputs in order, and scales that are powers of two round nothing.

use super::fp8_library;
use super::fp8_tiles::{Fp8Operands, TILE_ROWS, launch};
use super::lt::Fp8Shape;
use super::matmul::rows;
use super::{Arg, CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{FP8_BLOCK, Fp8, Fp8Room, Matrix, Rounded, fp8_pitch, fp8_row_scales};
use plimsoll_memory::Buf;

/// Threads of a block that rounds rows, sixteen for each 128 numbers, and blocks that a multiprocessor runs at once.
const ROUND_THREADS: usize = 256;
const ROUND_BLOCKS: usize = 8;

pub(crate) fn round(dev: &CudaDevice, w: Matrix<'_>, to: Fp8<'_>) {
    assert_eq!((w.n, w.k, w.buf.dtype()), (to.n, to.k, DType::Bf16), "weights and their rounded copy");
    let scales = to.scales.expect("codes have scales");
    let grid = [w.k.div_ceil(FP8_BLOCK) as u32, w.n.div_ceil(FP8_BLOCK) as u32, 1];
    let args = args![dev, w.buf, to.codes, scales, w.n, w.k, fp8_pitch(w.k as u64) as usize];
    dev.launch("fp8_round", "fp8_weights_bf16", Launch { grid, block: 512, shared: 0 }, &args);
}

pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    Rounded { w, room }: Rounded<'_>,
    bias: Option<Buf<'_>>,
    resid: Option<Buf<'_>>,
    out: Buf<'_>,
) {
    assert!(
        resid.is_none() || (bias.is_none() && out.dtype() == DType::F32),
        "a bias, or an f32 residual stream"
    );
    let scales = dev.address(w.scales.expect("codes have scales"));
    let of = Fp8Shape {
        m: rows(x, w.k),
        n: w.n,
        k: w.k,
        out: out.dtype(),
        add: resid.is_some(),
        bias: bias.is_some() && out.dtype() == DType::Bf16,
    };
    let summand = if of.bias { bias } else { resid };
    product(dev, of, x, (dev.address(w.codes), scales), room, (summand, out));
    if let Some(bias) = bias.filter(|_| !of.bias) {
        super::rows::add_bias(dev, out, bias);
    }
}

pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, of: Rounded<'_>, out: Buf<'_>) {
    let Rounded { w, room } = of;
    let turned = dev.address(room.turned.expect("an update has room for codes in the other order"));
    let scales = turned + (w.n * w.k) as u64;
    let grid = [w.k.div_ceil(64) as u32, w.n.div_ceil(64) as u32, 1];
    let pitches = [w.k, w.n].map(|width| fp8_pitch(width as u64) as usize);
    let [pitch, turned_pitch] = pitches;
    let of_w = w.scales.expect("codes have scales");
    let args = args![dev, w.codes, Arg::Ptr(turned), w.n, w.k, of_w, Arg::Ptr(scales), pitch, turned_pitch];
    dev.launch("fp8_round", "fp8_turn", Launch { grid, block: 256, shared: 0 }, &args);
    let shape = Fp8Shape { m: rows(dy, w.n), n: w.k, k: w.n, out: out.dtype(), add: false, bias: false };
    product(dev, shape, dy, (turned, scales), room, (None, out));
}

/// Rounds the rows of x, and computes their products.
fn product(
    dev: &CudaDevice,
    of: Fp8Shape,
    x: Buf<'_>,
    w: (u64, u64),
    room: Fp8Room<'_>,
    (summand, out): (Option<Buf<'_>>, Buf<'_>),
) {
    let Fp8Shape { m, n, k, .. } = of;
    assert_eq!((x.dtype(), out.len()), (DType::Bf16, m * n), "[{m}, {n}] of bf16");
    if m == 0 || dev.has_failed() {
        return;
    }
    let room_scales = room.scales.expect("codes have scales");
    let needed = (m * k, fp8_row_scales(m as u64, k as u64) as usize);
    assert!(needed.0 <= room.rows.len() && needed.1 <= room_scales.len(), "room for [{m}, {k}]");
    let (codes, scales) = (dev.address(room.rows), dev.address(room_scales));
    let operands = |first: usize, scales: u64, pitch: usize| Fp8Operands {
        w,
        x: (codes + (first * k) as u64, scales),
        pitch,
        summand: match summand {
            None => 0,
            Some(buf) if of.bias => dev.address(buf),
            Some(buf) => dev.address(buf) + (first * n) as u64 * buf.dtype().bytes(),
        },
        out: dev.address(out) + (first * n) as u64 * out.dtype().bytes(),
    };
    let own = |first: usize, m: usize, scales: u64| {
        let pitch = m.next_multiple_of(if m > TILE_ROWS { TILE_ROWS } else { 8 });
        let operands = operands(first, scales, pitch);
        round_rows(dev, dev.address(x) + (first * k) as u64 * 2, m, k, &operands);
        launch(dev, &Fp8Shape { m, ..of }, &operands);
    };
    // The library takes whole fours of rows, whose scales lie that far apart.
    let whole = m / 4 * 4;
    let by_library = Fp8Shape { m: whole, ..of };
    let is_few = m <= TILE_ROWS;
    let found = if is_few { None } else { fp8_library::algorithm(dev, &by_library) };
    let Some(algorithm) = found else { return own(0, m, scales) };
    let of_whole = operands(0, scales, whole);
    round_rows(dev, dev.address(x), whole, k, &of_whole);
    let put = || fp8_library::put(dev, &by_library, &of_whole, &algorithm, dev.workspace());
    let done = match &dev.profile {
        Some(profile) => profile.time(&dev.gpu, || "Fp8".to_string(), put),
        None => put(),
    };
    if let Err(error) = done {
        return dev.fail(error);
    }
    if whole < m {
        own(whole, m - whole, scales + (whole * k.div_ceil(FP8_BLOCK)) as u64 * 4);
    }
}

/// Rounds rows of bf16 from an address on.
fn round_rows(dev: &CudaDevice, x: u64, m: usize, k: usize, to: &Fp8Operands) {
    let blocks = m * k.div_ceil(FP8_BLOCK);
    let most = dev.multiprocessors() as usize * ROUND_BLOCKS;
    let grid = [blocks.div_ceil(ROUND_THREADS / 16).min(most) as u32, 1, 1];
    let args = args![dev, Arg::Ptr(x), Arg::Ptr(to.x.0), Arg::Ptr(to.x.1), m, k, to.pitch];
    let launch = Launch { grid, block: ROUND_THREADS as u32, shared: 0 };
    dev.launch("fp8_round", "fp8_rows_bf16", launch, &args);
}
