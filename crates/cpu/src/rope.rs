//! Rotation of queries and keys by position, head norms, and the writing of the KV cache.
//!
//! A value is rounded to the storage type once, after its rotation. Keys go transposed into their block, so that one
//! vector load gives 16 keys the same element.

use super::elementwise::split;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::norm::{load_any, reciprocal_rms, store_any};
use super::{CpuDevice, Real, Shared};
use plimsoll_device::{Batch, Heads, KV_BLOCK, Kv, QkNorm, RopeBackward};
use plimsoll_memory::Buf;

/// Largest head dimension: the size of arrays on the stack.
pub(super) const HEAD_DIM_MAX: usize = 256;

pub(super) fn forward(
    dev: &CpuDevice,
    qkv: Buf<'_>,
    norms: Option<QkNorm<'_>>,
    rope: Buf<'_>,
    batch: Batch<'_>,
    kv: Kv<'_>,
    q_out: Buf<'_>,
) {
    let (rows, d, k) = (batch.positions.len(), kv.head_dim, kv.kv_heads);
    if rows == 0 {
        return;
    }
    let a = q_out.len() / (rows * d);
    assert!(d.is_multiple_of(2) && d <= HEAD_DIM_MAX, "head dimension {d}: even, at most {HEAD_DIM_MAX}");
    assert_eq!(batch.slots.len(), rows, "a slot for each row");
    assert_eq!(
        (q_out.len(), qkv.len()),
        (rows * a * d, rows * (a + 2 * k) * d),
        "[{rows}, ({a} + 2 x {k}) x {d}]"
    );
    assert_eq!(kv.keys.len(), kv.values.len(), "keys and values");
    let (positions, slots) = (dev.read::<u32>(batch.positions), dev.read::<u32>(batch.slots));
    let rope = dev.read::<f32>(rope);
    by_dtype!(qkv, T => {
        let x = dev.read::<T>(qkv);
        let (q_out, keys, values) = (dev.write::<T>(q_out), dev.write::<T>(kv.keys), dev.write::<T>(kv.values));
        let (q_norm, k_norm) = norm_weights(dev, norms);
        let eps = norms.map_or(0.0, |n| n.eps);
        split(dev, rows, (a + 2 * k) * d, &|part| {
            for m in part {
                let x = &x[m * (a + 2 * k) * d..][..(a + 2 * k) * d];
                let table = &rope[positions[m] as usize * d..][..d];
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let q = unsafe { q_out.range(m * a * d, a * d) };
                rotate_heads::<T>(dev.isa(), &x[..a * d], q_norm.as_ref(), eps, table, q);
                let mut rotated = [T::from_f32(0.0); HEAD_DIM_MAX];
                for head in 0..k {
                    let (key, to) = (&x[(a + head) * d..][..d], &mut rotated[..d]);
                    rotate_heads::<T>(dev.isa(), key, k_norm.as_ref(), eps, table, to);
                    let value = &x[(a + k + head) * d..][..d];
                    write_slot(&keys, &values, slots[m] as usize, k, head, to, value);
                }
            }
        });
    });
}

type HeadWeights = [f32; HEAD_DIM_MAX];

/// Weights of q's and k's norm in f32.
fn norm_weights(dev: &CpuDevice, norms: Option<QkNorm<'_>>) -> (Option<HeadWeights>, Option<HeadWeights>) {
    let widen = |w: Buf<'_>| {
        let mut out = [0.0; HEAD_DIM_MAX];
        super::elementwise::read_f32(dev, w, &mut out[..w.len()]);
        out
    };
    (norms.map(|n| widen(n.q)), norms.map(|n| widen(n.k)))
}

