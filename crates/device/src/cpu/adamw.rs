//! AdamW with f32 or bf16 states, and the sum of squares for gradient clipping. It owns stochastic rounding.
//!
//! Stochastic rounding adds 16 random bits below the bits that are kept, and truncates: up with the probability of
//! the fraction cut off. The bits are a hash of (seed, step, index of the element among all parameters), so they do
//! not depend on how parameters are split into calls or over threads. A finite number stays finite.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use crate::{AdamW, AdamWBufs};
#[cfg(test)]
use half::bf16;
use plimsoll_base::{DType, math};
use plimsoll_memory::Buf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of `sum_squares`, at most.
const BLOCKS_MAX: usize = 1024;
/// Elements of a block of `sum_squares`, at least; larger blocks are multiples of it.
const BLOCK_ELEMENTS: usize = 4096;

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

simd_fn! {
    /// Sixteen chains in f64, where the square of an f32 is exact, then a tree.
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

/// The update's constants, in f32.
#[derive(Clone, Copy)]
struct Update {
    beta1: f32,
    beta2: f32,
    eps: f32,
    /// 1 - lr decay.
    keep: f32,
    /// lr / (1 - beta1^t).
    rate: f32,
    /// 1 / (1 - beta2^t).
    correction2: f32,
    grad_scale: f32,
    keys: [u32; 2],
    first_element: u64,
}

impl Update {
    fn new(how: AdamW) -> Update {
        let correction = |beta: f32| 1.0 - math::pow(f64::from(beta), how.step as f64);
        let key = splitmix(splitmix(how.seed) ^ how.step);
        Update {
            beta1: how.beta1,
            beta2: how.beta2,
            eps: how.eps,
            keep: (1.0 - f64::from(how.lr) * f64::from(how.weight_decay)) as f32,
            rate: (f64::from(how.lr) / correction(how.beta1)) as f32,
            correction2: (1.0 / correction(how.beta2)) as f32,
            grad_scale: how.grad_scale,
            keys: [key as u32, (key >> 32) as u32],
            first_element: how.first_element,
        }
    }
}

/// The finaliser of SplitMix64.
fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub(super) fn adamw(dev: &CpuDevice, how: AdamW, bufs: AdamWBufs<'_>) {
    let AdamWBufs { weights, grad, m, v, master } = bufs;
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
            // SAFETY: parts are disjoint.
            unsafe {
                let (w, m, v) = (w.range(start, len), m.range(start, len), v.range(start, len));
                let master = master.as_ref().map(|b| b.range(start, len));
                update_part::<W, G, M>(dev.isa(), &update, first, w, &g[start..end], m, v, master);
            }
        });
    })));
}

simd_fn! {
    fn update_part[W: Lanes, G: Lanes, M: Lanes](
        s: S, how: &Update, first: u64, w: &mut [W], g: &[G], m: &mut [M], v: &mut [M], master: Option<&mut [f32]>,
    ) {
        let n = w.len();
        let mut master = master;
        let mut at = 0;
        while at < n {
            let end = (at + LANES).min(n);
            let whole = end - at == LANES;
            // A part at the end goes through arrays of 16.
            let (mut w16, mut m16, mut v16) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            let old = match &master {
                Some(master) => load(s, &master[at..end], whole),
                None => load(s, &w[at..end], whole),
            };
            let grad = s.mul(load(s, &g[at..end], whole), s.splat(how.grad_scale));
            let (mv, vv) = (load(s, &m[at..end], whole), load(s, &v[at..end], whole));
            let mv = s.fma(mv, s.splat(how.beta1), s.mul(grad, s.splat(1.0 - how.beta1)));
            let vv = s.fma(vv, s.splat(how.beta2), s.mul(s.mul(grad, grad), s.splat(1.0 - how.beta2)));
            let root = s.add(s.sqrt(s.mul(vv, s.splat(how.correction2))), s.splat(how.eps));
            let step = s.div(s.mul(mv, s.splat(-how.rate)), root);
            let new = s.fma(old, s.splat(how.keep), step);
            f32::store(s, &mut w16, new);
            f32::store(s, &mut m16, mv);
            f32::store(s, &mut v16, vv);
            let stochastic_w = W::DTYPE == DType::Bf16 && master.is_none();
            if stochastic_w || M::DTYPE == DType::Bf16 {
                let random = random_bits(how.keys, first + at as u64);
                if stochastic_w {
                    round_stochastically(&mut w16, &random[0]);
                }
                if M::DTYPE == DType::Bf16 {
                    round_stochastically(&mut m16, &random[1]);
                    round_stochastically(&mut v16, &random[2]);
                }
            }
            if let Some(master) = &mut master {
                store(s, &mut master[at..end], &w16);
            }
            store(s, &mut w[at..end], &w16);
            store(s, &mut m[at..end], &m16);
            store(s, &mut v[at..end], &v16);
            at = end;
        }
    }
}

#[inline(always)]
fn load<S: Simd, T: Lanes>(s: S, x: &[T], whole: bool) -> S::F {
    if whole { T::load(s, x.first_chunk().expect("16 elements")) } else { T::load_part(s, x) }
}

#[inline(always)]
fn store<S: Simd, T: Lanes>(s: S, to: &mut [T], x: &[f32; LANES]) {
    super::norm::store_any(s, to, f32::load(s, x));
}

/// Three 16-bit numbers, in the low halves, for each of the elements first..first + 16.
///
/// Two rounds of the hash `lowbias32` give 32 bits of the element's low index word and the step's key, one more
/// gives the next 32. The high index word is mixed into the second key.
#[inline(always)]
fn random_bits(keys: [u32; 2], first: u64) -> [[u32; LANES]; 3] {
    let mut out = [[0; LANES]; 3];
    for i in 0..LANES {
        let index = first + i as u64;
        let high = ((index >> 32) as u32).wrapping_mul(0x9e37_79b9) ^ keys[1];
        let mut x = (index as u32) ^ keys[0];
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_add(high).wrapping_mul(0x846c_a68b);
        x ^= x >> 16;
        let mut y = x.wrapping_add(high).wrapping_mul(0x7feb_352d);
        y = (y ^ (y >> 15)).wrapping_mul(0x846c_a68b);
        out[0][i] = x & 0xffff;
        out[1][i] = x >> 16;
        out[2][i] = y >> 16;
    }
    out
}

/// Makes each number one that bf16 holds: storing it afterwards is exact.
#[inline(always)]
fn round_stochastically(x: &mut [f32; LANES], random: &[u32; LANES]) {
    for (x, random) in x.iter_mut().zip(random) {
        let bits = x.to_bits();
        let up = bits.wrapping_add(*random) & 0xffff_0000;
        // Not finite after rounding: it was so before, or the largest number would have overflowed. Truncate; a NaN
        // whose payload is in the low bits is kept by the rounding store.
        let is_finite = |bits: u32| bits & 0x7f80_0000 != 0x7f80_0000;
        let truncated = if is_finite(bits) { bits & 0xffff_0000 } else { bits };
        *x = f32::from_bits(if is_finite(up) && is_finite(bits) { up } else { truncated });
    }
}

/// The rounding of one number, for tests and documentation.
#[cfg(test)]
fn rounded(x: f32, random: u32) -> bf16 {
    let mut lanes = [x; LANES];
    round_stochastically(&mut lanes, &[random; LANES]);
    bf16::from_f32(lanes[0])
}
