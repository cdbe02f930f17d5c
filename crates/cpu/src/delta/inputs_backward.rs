//! The gradient of `delta_inputs`: back through head norms and silu to each row's inputs, and to the weights.
//!
//! An input's gradient is one chain: the rows of its segment that read it, ascending, then those of children, in order.
//! A weight's is one chain over rows in the order of segments, added to the old value once.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::super::attention::{Segment, segments};
use super::super::elementwise::split;
use super::super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::super::norm::{dot, load_any, store_any};
use super::super::{CpuDevice, Shared};
use super::inputs::{
    Decay, Inputs, ROWS, TAIL, Taps, Unit, check_weights, convolved, gate_inputs, inverse_length, overlap,
    units,
};
use super::shared::{add_sums, check_rows, check_segments, rows_of, sigmoid, softplus};
use plimsoll_device::{
    CONV_TAPS, DELTA_HEAD_MAX, DeltaInputsBackward, DeltaWeights, NO_PARENT, SEGMENT_FIELDS,
};
use std::ops::Range;

pub(crate) fn backward(dev: &CpuDevice, args: DeltaInputsBackward<'_>) {
    let DeltaInputsBackward { heads, x, weights, segments, d_qkv, d_gates, dx, grads, add } = args;
    let rows = rows_of(&heads, x, heads.input_width());
    check_weights(&heads, &weights);
    if let Some(grads) = &grads {
        check_weights(&heads, grads);
    }
    let of_rows = [
        ("d_qkv", d_qkv, heads.conv_width()),
        ("d_gates", d_gates, 2 * heads.value_heads),
        ("dx", dx, heads.input_width()),
    ];
    check_rows(rows, of_rows);
    let fields = dev.read::<u32>(segments);
    assert_eq!(fields.len() % SEGMENT_FIELDS, 0, "whole records of segments");
    assert_eq!(check_segments(fields, rows), rows, "every row is in a segment");
    by_dtype!(x, T => {
        let call = Call::<T> {
            dev,
            inputs: Inputs { heads, x: dev.read(x), tails: None },
            weights,
            fields,
            has_children: super::super::attention::segments(fields).any(|segment| segment.parent != NO_PARENT),
            d_qkv: dev.write(d_qkv),
            d_gates: dev.read(d_gates),
            dx: dev.write(dx),
        };
        call.unbend(rows);
        call.to_inputs(rows);
        if let Some(grads) = &grads {
            call.to_taps(grads, add);
            call.to_gate_weights(grads, add);
        }
    });
}

struct Call<'a, T> {
    dev: &'a CpuDevice,
    inputs: Inputs<'a, T>,
    weights: DeltaWeights<'a>,
    fields: &'a [u32],
    has_children: bool,
    d_qkv: Shared<'a, f32>,
    d_gates: &'a [f32],
    dx: Shared<'a, T>,
}