fn write_slot<T: Copy>(
    keys: &Shared<'_, T>,
    values: &Shared<'_, T>,
    slot: usize,
    kv_heads: usize,
    head: usize,
    key: &[T],
    value: &[T],
) {
    let d = key.len();
    let block = (slot / KV_BLOCK * kv_heads + head) * d * KV_BLOCK;
    let lane = slot % KV_BLOCK;
    assert!(block + d * KV_BLOCK <= keys.len(), "slot {slot} of a cache of {} elements", keys.len());
    for (i, &x) in key.iter().enumerate() {
        // SAFETY: inside the cache by the assertion; each row has its own slot, so no other task writes this element.
        unsafe { keys.as_ptr().add(block + i * KV_BLOCK + lane).write(x) };
    }
    // SAFETY: each row has its own slot, so no other task writes these elements.
    unsafe { values.range(block + lane * d, d) }.copy_from_slice(value);
}

simd_fn! {
    /// Normalises (if `weights`) and rotates the heads of one row. `table`: [d/2, 2] cosine and sine.
    fn rotate_heads[T: Lanes](
        s: S, x: &[T], weights: Option<&HeadWeights>, eps: f32, table: &[f32], out: &mut [T],
    ) {
        let d = table.len();
        let (mut cos, mut sin) = ([0.0; HEAD_DIM_MAX / 2], [0.0; HEAD_DIM_MAX / 2]);
        for (i, pair) in table.as_chunks::<2>().0.iter().enumerate() {
            (cos[i], sin[i]) = (pair[0], pair[1]);
        }
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
            let r = weights.map(|_| s.splat(reciprocal_rms(s, x, eps)));
            let ((x1, x2), (out1, out2)) = (x.split_at(d / 2), out.split_at_mut(d / 2));
            for at in (0..d / 2).step_by(LANES) {
                let end = (at + LANES).min(d / 2);
                let (mut a, mut b) = (load_any(s, &x1[at..end]), load_any(s, &x2[at..end]));
                if let (Some(w), Some(r)) = (weights, r) {
                    a = s.mul(s.mul(a, r), load_any(s, &w[at..end]));
                    b = s.mul(s.mul(b, r), load_any(s, &w[d / 2 + at..d / 2 + end]));
                }
                let (c, n) = (load_any(s, &cos[at..end]), load_any(s, &sin[at..end]));
                store_any(s, &mut out1[at..end], s.sub(s.mul(a, c), s.mul(b, n)));
                store_any(s, &mut out2[at..end], s.add(s.mul(b, c), s.mul(a, n)));
            }
        }
    }
}

pub(super) fn copy_kv(dev: &CpuDevice, kv: Kv<'_>, copies: Buf<'_>) {
    let copies = dev.read::<u32>(copies).as_chunks::<3>().0;
    let (d, size) = (kv.head_dim, kv.kv_heads * kv.head_dim * KV_BLOCK);
    by_dtype!(kv.keys, T => {
        let (keys, values) = (dev.write::<T>(kv.keys), dev.write::<T>(kv.values));
        split(dev, copies.len(), 2 * size, &|part| {
            for &[src, dst, n] in &copies[part] {
                if src == dst {
                    continue;
                }
                assert!(n as usize <= KV_BLOCK, "{n} slots of a block of {KV_BLOCK}");
                for at in (0..size).step_by(KV_BLOCK) {
                    let (src, dst, len) = (src as usize * size + at, dst as usize * size + at, n as usize);
                    // SAFETY: a record's destination is its own, and no record's source.
                    let (from, to) = unsafe { (keys.seen(src, len), keys.range(dst, len)) };
                    to.copy_from_slice(from);
                }
                for at in (0..size).step_by(KV_BLOCK * d) {
                    let (src, dst, len) = (src as usize * size + at, dst as usize * size + at, n as usize * d);
                    // SAFETY: a record's destination is its own, and no record's source.
                    let (from, to) = unsafe { (values.seen(src, len), values.range(dst, len)) };
                    to.copy_from_slice(from);
                }
            }
        });
    });
}

