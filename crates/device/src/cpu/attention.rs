//! Causal attention over the paged cache: training, prefill and decode in one order of arithmetic.
//!
//! Keys stand in blocks of 16; a chunk is 512 keys from absolute position 0. Each chunk gives (max, sum, out) in f32;
//! chunks are merged in ascending order. A row's bits depend on its own keys only.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::rope::HEAD_DIM_MAX;
use crate::{ATTENTION_CHUNK, Batch, KV_BLOCK, Kv, SEGMENT_FIELDS};
use plimsoll_base::math;
use plimsoll_memory::Buf;

/// A record of `Batch::segments`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) first_position: usize,
    pub(super) table: usize,
    /// First row of the parent, or `NO_PARENT`.
    pub(super) parent: u32,
}

pub(super) fn segments(fields: &[u32]) -> impl Iterator<Item = Segment> + Clone + '_ {
    fields.as_chunks::<SEGMENT_FIELDS>().0.iter().map(|f| Segment {
        first_row: f[0] as usize,
        rows: f[1] as usize,
        first_position: f[2] as usize,
        table: f[3] as usize,
        parent: f[4],
    })
}

pub(super) fn forward(dev: &CpuDevice, q: Buf<'_>, kv: Kv<'_>, batch: Batch<'_>, out: Buf<'_>, lse: Option<Buf<'_>>) {
    let (rows, d, k) = (batch.positions.len(), kv.head_dim, kv.kv_heads);
    if rows == 0 {
        return;
    }
    let a = q.len() / (rows * d);
    assert!(d.is_multiple_of(LANES) && d <= HEAD_DIM_MAX, "head dimension {d}: a multiple of 16 up to {HEAD_DIM_MAX}");
    let (fields, tables) = (dev.read::<u32>(batch.segments), dev.read::<u32>(batch.tables));
    by_dtype!(q, T => {
        let (q, keys, values) = (dev.read::<T>(q), dev.read::<T>(kv.keys), dev.read::<T>(kv.values));
        let out = dev.write::<T>(out);
        let lse = lse.map(|b| dev.write::<f32>(b));
        for segment in segments(fields) {
            split(dev, segment.rows * a, (segment.first_position + segment.rows) * d, &|part| {
                for i in part {
                    let (row, head) = (i / a, i % a);
                    let at = ((segment.first_row + row) * a + head) * d;
                    let num_keys = segment.first_position + row + 1;
                    // SAFETY: rows and heads are disjoint.
                    let out = unsafe { out.range(at, d) };
                    let table = &tables[segment.table..];
                    let l = one_row::<T>(dev.isa(), &q[at..][..d], keys, values, table, head / (a / k), k, num_keys, out);
                    if let Some(lse) = &lse {
                        // SAFETY: as above.
                        let lse = unsafe { lse.range(at / d, 1) };
                        lse[0] = l;
                    }
                }
            });
        }
    });
}

simd_fn! {
    /// One head of one row; returns the log-sum-exp of its scores.
    fn one_row[T: Lanes](
        s: S, q: &[T], keys: &[T], values: &[T], table: &[u32], head: usize, kv_heads: usize, num_keys: usize,
        out: &mut [T],
    ) -> f32 {
        let d = q.len();
        let scale = s.splat(1.0 / (d as f32).sqrt());
        let (mut max, mut sum, mut total) = (0.0, 0.0, [0.0f32; HEAD_DIM_MAX]);
        for chunk in (0..num_keys).step_by(ATTENTION_CHUNK) {
            let end = (chunk + ATTENTION_CHUNK).min(num_keys);
            let mut p = [0.0f32; ATTENTION_CHUNK];
            let minus = s.splat(f32::NEG_INFINITY);
            let mut largest = minus;
            for start in (chunk..end).step_by(KV_BLOCK) {
                let block = (table[start / KV_BLOCK] as usize * kv_heads + head) * d * KV_BLOCK;
                let mut score = s.splat(0.0);
                for (q, k) in q.iter().zip(keys[block..].as_chunks::<LANES>().0) {
                    score = s.fma(T::load(s, k), s.splat(q.to_f32()), score);
                }
                let score = s.first(end - start, s.mul(score, scale), minus);
                largest = s.max(largest, score);
                super::norm::store_any(s, &mut p[start - chunk..start - chunk + LANES], score);
            }
            let chunk_max = s.largest(largest);
            let mut sums = s.splat(0.0);
            for p in p[..(end - chunk).next_multiple_of(LANES)].as_chunks_mut::<LANES>().0 {
                let e = s.exp(s.sub(f32::load(s, p), s.splat(chunk_max)));
                sums = s.add(sums, e);
                f32::store(s, p, e);
            }
            let chunk_sum = s.sum(sums);
            let mut o = [0.0f32; HEAD_DIM_MAX];
            for key in chunk..end {
                let block = (table[key / KV_BLOCK] as usize * kv_heads + head) * d * KV_BLOCK;
                let v = values[block + key % KV_BLOCK * d..][..d].as_chunks::<LANES>().0;
                let p = s.splat(p[key - chunk]);
                for (v, o) in v.iter().zip(o.as_chunks_mut::<LANES>().0) {
                    let sum = s.fma(p, T::load(s, v), f32::load(s, o));
                    f32::store(s, o, sum);
                }
            }
            if chunk == 0 {
                (max, sum, total) = (chunk_max, chunk_sum, o);
                continue;
            }
            let new = if chunk_max > max { chunk_max } else { max };
            let mut factors = [0.0; LANES];
            (factors[0], factors[1]) = (max - new, chunk_max - new);
            let e = s.exp(f32::load(s, &factors));
            f32::store(s, &mut factors, e);
            let (old, fresh) = (factors[0], factors[1]);
            (max, sum) = (new, sum * old + chunk_sum * fresh);
            for i in 0..d {
                total[i] = total[i] * old + o[i] * fresh;
            }
        }
        for (out, total) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(total.as_chunks::<LANES>().0) {
            T::store(s, out, s.div(f32::load(s, total), s.splat(sum)));
        }
        (f64::from(max) + math::ln(f64::from(sum))) as f32
    }
}