impl<T: Lanes> Call<'_, T> {
    fn segments(&self) -> impl Iterator<Item = Segment> + Clone {
        segments(self.fields)
    }

    /// Overwrites the gradients of q, k and v with those of the convolution's outputs.
    fn unbend(&self, rows: usize) {
        let heads = &self.inputs.heads;
        let (units, blocks) = (units(heads), rows.div_ceil(ROWS));
        split(self.dev, units * blocks, 2 * DELTA_HEAD_MAX * rows.min(ROWS), &|part| {
            for item in part {
                let (unit, block) = (Unit::new(heads, item / blocks), block(item % blocks));
                let taps = Taps::new(self.dev, self.weights.conv, unit);
                for segment in self.segments() {
                    let here = overlap(&segment, &block);
                    unbend::<T>(self.dev.isa(), self, &taps, unit, &segment, here);
                }
            }
        });
    }

    /// Writes dx except for z.
    fn to_inputs(&self, rows: usize) {
        let heads = &self.inputs.heads;
        let (units, blocks) = (units(heads), rows.div_ceil(ROWS));
        // The gates are one more unit.
        split(self.dev, (units + 1) * blocks, DELTA_HEAD_MAX * rows.min(ROWS), &|part| {
            for item in part {
                let (index, block) = (item / blocks, block(item % blocks));
                let unit = (index < units).then(|| Unit::new(heads, index));
                let taps = unit.map(|unit| (unit, Taps::new(self.dev, self.weights.conv, unit)));
                for segment in self.segments() {
                    let here = overlap(&segment, &block);
                    match &taps {
                        Some((unit, taps)) => spread::<T>(self.dev.isa(), self, taps, *unit, &segment, here),
                        None => self.gates(&segment, here),
                    }
                }
            }
        });
    }

    /// Writes dx of b and a, for rows of a segment.
    fn gates(&self, segment: &Segment, rows: Range<usize>) {
        let heads = &self.inputs.heads;
        let h = heads.value_heads;
        for first in (0..h).step_by(LANES) {
            let (weights, n) = (Decay::new(self.dev, &self.weights, first), LANES.min(h - first));
            for m in rows.clone().map(|i| segment.first_row + i) {
                let (b, a) = gate_inputs(heads, self.inputs.x, m);
                let at = m * heads.input_width() + heads.conv_width() + heads.value_width() + first;
                // SAFETY: the gates of row m are this task's.
                let (db, da) = unsafe { (self.dx.range(at, n), self.dx.range(at + h, n)) };
                let (dg, dbeta) = self.d_gates[m * 2 * h..][..2 * h].split_at(h);
                let d = (&dg[first..][..n], &dbeta[first..][..n]);
                gates_row::<T>(self.dev.isa(), &weights, (&a[first..][..n], &b[first..][..n]), d, (da, db));
            }
        }
    }

    /// Computes the gradient of the taps.
    fn to_taps(&self, grads: &DeltaWeights<'_>, add: bool) {
        let heads = &self.inputs.heads;
        let (units, rows) = (units(heads), self.inputs.x.len() / heads.input_width());
        split(self.dev, units, 2 * DELTA_HEAD_MAX * rows, &|part| {
            for unit in part.map(|index| Unit::new(heads, index)) {
                let mut sums = [0.0; CONV_TAPS * DELTA_HEAD_MAX];
                for first in (0..unit.width).step_by(COLUMNS) {
                    let width = COLUMNS.min(unit.width - first);
                    let of = Unit { first: unit.first + first, width, ..unit };
                    sum_taps::<T>(
                        self.dev.isa(),
                        self,
                        of,
                        &mut sums[first * CONV_TAPS..][..width * CONV_TAPS],
                    );
                }
                let sums = &sums[..unit.width * CONV_TAPS];
                add_sums(self.dev, grads.conv, unit.first * CONV_TAPS, sums, add);
            }
        });
    }

    /// Computes the gradients of decay and bias.
    fn to_gate_weights(&self, grads: &DeltaWeights<'_>, add: bool) {
        let heads = &self.inputs.heads;
        let (h, rows) = (heads.value_heads, self.d_gates.len() / (2 * heads.value_heads));
        split(self.dev, h.div_ceil(LANES), 4 * LANES * rows, &|part| {
            for first in part.map(|group| group * LANES) {
                let (weights, n) = (Decay::new(self.dev, &self.weights, first), LANES.min(h - first));
                let mut sums = [[0.0; LANES]; 2];
                sum_gates::<T>(self.dev.isa(), self, &weights, first..first + n, &mut sums);
                add_sums(self.dev, grads.decay, first, &sums[0][..n], add);
                add_sums(self.dev, grads.bias, first, &sums[1][..n], add);
            }
        });
    }
}

/// Channels whose sums of taps are computed together.
const COLUMNS: usize = 2 * LANES;

fn block(index: usize) -> Range<usize> {
    index * ROWS..(index + 1) * ROWS
}

simd_fn! {
    /// Takes a unit of rows of a segment back through the norm and silu.
    fn unbend[T: Lanes](s: S, call: &Call<'_, T>, taps: &Taps, unit: Unit, segment: &Segment, rows: Range<usize>) {
        let (zeros, width) = ([T::from_f32(0.0); DELTA_HEAD_MAX], unit.width);
        let (mut sums, mut bent) = ([0.0; DELTA_HEAD_MAX], [0.0; DELTA_HEAD_MAX]);
        let (sums, bent) = (&mut sums[..width], &mut bent[..width]);
        for i in rows {
            let first = (segment.first_row + i) * call.inputs.heads.conv_width() + unit.first;
            // SAFETY: this unit of this row is the task's.
            let d = unsafe { call.d_qkv.range(first, width) };
            let window = call.inputs.window(segment, None, i, unit, &zeros);
            for at in (0..width).step_by(LANES) {
                let sum = convolved(s, taps, &window, at);
                store_any(s, &mut sums[at..at + LANES], sum);
                store_any(s, &mut bent[at..at + LANES], s.mul(sum, sigmoid(s, sum)));
            }
            // n = `bent` times `inverse`: the gradient is inverse (dn - n (n dn)).
            let (factor, inner) = match unit.scale {
                None => (1.0, 0.0),
                Some(scale) => {
                    let inverse = inverse_length(s, bent);
                    (inverse * scale, dot(s, bent, d) * inverse * inverse)
                }
            };
            let (factor, inner) = (s.splat(factor), s.splat(-inner));
            for at in (0..width).step_by(LANES) {
                let here = at..at + LANES;
                let (c, x) = (load_any(s, &sums[here.clone()]), load_any(s, &bent[here.clone()]));
                let sig = sigmoid(s, c);
                let slope = s.mul(sig, s.fma(c, s.sub(s.splat(1.0), sig), s.splat(1.0)));
                let dx = s.mul(factor, s.fma(x, inner, load_any(s, &d[here.clone()])));
                store_any(s, &mut d[here], s.mul(dx, slope));
            }
        }
    }
}