pub(super) fn backward(dev: &CpuDevice, args: RopeBackward<'_>) {
    let RopeBackward { dq, dkv, rope, positions, heads, norms, dqkv } = args;
    let Heads { heads: a, kv_heads: k, head_dim: d } = heads;
    let (rows, width) = (positions.len(), (a + 2 * k) * d);
    assert!(d.is_multiple_of(2) && d <= HEAD_DIM_MAX, "head dimension {d}: even, at most {HEAD_DIM_MAX}");
    assert_eq!(
        [dq.len(), dkv.len(), dqkv.len()],
        [rows * a * d, rows * 2 * k * d, rows * width],
        "rows of {rows}"
    );
    let (positions, rope) = (dev.read::<u32>(positions), dev.read::<f32>(rope));
    let (dq, dkv) = (dev.read::<f32>(dq), dev.read::<f32>(dkv));
    let norm = norms.map(|n| n.norm);
    let (q_norm, k_norm) = norm_weights(dev, norm);
    let eps = norm.map_or(0.0, |n| n.eps);
    by_dtype!(dqkv, T => {
        let out = dev.write::<T>(dqkv);
        let x = norms.map(|n| dev.read::<T>(n.qkv));
        split(dev, rows, 2 * width, &|part| {
            for m in part {
                let table = &rope[positions[m] as usize * d..][..d];
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let (q, kv) = unsafe { out.range(m * width, width) }.split_at_mut(a * d);
                let (key, value) = kv.split_at_mut(k * d);
                let (dk, dv) = dkv[m * 2 * k * d..][..2 * k * d].split_at(k * d);
                let x = x.map(|x| x[m * width..][..(a + k) * d].split_at(a * d));
                let (xq, xk) = x.unzip();
                unrotate_heads::<T>(dev.isa(), &dq[m * a * d..][..a * d], xq, q_norm.as_ref(), eps, table, q);
                unrotate_heads::<T>(dev.isa(), dk, xk, k_norm.as_ref(), eps, table, key);
                super::elementwise::convert::<f32, T>(dev.isa(), dv, value);
            }
        });
        if let Some(n) = norms {
            let x = dev.read::<T>(n.qkv);
            let (x_width, eps) = (width, n.norm.eps);
            let q = HeadRows { d, count: a, x_offset: 0, x_width, dy_width: a * d, eps };
            let key = HeadRows { count: k, x_offset: a * d, dy_width: 2 * k * d, ..q };
            for (grads, weight, heads) in [(dq, n.dq_weight, q), (dkv, n.dk_weight, key)] {
                let Some(weight) = weight else { continue };
                by_dtype!(weight, D => {
                    let weight = dev.write::<D>(weight);
                    // SAFETY: no other task runs, and the operation has claimed the buffer.
                    let weight = unsafe { weight.range(0, d) };
                    weight_gradient::<T, D>(dev.isa(), grads, x, heads, positions, rope, weight);
                });
            }
        }
    });
}

#[inline(always)]
fn deinterleave(table: &[f32]) -> ([f32; HEAD_DIM_MAX / 2], [f32; HEAD_DIM_MAX / 2]) {
    let (mut cos, mut sin) = ([0.0; HEAD_DIM_MAX / 2], [0.0; HEAD_DIM_MAX / 2]);
    for (i, pair) in table.as_chunks::<2>().0.iter().enumerate() {
        (cos[i], sin[i]) = (pair[0], pair[1]);
    }
    (cos, sin)
}

/// The inverse rotation, which is the transposed one.
#[inline(always)]
fn unrotate<S: super::lanes::Simd>(s: S, dy: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let half = dy.len() / 2;
    let ((d1, d2), (out1, out2)) = (dy.split_at(half), out.split_at_mut(half));
    for at in (0..half).step_by(LANES) {
        let end = (at + LANES).min(half);
        let (a, b) = (load_any(s, &d1[at..end]), load_any(s, &d2[at..end]));
        let (c, n) = (load_any(s, &cos[at..end]), load_any(s, &sin[at..end]));
        store_any(s, &mut out1[at..end], s.add(s.mul(a, c), s.mul(b, n)));
        store_any(s, &mut out2[at..end], s.sub(s.mul(b, c), s.mul(a, n)));
    }
}

