//! Products of numbers of eight bits, as the numbers that codes stand for: bf16 and f32 hold them.

use crate::elementwise::split;
use crate::lanes::by_dtype;
use crate::{CpuDevice, Real, matmul};
use plimsoll_base::fp8::{largest, round_block, rounded, scale_of};
use plimsoll_device::{FP8_BLOCK, Fp8, Fp8Room, Matrix, MatrixLayout, Rounded};
use plimsoll_memory::Buf;

/// Writes to = w, rounded.
pub(crate) fn round(dev: &CpuDevice, w: Matrix<'_>, to: Fp8<'_>) {
    assert_eq!((w.n, w.k, w.buf.dtype()), (to.n, to.k, to.codes.dtype()), "weights and their rounded copy");
    let strips = w.n.div_ceil(FP8_BLOCK);
    let strip = w.layout.elements(FP8_BLOCK as u64, w.k as u64) as usize;
    by_dtype!(w.buf, E => {
        let (from, to) = (dev.read::<E>(w.buf), dev.write::<E>(to.codes));
        dev.pool().run(strips, &|index, _| {
            let (start, n) = (index * strip, FP8_BLOCK.min(w.n - index * FP8_BLOCK));
            let len = strip.min(from.len() - start);
            // SAFETY: a task writes its own strip of whole panels.
            round_strip(&from[start..start + len], unsafe { to.range(start, len) }, (w.layout, n, w.k));
        });
    });
}

/// Rounds up to 128 rows, block by block; `of`: their order, number and length. Padding stays zero.
fn round_strip<E: Real>(from: &[E], to: &mut [E], of: (MatrixLayout, usize, usize)) {
    let (layout, n, k) = of;
    to.fill(E::from_f32(0.0));
    for first in (0..k).step_by(FP8_BLOCK) {
        let columns = first..(first + FP8_BLOCK).min(k);
        let each = |row: usize| columns.clone().map(move |col| layout.index(k, row, col));
        let most = (0..n).flat_map(each).fold(0, |most, at| most.max(largest(&[from[at].to_f32()])));
        let scale = (most < f32::INFINITY.to_bits()).then(|| scale_of(most));
        for at in (0..n).flat_map(each) {
            to[at] = E::from_f32(scale.map_or(f32::NAN, |scale| rounded(from[at].to_f32(), scale)));
        }
    }
}

/// Writes rounded rows of `width` to the room.
fn round_rows<'a>(dev: &CpuDevice, x: Buf<'_>, width: usize, room: Fp8Room<'a>) -> Buf<'a> {
    let to = room.rows.slice(0, x.len());
    by_dtype!(x, E => {
        let (from, out) = (dev.read::<E>(x), dev.write::<E>(to));
        split(dev, x.len() / width, width, &|rows| {
            let part = rows.start * width..rows.end * width;
            // SAFETY: parts are disjoint, and each is one task's.
            let out = unsafe { out.range(part.start, part.len()) };
            let mut block = [0.0f32; FP8_BLOCK];
            for (from, to) in from[part].chunks(width).zip(out.chunks_mut(width)) {
                for (from, to) in from.chunks(FP8_BLOCK).zip(to.chunks_mut(FP8_BLOCK)) {
                    let block = &mut block[..from.len()];
                    block.iter_mut().zip(from).for_each(|(x, from)| *x = from.to_f32());
                    round_block(block);
                    to.iter_mut().zip(&*block).for_each(|(to, x)| *to = E::from_f32(*x));
                }
            }
        });
    });
    to
}

/// Returns the rounded weights as a matrix.
fn numbers<'a>(of: Fp8<'a>) -> Matrix<'a> {
    Matrix::new(of.codes, of.n, of.k, MatrixLayout::of_weights(&crate::LAYOUTS, of.codes.dtype()))
}

pub(crate) fn forward(
    dev: &CpuDevice,
    x: Buf<'_>,
    Rounded { w, room }: Rounded<'_>,
    bias: Option<Buf<'_>>,
    resid: Option<Buf<'_>>,
    out: Buf<'_>,
) {
    let x = round_rows(dev, x, w.k, room);
    match resid {
        Some(resid) => matmul::forward_add(dev, x, numbers(w), resid, out),
        None => matmul::forward(dev, x, numbers(w), bias, out, false),
    }
}

pub(crate) fn backward_x(dev: &CpuDevice, dy: Buf<'_>, of: Rounded<'_>, out: Buf<'_>) {
    let Rounded { w, room } = of;
    matmul::backward_x(dev, round_rows(dev, dy, w.n, room), numbers(w), out, false);
}
