//! q, k, v, g and beta of rows, and the tails that the next pass reads.
//!
//! A task owns a unit (a head of q, k or v) of some rows, so that taps are transposed once for them.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::super::attention::Segment;
use super::super::elementwise::split;
use super::super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::super::norm::{dot, load_any, store_any};
use super::super::{CpuDevice, Shared};
use super::shared::{Stay, Stays, check_rows, rows_of, sigmoid, softplus, widened};
use plimsoll_device::{CONV_TAPS, DELTA_HEAD_MAX, DeltaHeads, DeltaInputs, DeltaWeights, NO_PARENT};
use plimsoll_memory::Buf;
use std::ops::Range;

/// Added to the sum of squares of a head of q or k.
const EPSILON: f32 = 1e-6;
/// Rows of a task.
pub(super) const ROWS: usize = 64;
/// Rows before a segment that its first ones read.
pub(super) const TAIL: usize = CONV_TAPS - 1;

/// A head of q, k or v among the inputs of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) first: usize,
    pub(super) width: usize,
    /// Factor on a head of q or k after its norm; none for v.
    pub(super) scale: Option<f32>,
}

/// Returns the number of units of a row.
pub(super) fn units(heads: &DeltaHeads) -> usize {
    2 * heads.key_heads + heads.value_heads
}

impl Unit {
    pub(super) fn new(heads: &DeltaHeads, index: usize) -> Unit {
        let &DeltaHeads { key_heads, key_dim, value_dim, .. } = heads;
        if index < 2 * key_heads {
            let scale = if index < key_heads { 1.0 / (key_dim as f32).sqrt() } else { 1.0 };
            return Unit { first: index * key_dim, width: key_dim, scale: Some(scale) };
        }
        let first = 2 * heads.key_width() + (index - 2 * key_heads) * value_dim;
        Unit { first, width: value_dim, scale: None }
    }
}

/// The weights of a unit's convolution, one row per tap.
pub(super) struct Taps([[f32; DELTA_HEAD_MAX]; CONV_TAPS]);

impl Taps {
    pub(super) fn new(dev: &CpuDevice, conv: Buf<'_>, unit: Unit) -> Taps {
        let all: [f32; CONV_TAPS * DELTA_HEAD_MAX] = widened(dev, conv, unit.first * CONV_TAPS);
        let mut taps = [[0.0; DELTA_HEAD_MAX]; CONV_TAPS];
        for channel in 0..unit.width {
            for tap in 0..CONV_TAPS {
                taps[tap][channel] = all[channel * CONV_TAPS + tap];
            }
        }
        Taps(taps)
    }

    /// Returns a tap of all channels.
    #[inline(always)]
    pub(super) fn row(&self, tap: usize) -> &[f32; DELTA_HEAD_MAX] {
        &self.0[tap]
    }

    /// Returns the taps of 16 channels.
    #[inline(always)]
    pub(super) fn at<S: Simd>(&self, s: S, at: usize) -> [S::F; CONV_TAPS] {
        let mut taps = [s.splat(0.0); CONV_TAPS];
        for tap in 0..CONV_TAPS {
            taps[tap] = load_any(s, &self.0[tap][at..at + LANES]);
        }
        taps
    }
}

/// Inputs of rows and of the rows before them.
pub(super) struct Inputs<'a, T> {
    pub(super) heads: DeltaHeads,
    pub(super) x: &'a [T],
    pub(super) tails: Option<Shared<'a, T>>,
}

impl<T: Lanes> Inputs<'_, T> {
    /// Returns the inputs of a unit, `back` rows before row `i` of a segment; none before the sequence.
    pub(super) fn before(
        &self,
        segment: &Segment,
        from: Option<usize>,
        i: usize,
        back: usize,
        unit: Unit,
    ) -> Option<&[T]> {
        let width = self.heads.input_width();
        if i >= back {
            return Some(&self.x[(segment.first_row + i - back) * width + unit.first..][..unit.width]);
        }
        let missing = back - i;
        if let Some(tails) = &self.tails {
            let first = from? * self.heads.tail() + (TAIL - missing) * self.heads.conv_width();
            // SAFETY: while rows are computed no task writes tails.
            return Some(unsafe { tails.seen(first + unit.first, unit.width) });
        }
        if segment.parent == NO_PARENT {
            return None;
        }
        // A parent has its sequence from position 0 on.
        let row = segment.parent as usize + segment.first_position.checked_sub(missing)?;
        Some(&self.x[row * width + unit.first..][..unit.width])
    }

    /// Returns the inputs of rows t - 3 to t, for row t = `i` of a segment that begins with the tail at `from`.
    pub(super) fn window<'w>(
        &'w self,
        segment: &Segment,
        from: Option<usize>,
        i: usize,
        unit: Unit,
        zeros: &'w [T],
    ) -> [&'w [T]; CONV_TAPS] {
        let mut rows = [&zeros[..unit.width]; CONV_TAPS];
        for tap in 0..CONV_TAPS {
            if let Some(row) = self.before(segment, from, i, TAIL - tap, unit) {
                rows[tap] = row;
            }
        }
        rows
    }
}

