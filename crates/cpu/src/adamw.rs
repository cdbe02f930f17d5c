//! AdamW with f32 or bf16 states, and the sum of squares for gradient clipping. It owns stochastic rounding.
//!
//! Stochastic rounding adds 16 random bits below the kept bits and truncates, so it rounds up with the probability of
//! the fraction cut off. The bits are a hash of (seed, step, index of the element among all parameters), so they do not
//! depend on how parameters are split into calls or over threads. A finite number stays finite.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::norm::{load_any, store_any};
use plimsoll_base::DType;
use plimsoll_device::{AdamW, AdamWBufs, Run, Update};
use plimsoll_memory::Buf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum blocks of `sum_squares`.
const BLOCKS_MAX: usize = 1024;
/// Minimum elements of a block of `sum_squares`; larger blocks are multiples of it.
const BLOCK_ELEMENTS: usize = 4096;
/// Runs of `squares_of` that threads share at once.
const RUNS_MAX: usize = 256;

pub(super) fn sum_squares(dev: &CpuDevice, x: Buf<'_>) -> f64 {
    let block = x.len().div_ceil(BLOCKS_MAX).next_multiple_of(BLOCK_ELEMENTS).max(BLOCK_ELEMENTS);
    let sums = [const { AtomicU64::new(0) }; BLOCKS_MAX];
    let blocks = x.len().div_ceil(block);
    by_dtype!(x, T => {
        let x = dev.read::<T>(x);
        split(dev, blocks, block, &|part| {
            for i in part {
                let sum = squares::<T>(dev.isa(), &x[i * block..((i + 1) * block).min(x.len())]);
                sums[i].store(sum.to_bits(), Ordering::Relaxed);
            }
        });
    });
    sums[..blocks].iter().fold(0.0, |sum, block| sum + f64::from_bits(block.load(Ordering::Relaxed)))
}

/// Gives the sum of squares of each run, some runs at a time.
pub(super) fn squares_of(
    dev: &CpuDevice,
    x: Buf<'_>,
    all: &mut dyn Iterator<Item = Run>,
    each: &mut dyn FnMut(f64),
) {
    let mut runs = [Run::default(); RUNS_MAX];
    loop {
        let mut len = 0;
        runs.iter_mut().zip(&mut *all).for_each(|(run, next)| (*run, len) = (next, len + 1));
        let runs = &runs[..len];
        let sums = [const { AtomicU64::new(0) }; RUNS_MAX];
        let elements = runs.iter().map(|run| run.elements as usize).sum::<usize>() / len.max(1);
        by_dtype!(x, T => {
            let x = dev.read::<T>(x);
            split(dev, len, elements, &|part| {
                for index in part {
                    let run = runs[index];
                    let sum = squares::<T>(dev.isa(), &x[run.start as usize..run.end() as usize]);
                    sums[index].store(sum.to_bits(), Ordering::Relaxed);
                }
            });
        });
        sums[..len].iter().for_each(|sum| each(f64::from_bits(sum.load(Ordering::Relaxed))));
        if len < RUNS_MAX {
            return;
        }
    }
}

simd_fn! {
    /// Sums squares in sixteen f64 chains, where the square of an f32 is exact, then in a tree.
    fn squares[T: Lanes](_s: S, x: &[T]) -> f64 {
        let mut sums = [0.0f64; LANES];
        let (full, rest) = x.as_chunks::<LANES>();
        for x in full {
            for i in 0..LANES {
                let x = f64::from(x[i].to_f32());
                sums[i] += x * x;
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            let x = f64::from(x.to_f32());
            *sum += x * x;
        }
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        sums[0]
    }
}

pub(super) fn adamw(dev: &CpuDevice, how: AdamW, bufs: AdamWBufs<'_>) {
    let AdamWBufs { weights, grad, m, v, master, scales: _ } = bufs;
    assert!(how.step >= 1, "steps count from 1");
    let n = weights.len();
    assert_eq!(
        [grad.len(), m.len(), v.len(), master.map_or(n, |b| b.len())],
        [n; 4],
        "lengths of a parameter"
    );
    assert_eq!(m.dtype(), v.dtype(), "moments of one dtype");
    let update = Update::new(how);
    by_dtype!(weights, W => by_dtype!(grad, G => by_dtype!(m, M => {
        let (w, g) = (dev.write::<W>(weights), dev.read::<G>(grad));
        let (m, v) = (dev.write::<M>(m), dev.write::<M>(v));
        let master = master.map(|b| dev.write::<f32>(b));
        // Parts of whole vectors.
        split(dev, n.div_ceil(LANES), LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(n));
            let (len, first) = (end - start, update.first_element + start as u64);
            // SAFETY: parts are disjoint, and each is one task's.
            unsafe {
                let (w, m, v) = (w.range(start, len), m.range(start, len), v.range(start, len));
                let master = master.as_ref().map(|b| b.range(start, len));
                update_part::<W, G, M>(dev.isa(), &update, first, w, &g[start..end], [m, v], master);
            }
        });
    })));
}

