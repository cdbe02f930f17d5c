//! Rotation of queries and keys by position, head norms, and writes to the KV cache.
//!
//! A value is rounded to the storage type once, after its rotation. Keys are stored transposed in their block, so that
//! one vector load gives 16 keys the same element.

use super::elementwise::split;
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::norm::{load_any, reciprocal_rms, store_any};
use super::{CpuDevice, Element, Real, Shared};
use plimsoll_arch::{QkNorms, RopeAxes};
use plimsoll_device::{Batch, Heads, KV_BLOCK, Kv, QkNorm, RopeBackward, Rotation};
use plimsoll_memory::Buf;

/// Largest head dimension, that of keys of latent attention: the size of arrays on the stack.
pub(super) const HEAD_DIM_MAX: usize = 576;

pub(super) fn forward(
    dev: &CpuDevice,
    qkv: Buf<'_>,
    norms: Option<QkNorm<'_>>,
    rotation: Rotation<'_>,
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
    let angles = Angles::new(dev, rotation, d);
    by_dtype!(qkv, T => {
        let x = dev.read::<T>(qkv);
        let (q_out, keys, values) = (dev.write::<T>(q_out), dev.write::<T>(kv.keys), dev.write::<T>(kv.values));
        let (q_norm, k_norm) = head_norms::<T>(dev, norms, a, k, d);
        split(dev, rows, (a + 2 * k) * d, &|part| {
            let mut room = [0.0; HEAD_DIM_MAX];
            for m in part {
                let x = &x[m * (a + 2 * k) * d..][..(a + 2 * k) * d];
                let turn = angles.at(m, positions[m], &mut room);
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let q = unsafe { q_out.range(m * a * d, a * d) };
                rotate_heads::<T>(dev.isa(), &x[..a * d], (&x[..a * d], 0), q_norm, turn, turn.q_scale, q);
                let mut rotated = [T::from_f32(0.0); HEAD_DIM_MAX];
                for head in 0..k {
                    let (key, to) = (&x[(a + head) * d..][..d], &mut rotated[..d]);
                    rotate_heads::<T>(dev.isa(), key, (&x[a * d..][..k * d], head), k_norm, turn, 1.0, to);
                    let value = &x[(a + k + head) * d..][..d];
                    write_slot(&keys, &values, slots[m] as usize, k, head, to, value);
                }
            }
        });
    });
}

#[derive(Clone, Copy)]
struct Angles<'a> {
    table: Option<&'a [f32]>,
    d: usize,
    /// Rotated elements of a head.
    width: usize,
    q_scale: f32,
    /// [positions]: further factors on q.
    q_factors: Option<&'a [f32]>,
    /// [M, 3]: places that choose the angles of pairs, and which number a pair takes.
    axes: Option<(&'a [[u32; 3]], RopeAxes)>,
}

/// Angles of one position.
#[derive(Clone, Copy)]
struct Turn<'a> {
    /// [r/2, 2] cosine and sine.
    table: &'a [f32],
    d: usize,
    /// Factor on q.
    q_scale: f32,
}

/// Table for heads that are not rotated: cosines of 1 and sines of 0.
const NO_ANGLE: [f32; HEAD_DIM_MAX] = {
    let (mut table, mut i) = ([0.0; HEAD_DIM_MAX], 0);
    while i < HEAD_DIM_MAX {
        table[i] = 1.0;
        i += 2;
    }
    table
};

impl<'a> Angles<'a> {
    fn new(dev: &'a CpuDevice, rotation: Rotation<'_>, d: usize) -> Angles<'a> {
        let table = rotation.angles.map(|table| dev.read::<f32>(table));
        let q_factors = rotation.q_factors.map(|factors| dev.read::<f32>(factors));
        assert!(q_factors.is_none() || table.is_some(), "factors by position of heads that are rotated");
        assert!(q_factors.is_none() || rotation.axes.is_none(), "factors by position of rows with one");
        let axes = rotation.axes.map(|axes| (dev.read::<u32>(axes.places).as_chunks::<3>().0, axes.of));
        assert!(axes.is_none() || table.is_some(), "places of heads that are rotated");
        Angles { table, d, width: rotation.width_of(d), q_scale: rotation.q_scale, q_factors, axes }
    }

    /// Returns the angles of row `m`, which is at `position`; those of several places are collected in `room`.
    #[inline(always)]
    fn at<'r>(&'r self, m: usize, position: u32, room: &'r mut [f32; HEAD_DIM_MAX]) -> Turn<'r> {
        let width = self.width;
        let table = match (self.table, self.axes) {
            (Some(table), None) => &table[position as usize * width..][..width],
            (Some(table), Some((places, of))) => {
                for (pair, to) in room[..width].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let at = places[m][of.of(pair as u32)] as usize * width + 2 * pair;
                    *to = [table[at], table[at + 1]];
                }
                &room[..width]
            }
            (None, _) => &NO_ANGLE[..width],
        };
        let q_scale =
            self.q_factors.map_or(self.q_scale, |factors| self.q_scale * factors[position as usize]);
        Turn { table, d: self.d, q_scale }
    }
}