simd_fn! {
    /// Gradient of one row's heads before norm and rotation. `x`: the heads before the norm.
    fn unrotate_heads[T: Lanes](
        s: S, dy: &[f32], x: Option<&[T]>, weights: Option<&HeadWeights>, eps: f32, table: &[f32], out: &mut [T],
    ) {
        let d = table.len();
        let (cos, sin) = deinterleave(table);
        let mut grad = [0.0; HEAD_DIM_MAX];
        for (head, (dy, out)) in dy.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
            let grad = &mut grad[..d];
            unrotate(s, dy, &cos[..d / 2], &sin[..d / 2], grad);
            if let (Some(x), Some(w)) = (x, weights) {
                let x = &x[head * d..][..d];
                let r = reciprocal_rms(s, x, eps);
                for at in (0..d).step_by(LANES) {
                    let end = (at + LANES).min(d);
                    let wdy = s.mul(load_any(s, &grad[at..end]), load_any(s, &w[at..end]));
                    store_any(s, &mut grad[at..end], wdy);
                }
                let dot = super::norm::dot(s, grad, x);
                let (scale, c) = (s.splat(r), s.splat(-dot * r * r / d as f32));
                for at in (0..d).step_by(LANES) {
                    let end = (at + LANES).min(d);
                    let inner = s.fma(load_any(s, &x[at..end]), c, load_any(s, &grad[at..end]));
                    store_any(s, &mut grad[at..end], s.mul(inner, scale));
                }
            }
            for at in (0..d).step_by(LANES) {
                let end = (at + LANES).min(d);
                let v = load_any(s, &grad[at..end]);
                store_any(s, &mut out[at..end], v);
            }
        }
    }
}

/// Heads of one kind inside rows of qkv.
#[derive(Clone, Copy)]
struct HeadRows {
    d: usize,
    count: usize,
    x_offset: usize,
    x_width: usize,
    /// Elements from row to row of the gradients, which have the heads at the start of a row.
    dy_width: usize,
    /// Of the norm.
    eps: f32,
}

simd_fn! {
    /// weight += sum over rows, then heads, of dy xhat.
    fn weight_gradient[T: Lanes, D: Lanes](
        s: S, dy: &[f32], x: &[T], heads: HeadRows, positions: &[u32], rope: &[f32], weight: &mut [D],
    ) {
        let d = heads.d;
        let (mut sums, mut grad) = ([0.0; HEAD_DIM_MAX], [0.0; HEAD_DIM_MAX]);
        for (m, &position) in positions.iter().enumerate() {
            let (cos, sin) = deinterleave(&rope[position as usize * d..][..d]);
            for head in 0..heads.count {
                let dy = &dy[m * heads.dy_width + head * d..][..d];
                let x = &x[m * heads.x_width + heads.x_offset + head * d..][..d];
                unrotate(s, dy, &cos[..d / 2], &sin[..d / 2], &mut grad[..d]);
                let r = s.splat(reciprocal_rms(s, x, heads.eps));
                for at in (0..d).step_by(LANES) {
                    let end = (at + LANES).min(d);
                    let xhat = s.mul(load_any(s, &x[at..end]), r);
                    let sum = s.fma(load_any(s, &grad[at..end]), xhat, load_any(s, &sums[at..end]));
                    store_any(s, &mut sums[at..end], sum);
                }
            }
        }
        for at in (0..d).step_by(LANES) {
            let end = (at + LANES).min(d);
            let total = s.add(load_any(s, &weight[at..end]), load_any(s, &sums[at..end]));
            store_any(s, &mut weight[at..end], total);
        }
    }
}
