//! Launchers of `rotation.cu`: rotation of queries and keys, head norms, writes and copies of the KV cache.

use super::rows::{add_partials, blocks, sum_scratch_bytes, typed, wide};
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_arch::{QkNorms, RopeAxes};
use plimsoll_base::DType;
use plimsoll_device::{Axes, Batch, Heads, KV_BLOCK, Kv, QkNorm, RopeBackward, Rotation};
use plimsoll_memory::Buf;

/// Largest head dimension, and that of the plain backward kernels for narrower heads: sizes of arrays in them.
const HEAD_DIM_MAX: usize = 576;
const NARROW: usize = 256;
/// Elements of eight pairs.
const PAIRS: usize = 16;
/// Threads of a block of the rotation's kernels.
const THREADS: usize = 256;
/// Maximum chunks of rows of the backward pass.
const CHUNKS_MAX: usize = 512;
/// Minimum rows of such a chunk: their heads give a block's threads something to do.
const CHUNK_ROWS: usize = 4;

/// Threads that share a head, by shape alone: 16 elements each, or a warp for other dimensions and partial rotations.
#[derive(Clone, Copy, PartialEq)]
enum Team {
    Sixteenths(usize),
    Warp,
    /// All heads of a row, if they are normalised together.
    Block,
}

fn team(d: usize, norms: Option<QkNorm<'_>>, width: usize) -> Team {
    assert!(d.is_multiple_of(2) && d <= HEAD_DIM_MAX, "head dimension {d}: even, at most {HEAD_DIM_MAX}");
    if norms.is_some_and(|n| n.of == QkNorms::Rows) {
        assert_eq!(width, d, "heads that are normalised together are rotated as a whole");
        return Team::Block;
    }
    if width == d && d.is_multiple_of(16) && (d / 16).is_power_of_two() {
        Team::Sixteenths(d / 16)
    } else {
        Team::Warp
    }
}