/// The norm of q's or of k's heads.
#[derive(Clone, Copy)]
struct HeadNorm<'a, T> {
    /// [d], or [heads, d] of a norm over rows.
    weights: &'a [T],
    eps: f32,
    offset: f32,
    of: QkNorms,
}

impl<'a, T: Lanes> HeadNorm<'a, T> {
    /// Returns the weights of a head.
    #[inline(always)]
    fn of_head(&self, head: usize, d: usize) -> &'a [T] {
        match self.of {
            QkNorms::Heads => self.weights,
            QkNorms::Rows => &self.weights[head * d..][..d],
        }
    }

    /// Returns the reciprocal of a head's root mean square, or of its row's.
    #[inline(always)]
    fn reciprocal<S: Simd>(&self, s: S, head: &[T], row: &[T]) -> f32 {
        match self.of {
            QkNorms::Heads => reciprocal_rms(s, head, self.eps),
            QkNorms::Rows => reciprocal_rms(s, row, self.eps),
        }
    }
}

/// Returns the norms of q and k.
fn head_norms<'a, T: Lanes + Element>(
    dev: &'a CpuDevice,
    norms: Option<QkNorm<'_>>,
    heads: usize,
    kv_heads: usize,
    d: usize,
) -> (Option<HeadNorm<'a, T>>, Option<HeadNorm<'a, T>>) {
    let of = |n: QkNorm<'_>, w: Buf<'_>, heads: usize| {
        let expect = if n.of == QkNorms::Rows { heads * d } else { d };
        assert_eq!(w.len(), expect, "weights of a norm of {:?}", n.of);
        HeadNorm { weights: dev.read::<T>(w), eps: n.eps, offset: n.offset, of: n.of }
    };
    (norms.map(|n| of(n, n.q, heads)), norms.map(|n| of(n, n.k, kv_heads)))
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
    /// Normalises (if `norm`) and rotates the heads `x` of one row, times `scale`. `row`: all heads of their kind, and
    /// the number of the first in `x`. Elements after a head's rotated ones are only normalised and multiplied.
    fn rotate_heads[T: Lanes](
        s: S, x: &[T], row: (&[T], usize), norm: Option<HeadNorm<'_, T>>, turn: Turn<'_>, scale: f32, out: &mut [T],
    ) {
        let (d, width) = (turn.d, turn.table.len());
        let half = width / 2;
        let (cos, sin) = deinterleave(turn.table);
        let scale = s.splat(scale);
        for (i, (x, out)) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
            let norm = norm.map(|n| (s.splat(n.reciprocal(s, x, row.0)), n.of_head(row.1 + i, d), s.splat(n.offset)));
            let (x1, x2) = x.split_at(half);
            let (out1, out2) = out.split_at_mut(half);
            for at in (0..half).step_by(LANES) {
                let end = (at + LANES).min(half);
                let (mut a, mut b) = (load_any(s, &x1[at..end]), load_any(s, &x2[at..end]));
                if let Some((r, w, offset)) = norm {
                    let w2 = &w[half..];
                    a = s.mul(s.mul(a, r), s.add(load_any(s, &w[at..end]), offset));
                    b = s.mul(s.mul(b, r), s.add(load_any(s, &w2[at..end]), offset));
                }
                let (c, n) = (load_any(s, &cos[at..end]), load_any(s, &sin[at..end]));
                store_any(s, &mut out1[at..end], s.mul(s.sub(s.mul(a, c), s.mul(b, n)), scale));
                store_any(s, &mut out2[at..end], s.mul(s.add(s.mul(b, c), s.mul(a, n)), scale));
            }
            for at in (width..d).step_by(LANES) {
                let end = (at + LANES).min(d);
                let mut a = load_any(s, &x[at..end]);
                if let Some((r, w, offset)) = norm {
                    a = s.mul(s.mul(a, r), s.add(load_any(s, &w[at..end]), offset));
                }
                store_any(s, &mut out2[at - half..end - half], s.mul(a, scale));
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
    let RopeBackward { dq, dkv, rotation, positions, heads, norms, dqkv } = args;
    let Heads { heads: a, kv_heads: k, head_dim: d } = heads;
    let (rows, width) = (positions.len(), (a + 2 * k) * d);
    assert!(d.is_multiple_of(2) && d <= HEAD_DIM_MAX, "head dimension {d}: even, at most {HEAD_DIM_MAX}");
    assert_eq!(
        [dq.len(), dkv.len(), dqkv.len()],
        [rows * a * d, rows * 2 * k * d, rows * width],
        "rows of {rows}"
    );
    let (positions, angles) = (dev.read::<u32>(positions), Angles::new(dev, rotation, d));
    let (dq, dkv) = (dev.read::<f32>(dq), dev.read::<f32>(dkv));
    by_dtype!(dqkv, T => {
        let (q_norm, k_norm) = head_norms::<T>(dev, norms.map(|n| n.norm), a, k, d);
        let out = dev.write::<T>(dqkv);
        let x = norms.map(|n| dev.read::<T>(n.qkv));
        split(dev, rows, 2 * width, &|part| {
            let mut room = [0.0; HEAD_DIM_MAX];
            for m in part {
                let turn = angles.at(m, positions[m], &mut room);
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let (q, kv) = unsafe { out.range(m * width, width) }.split_at_mut(a * d);
                let (key, value) = kv.split_at_mut(k * d);
                let (dk, dv) = dkv[m * 2 * k * d..][..2 * k * d].split_at(k * d);
                let x = x.map(|x| x[m * width..][..(a + k) * d].split_at(a * d));
                let (xq, xk) = x.unzip();
                let dq = &dq[m * a * d..][..a * d];
                unrotate_heads::<T>(dev.isa(), dq, xq.zip(q_norm), turn, turn.q_scale, q);
                unrotate_heads::<T>(dev.isa(), dk, xk.zip(k_norm), turn, 1.0, key);
                super::elementwise::convert::<f32, T>(dev.isa(), dv, value);
            }
        });
        if let Some(n) = norms {
            let x = dev.read::<T>(n.qkv);
            let q = HeadRows { d, count: a, x_offset: 0, x_width: width, dy_width: a * d, is_q: true };
            let key = HeadRows { count: k, x_offset: a * d, dy_width: 2 * k * d, is_q: false, ..q };
            let of_q = (dq, n.dq_weight, q, q_norm);
            for (grads, weight, heads, norm) in [of_q, (dkv, n.dk_weight, key, k_norm)] {
                let (Some(weight), Some(norm)) = (weight, norm) else { continue };
                by_dtype!(weight, D => {
                    let weight = dev.write::<D>(weight);
                    // SAFETY: no other task runs, and the operation has claimed the buffer.
                    let weight = unsafe { weight.range(0, weight.len()) };
                    weight_gradient::<T, D>(dev.isa(), grads, x, heads, norm, (positions, angles), weight);
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

/// Computes the inverse rotation (the transposed one) of dy times `scale`. `cos`, `sin`: of the rotated pairs.
#[inline(always)]
fn unrotate<S: Simd>(s: S, dy: &[f32], cos: &[f32], sin: &[f32], scale: S::F, out: &mut [f32]) {
    let half = cos.len();
    let ((d1, d2), (out1, out2)) = (dy.split_at(half), out.split_at_mut(half));
    for at in (0..half).step_by(LANES) {
        let end = (at + LANES).min(half);
        let (a, b) = (s.mul(load_any(s, &d1[at..end]), scale), s.mul(load_any(s, &d2[at..end]), scale));
        let (c, n) = (load_any(s, &cos[at..end]), load_any(s, &sin[at..end]));
        store_any(s, &mut out1[at..end], s.add(s.mul(a, c), s.mul(b, n)));
        store_any(s, &mut out2[at..end], s.sub(s.mul(b, c), s.mul(a, n)));
    }
    for at in (half..d2.len()).step_by(LANES) {
        let end = (at + LANES).min(d2.len());
        store_any(s, &mut out2[at..end], s.mul(load_any(s, &d2[at..end]), scale));
    }
}

simd_fn! {
    /// Computes the gradient of a row's heads before norm, rotation and `scale`. `norm`: the norm, and its input heads.
    fn unrotate_heads[T: Lanes](
        s: S, dy: &[f32], norm: Option<(&[T], HeadNorm<'_, T>)>, turn: Turn<'_>, scale: f32, out: &mut [T],
    ) {
        let (d, pairs) = (turn.d, turn.table.len() / 2);
        let (cos, sin) = deinterleave(turn.table);
        let (cos, sin, by) = (&cos[..pairs], &sin[..pairs], s.splat(scale));
        let mut grad = [0.0; HEAD_DIM_MAX];
        // The sum over a row of its norm's gradient.
        let mut of_row = 0.0;
        if let Some((x, n)) = norm.filter(|(_, n)| n.of == QkNorms::Rows) {
            for (head, (dy, x)) in dy.chunks_exact(d).zip(x.chunks_exact(d)).enumerate() {
                unrotate(s, dy, cos, sin, by, &mut grad[..d]);
                weigh(s, &mut grad[..d], n.of_head(head, d), n.offset);
                of_row += super::norm::dot(s, &grad[..d], x);
            }
        }
        for (head, (dy, out)) in dy.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
            let grad = &mut grad[..d];
            unrotate(s, dy, cos, sin, by, grad);
            if let Some((row, n)) = norm {
                let x = &row[head * d..][..d];
                let r = n.reciprocal(s, x, row);
                weigh(s, grad, n.of_head(head, d), n.offset);
                let (dot, width) = match n.of {
                    QkNorms::Heads => (super::norm::dot(s, grad, x), d),
                    QkNorms::Rows => (of_row, row.len()),
                };
                let (scale, c) = (s.splat(r), s.splat(-dot * r * r / width as f32));
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

/// Multiplies grad by w + offset.
#[inline(always)]
fn weigh<S: Simd, T: Lanes>(s: S, grad: &mut [f32], w: &[T], offset: f32) {
    let d = grad.len();
    for at in (0..d).step_by(LANES) {
        let end = (at + LANES).min(d);
        let w = s.add(load_any(s, &w[at..end]), s.splat(offset));
        let wdy = s.mul(load_any(s, &grad[at..end]), w);
        store_any(s, &mut grad[at..end], wdy);
    }
}

/// Heads of one kind inside rows of qkv.
#[derive(Clone, Copy)]
struct HeadRows {
    d: usize,
    count: usize,
    x_offset: usize,
    x_width: usize,
    /// Elements from row to row of the gradients, whose rows begin with the heads.
    dy_width: usize,
    /// True if they have q's factor after their rotation.
    is_q: bool,
}

simd_fn! {
    /// Adds to weight the sum over rows, then over heads of the same weights, of dy xhat.
    fn weight_gradient[T: Lanes, D: Lanes](
        s: S, dy: &[f32], x: &[T], heads: HeadRows, norm: HeadNorm<'_, T>, at: (&[u32], Angles<'_>), weight: &mut [D],
    ) {
        let (positions, angles) = at;
        let d = heads.d;
        // Heads of a norm over rows have weights of their own.
        let per_head = weight.len() / d;
        for (first, weight) in weight.chunks_exact_mut(d).enumerate() {
            let (mut sums, mut grad) = ([0.0; HEAD_DIM_MAX], [0.0; HEAD_DIM_MAX]);
            let mut room = [0.0; HEAD_DIM_MAX];
            let own = if per_head > 1 { first..first + 1 } else { 0..heads.count };
            for (m, &position) in positions.iter().enumerate() {
                let turn = angles.at(m, position, &mut room);
                let pairs = turn.table.len() / 2;
                let (cos, sin) = deinterleave(turn.table);
                let scale = s.splat(if heads.is_q { turn.q_scale } else { 1.0 });
                let row = &x[m * heads.x_width + heads.x_offset..][..heads.count * d];
                for head in own.clone() {
                    let dy = &dy[m * heads.dy_width + head * d..][..d];
                    let x = &row[head * d..][..d];
                    unrotate(s, dy, &cos[..pairs], &sin[..pairs], scale, &mut grad[..d]);
                    let r = s.splat(norm.reciprocal(s, x, row));
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
}