simd_fn! {
    fn update_part[W: Lanes, G: Lanes, M: Lanes](
        s: S, how: &Update, first: u64, w: &mut [W], g: &[G], moments: [&mut [M]; 2], master: Option<&mut [f32]>,
    ) {
        let ([m, v], mut master) = (moments, master);
        for at in (0..w.len()).step_by(LANES) {
            let here = at..(at + LANES).min(w.len());
            let old = match &master {
                Some(master) => load_any(s, &master[here.clone()]),
                None => load_any(s, &w[here.clone()]),
            };
            let grad = s.mul(load_any(s, &g[here.clone()]), s.splat(how.grad_scale));
            let moments = [load_any(s, &m[here.clone()]), load_any(s, &v[here.clone()])];
            let (mut new, [mut mv, mut vv]) = updated(s, how, old, grad, moments);
            // Values rounded here are exact in bf16, so the rounding of the store keeps them.
            let round_weights = W::DTYPE == DType::Bf16 && master.is_none();
            if round_weights || M::DTYPE == DType::Bf16 {
                let random = random_bits(s, how.keys, first + at as u64);
                if round_weights {
                    new = s.round_stochastically(new, random[0]);
                }
                if M::DTYPE == DType::Bf16 {
                    mv = s.round_stochastically(mv, random[1]);
                    vv = s.round_stochastically(vv, random[2]);
                }
            }
            if let Some(master) = &mut master {
                store_any(s, &mut master[here.clone()], new);
            }
            store_any(s, &mut w[here.clone()], new);
            store_any(s, &mut m[here.clone()], mv);
            store_any(s, &mut v[here], vv);
        }
    }
}

/// Returns the weight and the moments after an update, in f32. `grad` is scaled.
#[inline(always)]
pub(super) fn updated<S: Simd>(
    s: S,
    how: &Update,
    old: S::F,
    grad: S::F,
    [m, v]: [S::F; 2],
) -> (S::F, [S::F; 2]) {
    let m = s.fma(m, s.splat(how.beta1), s.mul(grad, s.splat(1.0 - how.beta1)));
    let v = s.fma(v, s.splat(how.beta2), s.mul(s.mul(grad, grad), s.splat(1.0 - how.beta2)));
    let root = s.add(s.sqrt(s.mul(v, s.splat(how.correction2))), s.splat(how.eps));
    let step = s.div(s.mul(m, s.splat(-how.rate)), root);
    (s.fma(old, s.splat(how.keep), step), [m, v])
}

/// Returns three 16-bit numbers, in the low halves, for each of the elements first..first + 16.
///
/// The hash `lowbias32` of the low word of the element's index and the step's key, with the index's high word and the
/// second key mixed in between, gives 32 bits; one more hash of those gives the third number.
#[inline(always)]
pub(super) fn random_bits<S: Simd>(s: S, keys: [u32; 2], first: u64) -> [S::U; 3] {
    let low = s.count_u32(first as u32);
    let high_key = |high: u64| (high as u32).wrapping_mul(0x9e37_79b9) ^ keys[1];
    let mut second = s.splat_u32(high_key(first >> 32));
    if (first as u32) > u32::MAX - LANES as u32 {
        // The low word overflows among these elements: a rare vector, built lane by lane.
        second = mixed_keys(s, first, high_key(first >> 32), high_key((first >> 32) + 1));
    }
    let [c1, c2] = [s.splat_u32(0x7feb_352d), s.splat_u32(0x846c_a68b)];
    let x = s.mul_u32(fold(s, s.xor_u32(low, s.splat_u32(keys[0])), 16), c1);
    let x = fold(s, s.mul_u32(s.add_u32(fold(s, x, 15), second), c2), 16);
    let y = s.mul_u32(s.add_u32(x, second), c1);
    let y = s.mul_u32(fold(s, y, 15), c2);
    [x, s.shift_right_u32(x, 16), s.shift_right_u32(y, 16)]
}

/// Returns x ^ (x >> n).
#[inline(always)]
fn fold<S: Simd>(s: S, x: S::U, n: u32) -> S::U {
    s.xor_u32(x, s.shift_right_u32(x, n))
}

/// Returns `before` for elements whose low word has not overflowed, `after` for the others.
#[inline(always)]
fn mixed_keys<S: Simd>(s: S, first: u64, before: u32, after: u32) -> S::U {
    let left = (u64::from(u32::MAX) + 1 - (first & u64::from(u32::MAX))) as usize;
    // Selecting moves bits, whatever numbers they would be.
    let [before, after] = [before, after].map(|x| s.splat(f32::from_bits(x)));
    s.bits(s.first(left, before, after))
}