/// Fails unless the kernels' 16-byte accesses are aligned, where they make any.
fn check_aligned(dev: &CudaDevice, team: Team, bufs: &[Buf<'_>]) {
    let makes_none = !matches!(team, Team::Sixteenths(_));
    assert!(makes_none || wide(dev, 16, 8, bufs), "heads at aligned addresses");
}

/// Splits qkv, normalises and rotates heads, writes q and the cache.
pub(crate) fn forward(
    dev: &CudaDevice,
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
    assert_eq!(batch.slots.len(), rows, "a slot for each row");
    assert_eq!(
        (q_out.len(), qkv.len()),
        (rows * a * d, rows * (a + 2 * k) * d),
        "[{rows}, ({a} + 2 x {k}) x {d}]"
    );
    let whole_blocks = kv.keys.len().is_multiple_of(k * d * KV_BLOCK);
    assert!(whole_blocks && kv.keys.len() == kv.values.len(), "keys and values of whole blocks");
    assert_eq!([q_out, kv.keys, kv.values].map(|b| b.dtype()), [qkv.dtype(); 3]);
    let width = rotation.width_of(d);
    let (angles, num_positions) = angles(dev, rotation, width);
    let team = team(d, norms, width);
    check_aligned(dev, team, &[qkv, q_out, kv.keys, kv.values]);
    check_aligned(dev, team, rotation.angles.as_slice());
    let [q_norm, k_norm] = norm_weights(dev, norms, qkv.dtype(), [a, k, d], team);
    let (eps, offset) = norms.map_or((0.0, 0.0), |n| (n.eps, n.offset));
    let q_factors = q_factors(dev, rotation, width);
    let factors = args![dev, angles, rotation.q_scale, q_factors];
    let bufs = args![dev, batch.positions, batch.slots, q_out, kv.keys, kv.values];
    let sizes = args![dev, rows, a, k, d, width, num_positions, kv.keys.len() / (k * d)];
    let (heads, places) = (rows * (a + 2 * k), places(dev, rotation, rows));
    let rows_at = [qkv, q_out, kv.keys, kv.values];
    if norms.is_none() && team == Team::Warp && in_eights(dev, [d, width], &rows_at, rotation) {
        let args = [&args![dev, qkv][..], &factors, &bufs, &sizes, &places].concat();
        let how = blocks(heads * d / PAIRS, THREADS, THREADS as u32);
        return dev.launch(module("rotation_eights", rotation), typed!("rope_eights", qkv), how, &args);
    }
    let before = args![dev, qkv, q_norm, k_norm, eps, offset];
    let args = [&before[..], &factors, &bufs, &sizes, &places].concat();
    let (kernel, threads) = match team {
        Team::Sixteenths(team) => (typed!("rope", qkv), heads * team),
        Team::Warp => (typed!("rope_plain", qkv), heads * 32),
        Team::Block => (typed!("rope_rows", qkv), rows * THREADS),
    };
    dev.launch(module("rotation", rotation), kernel, blocks(threads, THREADS, THREADS as u32), &args);
}

/// True if each eight pairs are whole 16-byte pieces, of the rotated elements and of the rest.
fn in_eights(dev: &CudaDevice, [d, width]: [usize; 2], bufs: &[Buf<'_>], rotation: Rotation<'_>) -> bool {
    let are_whole = width.is_multiple_of(PAIRS) && wide(dev, d, PAIRS, bufs);
    are_whole && wide(dev, width, PAIRS, rotation.angles.as_slice())
}

/// Returns the module of kernels for rows that have one position each, or the one for places of three numbers.
fn module(of_positions: &'static str, rotation: Rotation<'_>) -> &'static str {
    if rotation.axes.is_some() { "rotation_axes" } else { of_positions }
}

/// Returns the last arguments of kernels for places of three numbers: them, and which number a pair takes.
fn places(dev: &CudaDevice, rotation: Rotation<'_>, rows: usize) -> Vec<Arg> {
    let Some(Axes { places, of }) = rotation.axes else { return vec![] };
    assert_eq!(
        (places.dtype(), places.len()),
        (DType::U32, 3 * rows),
        "three numbers of each of {rows} rows"
    );
    assert!(rotation.angles.is_some(), "places of heads that are rotated");
    assert!(rotation.q_factors.is_none(), "factors by position of rows with one");
    let (is_woven, second, third) = match of {
        RopeAxes::Runs([time, height, _]) => (false, time, time + height),
        RopeAxes::Woven([_, height, width]) => (true, 3 * height, 3 * width),
    };
    args![dev, places, is_woven, second, third].to_vec()
}

/// Returns the address of the angles, or none, and the number of their positions.
fn angles(dev: &CudaDevice, rotation: Rotation<'_>, width: usize) -> (Arg, Arg) {
    let Some(table) = rotation.angles else { return (Arg::Ptr(0), count(0)) };
    assert_eq!(
        (table.dtype(), table.len() % width),
        (DType::F32, 0),
        "angles of {width} elements a position"
    );
    (dev.arg(table), count(table.len() / width))
}

/// Returns the address of the factors on q by position, or none.
fn q_factors(dev: &CudaDevice, rotation: Rotation<'_>, width: usize) -> Arg {
    let Some(factors) = rotation.q_factors else { return Arg::Ptr(0) };
    let positions = rotation.angles.map(|table| table.len() / width);
    assert_eq!(
        (factors.dtype(), Some(factors.len())),
        (DType::F32, positions),
        "a factor for each position of the angles"
    );
    dev.arg(factors)
}

/// Returns the addresses of q's and k's weights, or none.
fn norm_weights(
    dev: &CudaDevice,
    norms: Option<QkNorm<'_>>,
    dtype: DType,
    shape: [usize; 3],
    team: Team,
) -> [Arg; 2] {
    let Some(n) = norms else { return [Arg::Ptr(0); 2] };
    assert_eq!([n.q.len(), n.k.len()], widths(n.of, shape), "weights of the norms of q and k");
    assert_eq!([n.q.dtype(), n.k.dtype()], [dtype; 2], "weights of the activations' dtype");
    check_aligned(dev, team, &[n.q, n.k]);
    [dev.arg(n.q), dev.arg(n.k)]
}

/// Returns the numbers of weights of the norms of q and of k.
fn widths(of: QkNorms, [a, k, d]: [usize; 3]) -> [usize; 2] {
    match of {
        QkNorms::Heads => [d; 2],
        QkNorms::Rows => [a * d, k * d],
    }
}

/// Copies the first slots of blocks to other blocks.
pub(crate) fn copy_kv(dev: &CudaDevice, kv: Kv<'_>, copies: Buf<'_>) {
    let (d, k) = (kv.head_dim, kv.kv_heads);
    assert_eq!((copies.dtype(), copies.len() % 3), (DType::U32, 0), "records of source, destination, slots");
    assert_eq!((kv.keys.len(), kv.keys.dtype()), (kv.values.len(), kv.values.dtype()), "keys and values");
    let bytes = d * kv.keys.dtype().bytes() as usize;
    let aligned = [kv.keys, kv.values].iter().all(|b| dev.address(*b).is_multiple_of(16));
    let (kernel, unit) =
        if aligned && bytes.is_multiple_of(16) { ("copy_kv_16", 16) } else { ("copy_kv_2", 2) };
    let (units, num_blocks) = (KV_BLOCK * bytes / unit, kv.keys.len() / (k * d * KV_BLOCK));
    let args = args![dev, kv.keys, kv.values, copies, k, units, num_blocks];
    let how = Launch { grid: [(copies.len() / 3) as u32, k as u32, 1], block: 128, shared: 0 };
    dev.launch("rotation", kernel, how, &args);
}

/// Computes dqkv, the gradient through rotation and head norms; with `norms` also their weights' gradients.
pub(crate) fn backward(dev: &CudaDevice, args: RopeBackward<'_>) {
    let RopeBackward { dq, dkv, rotation, positions, heads, norms, dqkv } = args;
    let Heads { heads: a, kv_heads: k, head_dim: d } = heads;
    let rows = positions.len();
    assert_eq!(
        [dq.len(), dkv.len(), dqkv.len()],
        [rows * a * d, rows * 2 * k * d, rows * (a + 2 * k) * d],
        "rows of {rows}"
    );
    assert_eq!([dq, dkv].map(|b| b.dtype()), [DType::F32; 2]);
    if rows == 0 {
        return;
    }
    let width = rotation.width_of(d);
    let (angles, num_positions) = angles(dev, rotation, width);
    let team = team(d, norms.map(|n| n.norm), width);
    check_aligned(dev, team, &[dq, dkv, dqkv]);
    check_aligned(dev, team, rotation.angles.as_slice());
    let chunk_rows = rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS);
    let chunks = rows.div_ceil(chunk_rows);
    let before = args![dev, dq, dkv, angles, rotation.q_scale, q_factors(dev, rotation, width)];
    let sizes = args![dev, positions, dqkv, rows, chunk_rows, a, k, d, width, num_positions];
    let mut args = [&before[..], &sizes].concat();
    let places = places(dev, rotation, rows);
    let how = blocks(chunks, 1, THREADS as u32);
    let Some(n) = norms else {
        args.extend(places);
        if team == Team::Warp && in_eights(dev, [d, width], &[dq, dkv, dqkv], rotation) {
            let how = blocks(rows * (a + 2 * k) * d / PAIRS, THREADS, THREADS as u32);
            let kernel = typed!("rope_backward_eights", dqkv);
            return dev.launch(module("rotation_eights", rotation), kernel, how, &args);
        }
        let kernel = match team {
            Team::Sixteenths(_) => typed!("rope_backward", dqkv),
            Team::Warp if d > NARROW => typed!("rope_backward_wide", dqkv),
            Team::Warp | Team::Block => typed!("rope_backward_plain", dqkv),
        };
        return dev.launch(module("rotation", rotation), kernel, how, &args);
    };
    assert_eq!((n.qkv.len(), n.qkv.dtype()), (dqkv.len(), dqkv.dtype()), "qkv before the norms");
    let weights = n.dq_weight.zip(n.dk_weight);
    let [wq, wk] = widths(n.norm.of, [a, k, d]);
    assert!(weights.is_none_or(|(q, k)| [q.len(), k.len()] == [wq, wk]), "gradients of the norms' weights");
    check_aligned(dev, team, &[n.qkv]);
    let [q_norm, k_norm] = norm_weights(dev, Some(n.norm), dqkv.dtype(), [a, k, d], team);
    let partials = weights.map_or(0, |_| dev.scratch(sum_scratch_bytes(rows as u64, (wq + wk) as u64)));
    let (eps, offset) = (Arg::F32(n.norm.eps), Arg::F32(n.norm.offset));
    args.extend([dev.arg(n.qkv), q_norm, k_norm, eps, offset, Arg::Ptr(partials)]);
    args.extend(places);
    let kernel = match team {
        Team::Sixteenths(_) => typed!("rope_backward_norms", dqkv),
        Team::Warp if d > NARROW => typed!("rope_backward_wide_norms", dqkv),
        Team::Warp => typed!("rope_backward_plain_norms", dqkv),
        Team::Block => typed!("rope_backward_rows_norms", dqkv),
    };
    dev.launch(module("rotation", rotation), kernel, how, &args);
    let Some((dq_weight, dk_weight)) = weights else { return };
    for (weight, first) in [(dq_weight, 0), (dk_weight, 4 * wq as u64)] {
        add_partials(dev, Arg::Ptr(partials + first), chunks, wq + wk, weight, true);
    }
}