/// Returns the convolution's output for 16 channels.
#[inline(always)]
pub(super) fn convolved<S: Simd, T: Lanes>(s: S, taps: &Taps, window: &[&[T]; CONV_TAPS], at: usize) -> S::F {
    let (taps, mut sum) = (taps.at(s, at), s.splat(0.0));
    for tap in 0..CONV_TAPS {
        sum = s.fma(taps[tap], load_any(s, &window[tap][at..at + LANES]), sum);
    }
    sum
}

/// Returns 1 / sqrt(sum of squares + epsilon).
#[inline(always)]
pub(super) fn inverse_length<S: Simd>(s: S, x: &[f32]) -> f32 {
    1.0 / (dot(s, x, x) + EPSILON).sqrt()
}

/// Checks the sizes of the weights, or of their gradients.
pub(super) fn check_weights(heads: &DeltaHeads, weights: &DeltaWeights<'_>) {
    assert_eq!(weights.conv.len(), heads.conv_width() * CONV_TAPS, "taps of {} channels", heads.conv_width());
    for buf in [weights.decay, weights.bias] {
        assert_eq!(buf.len(), heads.value_heads, "decay and bias of {} heads", heads.value_heads);
    }
}

pub(crate) fn forward(dev: &CpuDevice, args: DeltaInputs<'_>) {
    let DeltaInputs { heads, x, weights, places, tails, qkv, gates } = args;
    let rows = rows_of(&heads, x, heads.input_width());
    check_weights(&heads, &weights);
    check_rows(rows, [("qkv", qkv, heads.conv_width()), ("gates", gates, 2 * heads.value_heads)]);
    let all = Stays::new(dev, places, rows);
    if let Some(tails) = tails {
        assert_eq!(tails.len() % heads.tail(), 0, "whole tails");
        all.check_places(tails.len() / heads.tail(), |_| 1);
    }
    by_dtype!(x, T => {
        let inputs = Inputs::<T> { heads, x: dev.read(x), tails: tails.map(|tails| dev.write(tails)) };
        let call = Call { dev, inputs, weights, all, qkv: dev.write(qkv), gates: dev.write(gates), rows };
        for &wave in all.waves() {
            call.run(wave);
            call.keep_tails(wave);
        }
    });
}

struct Call<'a, T> {
    dev: &'a CpuDevice,
    inputs: Inputs<'a, T>,
    weights: DeltaWeights<'a>,
    all: Stays<'a>,
    qkv: Shared<'a, T>,
    gates: Shared<'a, f32>,
    rows: usize,
}

impl<T: Lanes> Call<'_, T> {
    /// Computes the rows of all segments that are children (`wave`), or of those that are not.
    fn run(&self, wave: bool) {
        let (heads, dev) = (&self.inputs.heads, self.dev);
        let (units, blocks) = (units(heads), self.rows.div_ceil(ROWS));
        // The gates are one more unit.
        split(dev, (units + 1) * blocks, DELTA_HEAD_MAX * self.rows.min(ROWS), &|part| {
            for item in part {
                let (index, block) = (item / blocks, item % blocks * ROWS..(item % blocks + 1) * ROWS);
                let unit = (index < units).then(|| Unit::new(heads, index));
                let taps = unit.map(|unit| (unit, Taps::new(dev, self.weights.conv, unit)));
                for stay in self.all.iter().filter(|stay| stay.is_child() == wave) {
                    let rows = overlap(&stay.segment, &block);
                    match &taps {
                        Some((unit, taps)) => convolve::<T>(dev.isa(), self, taps, *unit, &stay, rows),
                        None => self.gates(&stay, rows),
                    }
                }
            }
        });
    }

    /// Computes g and beta of rows of a segment.
    fn gates(&self, stay: &Stay, rows: Range<usize>) {
        let heads = &self.inputs.heads;
        let h = heads.value_heads;
        for first in (0..h).step_by(LANES) {
            let weights = Decay::new(self.dev, &self.weights, first);
            let n = LANES.min(h - first);
            for m in rows.clone().map(|i| stay.segment.first_row + i) {
                let (b, a) = gate_inputs(heads, self.inputs.x, m);
                // SAFETY: row m is this task's.
                let (g, beta) = unsafe {
                    (self.gates.range(m * 2 * h + first, n), self.gates.range((m * 2 + 1) * h + first, n))
                };
                gates_row::<T>(self.dev.isa(), &weights, &a[first..][..n], &b[first..][..n], g, beta);
            }
        }
    }

    /// Writes the last inputs of segments to the first places that they write.
    fn keep_tails(&self, wave: bool) {
        let (Some(tails), heads) = (&self.inputs.tails, &self.inputs.heads) else { return };
        let width = heads.conv_width();
        split(self.dev, self.all.len(), heads.tail(), &|part| {
            let mine = part.map(|index| self.all.at(index)).filter(|stay| stay.is_child() == wave);
            for stay in mine {
                let Some(to) = stay.to else { continue };
                let last = stay.segment.rows - 1;
                for j in 0..TAIL {
                    // Oldest first: if source and place are the same, each row is read before it is written.
                    let whole = Unit { first: 0, width, scale: None };
                    let from = self
                        .inputs
                        .before(&stay.segment, stay.from, last, TAIL - 1 - j, whole)
                        .map(<[T]>::as_ptr);
                    let at = to * heads.tail() + j * width;
                    assert!(at + width <= tails.len(), "tail of place {to}");
                    // SAFETY: no other task writes this place, nor do others read it now; both are `width` elements.
                    unsafe {
                        let to = tails.as_ptr().add(at);
                        match from {
                            Some(from) => to.copy_from(from, width),
                            None => (0..width).for_each(|i| to.add(i).write(T::from_f32(0.0))),
                        }
                    }
                }
            }
        });
    }
}