simd_fn! {
    /// Writes dx of a unit of rows of a segment, from the rows that read them.
    fn spread[T: Lanes](s: S, call: &Call<'_, T>, taps: &Taps, unit: Unit, segment: &Segment, rows: Range<usize>) {
        let heads = &call.inputs.heads;
        let mut sums = [0.0; DELTA_HEAD_MAX];
        for i in rows {
            sums[..unit.width].fill(0.0);
            let own = CONV_TAPS.min(segment.rows - i);
            for later in 0..own {
                read_by(s, call, taps, unit, segment.first_row + i + later, later, &mut sums);
            }
            if own < CONV_TAPS && call.has_children {
                for child in call.segments() {
                    let end = if child.parent as usize == segment.first_row { CONV_TAPS.min(own + child.rows) } else { 0 };
                    for later in own..end {
                        read_by(s, call, taps, unit, child.first_row + later - own, later, &mut sums);
                    }
                }
            }
            let first = (segment.first_row + i) * heads.input_width() + unit.first;
            // SAFETY: this unit of this row is the task's.
            let to = unsafe { call.dx.range(first, unit.width) };
            for at in (0..unit.width).step_by(LANES) {
                let sum = load_any(s, &sums[at..at + LANES]);
                store_any(s, &mut to[at..at + LANES], sum);
            }
        }
    }
}

/// Adds the gradient by a row of its input `later` rows before it.
#[inline(always)]
fn read_by<S: Simd, T: Lanes>(
    s: S,
    call: &Call<'_, T>,
    taps: &Taps,
    unit: Unit,
    row: usize,
    later: usize,
    sums: &mut [f32; DELTA_HEAD_MAX],
) {
    // SAFETY: no task writes these any more.
    let d = unsafe { call.d_qkv.seen(row * call.inputs.heads.conv_width() + unit.first, unit.width) };
    let taps = taps.row(TAIL - later).as_chunks::<LANES>().0.iter();
    let sums = sums.as_chunks_mut::<LANES>().0.iter_mut();
    for ((d, tap), sum) in d.as_chunks::<LANES>().0.iter().zip(taps).zip(sums) {
        let total = s.fma(f32::load(s, tap), f32::load(s, d), f32::load(s, sum));
        f32::store(s, sum, total);
    }
}

simd_fn! {
    /// Writes the gradients of a and b.
    fn gates_row[T: Lanes](
        s: S, weights: &Decay, x: (&[T], &[T]), d: (&[f32], &[f32]), to: (&mut [T], &mut [T]),
    ) {
        let (rate, a) = weights.of(s, x.0);
        store_any(s, to.0, s.mul(load_any(s, d.0), s.mul(rate, sigmoid(s, a))));
        let beta = sigmoid(s, load_any(s, x.1));
        // beta (1 - beta), where 1 - beta is e^-b beta also when beta is 1 in f32.
        let other = sigmoid(s, s.sub(s.splat(0.0), load_any(s, x.1)));
        store_any(s, to.1, s.mul(load_any(s, d.1), s.mul(beta, other)));
    }
}

simd_fn! {
    /// Computes the gradient of the taps of up to `COLUMNS` channels, over all rows.
    fn sum_taps[T: Lanes](s: S, call: &Call<'_, T>, unit: Unit, out: &mut [f32]) {
        let (zeros, width) = ([T::from_f32(0.0); DELTA_HEAD_MAX], call.inputs.heads.conv_width());
        let mut sums = [[s.splat(0.0); CONV_TAPS]; COLUMNS / LANES];
        for segment in call.segments() {
            for i in 0..segment.rows {
                let window = call.inputs.window(&segment, None, i, unit, &zeros);
                // SAFETY: no task writes these any more.
                let d = unsafe { call.d_qkv.seen((segment.first_row + i) * width + unit.first, unit.width) };
                for (sums, at) in sums.iter_mut().zip((0..unit.width).step_by(LANES)) {
                    let d = load_any(s, &d[at..at + LANES]);
                    for tap in 0..CONV_TAPS {
                        sums[tap] = s.fma(d, load_any(s, &window[tap][at..at + LANES]), sums[tap]);
                    }
                }
            }
        }
        for (out, sums) in out.chunks_mut(LANES * CONV_TAPS).zip(sums) {
            for tap in 0..CONV_TAPS {
                let mut lanes = [0.0; LANES];
                f32::store(s, &mut lanes, sums[tap]);
                (0..LANES).for_each(|lane| out[lane * CONV_TAPS + tap] = lanes[lane]);
            }
        }
    }
}

simd_fn! {
    /// Computes the gradients of decay and bias of up to 16 heads, over all rows.
    fn sum_gates[T: Lanes](
        s: S, call: &Call<'_, T>, weights: &Decay, these: Range<usize>, sums: &mut [[f32; LANES]; 2],
    ) {
        let heads = &call.inputs.heads;
        let (mut decay, mut bias) = (s.splat(0.0), s.splat(0.0));
        for m in call.segments().flat_map(|segment| segment.first_row..segment.first_row + segment.rows) {
            let (_, a) = gate_inputs(heads, call.inputs.x, m);
            let (rate, a) = weights.of(s, &a[these.clone()]);
            let d = s.mul(rate, load_any(s, &call.d_gates[m * 2 * heads.value_heads..][these.clone()]));
            decay = s.fma(d, softplus(s, a), decay);
            bias = s.fma(d, sigmoid(s, a), bias);
        }
        f32::store(s, &mut sums[0], decay);
        f32::store(s, &mut sums[1], bias);
    }
}
