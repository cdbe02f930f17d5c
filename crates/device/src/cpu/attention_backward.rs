//! Gradient of attention, from the forward pass's log-sum-exp.
//!
//! One task owns a group of segments (a root and its children) and a key-value head, so that sums into keys' rows
//! have one order: segments ascending, rows ascending, heads ascending.

use super::CpuDevice;
use super::attention::{Segment, segments};
use super::lanes::{LANES, by_dtype};
use super::Real;
use super::rope::HEAD_DIM_MAX;
use crate::{Batch, KV_BLOCK, Kv, NO_PARENT};
use plimsoll_base::math;
use plimsoll_memory::Buf;

#[allow(clippy::too_many_arguments)] // As the operation.
pub(super) fn backward(
    dev: &CpuDevice,
    q: Buf<'_>,
    kv: Kv<'_>,
    batch: Batch<'_>,
    out: Buf<'_>,
    lse: Buf<'_>,
    dout: Buf<'_>,
    dq: Buf<'_>,
    dkv: Buf<'_>,
) {
    let (rows, d, k) = (batch.positions.len(), kv.head_dim, kv.kv_heads);
    if rows == 0 {
        return;
    }
    let a = q.len() / (rows * d);
    assert!(d.is_multiple_of(LANES) && d <= HEAD_DIM_MAX, "head dimension {d}: a multiple of 16 up to {HEAD_DIM_MAX}");
    let (fields, tables) = (dev.read::<u32>(batch.segments), dev.read::<u32>(batch.tables));
    super::elementwise::zero(dev, dq);
    super::elementwise::zero(dev, dkv);
    let (dq, dkv, lse) = (dev.write::<f32>(dq), dev.write::<f32>(dkv), dev.read::<f32>(lse));
    let scale = 1.0 / (d as f32).sqrt();
    by_dtype!(q, T => {
        let (q, keys, values) = (dev.read::<T>(q), dev.read::<T>(kv.keys), dev.read::<T>(kv.values));
        let (out, dout) = (dev.read::<T>(out), dev.read::<T>(dout));
        let roots = segments(fields).filter(|s| s.parent == NO_PARENT).count();
        dev.pool().run(roots * k, &|task, _thread| {
            let (root, kv_head) = (task / k, task % k);
            let root = segments(fields).filter(|s| s.parent == NO_PARENT).nth(root).expect("one of the roots");
            for segment in segments(fields).filter(|s| in_group(s, &root)) {
                for row in 0..segment.rows {
                    for head in kv_head * (a / k)..(kv_head + 1) * (a / k) {
                        let at = ((segment.first_row + row) * a + head) * d;
                        let (q, dout, out) = (&q[at..][..d], &dout[at..][..d], &out[at..][..d]);
                        let delta: f32 = dout.iter().zip(out).map(|(a, b)| a.to_f32() * b.to_f32()).sum();
                        // SAFETY: heads of rows are disjoint.
                        let dq = unsafe { dq.range(at, d) };
                        for key in 0..=segment.first_position + row {
                            let block = tables[segment.table + key / KV_BLOCK] as usize;
                            let block = (block * k + kv_head) * d * KV_BLOCK;
                            let lane = key % KV_BLOCK;
                            let kk = |i: usize| keys[block + i * KV_BLOCK + lane].to_f32();
                            let v = &values[block + lane * d..][..d];
                            let score: f32 = (0..d).map(|i| q[i].to_f32() * kk(i)).sum();
                            let p = math::exp_f32(score * scale - lse[at / d]);
                            let dp: f32 = dout.iter().zip(v).map(|(a, b)| a.to_f32() * b.to_f32()).sum();
                            let ds = p * (dp - delta) * scale;
                            let to = key_row(&segment, key) * 2 * k * d + kv_head * d;
                            // SAFETY: the group's rows and the head's columns are this task's.
                            let (dk, dv) = unsafe { (dkv.range(to, d), dkv.range(to + k * d, d)) };
                            for i in 0..d {
                                dv[i] += p * dout[i].to_f32();
                                dk[i] += ds * q[i].to_f32();
                                dq[i] += ds * kk(i);
                            }
                        }
                    }
                }
            }
        });
    });
}

/// True for a root itself and its children.
fn in_group(segment: &Segment, root: &Segment) -> bool {
    let first = if segment.parent == NO_PARENT { segment.first_row } else { segment.parent as usize };
    first == root.first_row
}

/// The row that owns the key at a position.
fn key_row(segment: &Segment, position: usize) -> usize {
    if segment.parent != NO_PARENT && position < segment.first_position {
        segment.parent as usize + position
    } else {
        segment.first_row + position - segment.first_position
    }
}