/// Returns the rows of a segment that are in a block of the pass.
pub(super) fn overlap(segment: &Segment, block: &Range<usize>) -> Range<usize> {
    let first = segment.first_row;
    let end = segment.rows.min(block.end.saturating_sub(first));
    block.start.saturating_sub(first).min(end)..end
}

/// Returns b and a of a row.
pub(super) fn gate_inputs<'x, T>(heads: &DeltaHeads, x: &'x [T], m: usize) -> (&'x [T], &'x [T]) {
    let first = m * heads.input_width() + heads.conv_width() + heads.value_width();
    x[first..][..2 * heads.value_heads].split_at(heads.value_heads)
}

/// Gate weights of 16 heads.
pub(super) struct Decay {
    pub(super) decay: [f32; LANES],
    pub(super) bias: [f32; LANES],
}

impl Decay {
    pub(super) fn new(dev: &CpuDevice, weights: &DeltaWeights<'_>, first: usize) -> Decay {
        Decay { decay: widened(dev, weights.decay, first), bias: widened(dev, weights.bias, first) }
    }

    /// Returns -e^decay, and a + bias.
    #[inline(always)]
    pub(super) fn of<S: Simd, T: Lanes>(&self, s: S, a: &[T]) -> (S::F, S::F) {
        let rate = s.sub(s.splat(0.0), s.exp(f32::load(s, &self.decay)));
        (rate, s.add(load_any(s, a), f32::load(s, &self.bias)))
    }
}

simd_fn! {
    fn gates_row[T: Lanes](s: S, weights: &Decay, a: &[T], b: &[T], g: &mut [f32], beta: &mut [f32]) {
        let (rate, a) = weights.of(s, a);
        store_any(s, g, s.mul(rate, softplus(s, a)));
        store_any(s, beta, sigmoid(s, load_any(s, b)));
    }
}

simd_fn! {
    /// Computes a unit of rows of a segment.
    fn convolve[T: Lanes](s: S, call: &Call<'_, T>, taps: &Taps, unit: Unit, stay: &Stay, rows: Range<usize>) {
        let (zeros, mut space) = ([T::from_f32(0.0); DELTA_HEAD_MAX], [0.0; DELTA_HEAD_MAX]);
        let bent = &mut space[..unit.width];
        for i in rows {
            let window = call.inputs.window(&stay.segment, stay.from, i, unit, &zeros);
            for at in (0..unit.width).step_by(LANES) {
                let sum = convolved(s, taps, &window, at);
                store_any(s, &mut bent[at..at + LANES], s.mul(sum, sigmoid(s, sum)));
            }
            let factor = s.splat(unit.scale.map_or(1.0, |scale| inverse_length(s, bent) * scale));
            let first = (stay.segment.first_row + i) * call.inputs.heads.conv_width() + unit.first;
            // SAFETY: this unit of this row is the task's.
            let out = unsafe { call.qkv.range(first, unit.width) };
            for at in (0..unit.width).step_by(LANES) {
                let x = s.mul(load_any(s, &bent[at..at + LANES]), factor);
                store_any(s, &mut out[at..at + LANES], x);
            }
        }
    }
}
