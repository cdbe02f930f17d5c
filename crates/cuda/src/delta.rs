//! Launchers of the rule of linear attention: `delta_rule.cu` scans rows forward, `delta_reverse.cu` the gradients of
//! states in reverse, and `delta_chunks.cu` computes the other gradients from them, chunk by chunk.
//!
//! Legend as in `plimsoll_device::DeltaRule`. One kernel has the forward pass, of one row of a sequence or of many.

use super::rows::typed;
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_base::DType;
use plimsoll_device::{
    DELTA_HEAD_MAX, DELTA_HEAD_STEP, DeltaHeads, DeltaRule, DeltaRuleBackward, Places, SEGMENT_FIELDS,
    STATE_CHUNK,
};
use plimsoll_memory::Buf;

/// Columns of a head that a block of a scan has, and its threads.
const SCAN_COLUMNS: usize = 64;
const SCAN_THREADS: u32 = 128;
/// Rows of a scan's tile, times the bytes of an element.
const TILE_ROW_BYTES: usize = 32;
/// Threads of a block of `delta_chunks.cu`, and strides in shared memory of a slice and of matrices between rows.
const CHUNK_THREADS: u32 = 256;
const SLICE_STRIDE: usize = 32 + 8;
const PAIR_STRIDE: usize = STATE_CHUNK + 8;
/// Segments that a launch is for: `is_of_wave` in delta.cuh.
const ALL: u32 = 0;
const WITHOUT_PARENT: u32 = 1;
const WITH_PARENT: u32 = 2;

/// Asserts that the kernels have room for the heads.
pub(super) fn check_heads(heads: DeltaHeads) {
    let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = heads;
    assert!(
        key_heads > 0 && value_heads.is_multiple_of(key_heads),
        "{value_heads} heads of values share {key_heads}"
    );
    for dim in [key_dim, value_dim] {
        let fits = 0 < dim && dim <= DELTA_HEAD_MAX && dim.is_multiple_of(DELTA_HEAD_STEP);
        assert!(fits, "heads of {dim} elements: {DELTA_HEAD_STEP} to {DELTA_HEAD_MAX}");
    }
}

pub(super) fn head_args(heads: DeltaHeads) -> [Arg; 4] {
    [heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim].map(count)
}

/// Returns the number of segments of a pass.
pub(super) fn segments(segments: Buf<'_>) -> usize {
    assert_eq!((segments.dtype(), segments.len() % SEGMENT_FIELDS), (DType::U32, 0), "records of segments");
    segments.len() / SEGMENT_FIELDS
}

/// Returns the number of segments of a pass, with their places checked.
pub(super) fn placed(places: Places<'_>) -> usize {
    let count = segments(places.segments);
    assert_eq!((places.places.len(), places.places.dtype()), (2 * count, DType::U32), "[{count}, 2] places");
    count
}

/// Asserts the shape of q, k, v and gates. Returns the rows.
fn check_rows(heads: DeltaHeads, qkv: Buf<'_>, gates: Buf<'_>) -> usize {
    check_heads(heads);
    let rows = super::matmul::rows(qkv, heads.conv_width());
    assert_eq!(
        (gates.len(), gates.dtype()),
        (rows * 2 * heads.value_heads, DType::F32),
        "g and beta of {rows} rows"
    );
    rows
}

/// Asserts the shape of states. Returns the number of places.
fn check_states(heads: DeltaHeads, states: Buf<'_>) -> usize {
    assert_eq!((states.dtype(), states.len() % heads.state()), (DType::F32, 0), "states of {heads:?}");
    states.len() / heads.state()
}

fn check(buf: Buf<'_>, len: usize, dtype: DType) {
    assert_eq!((buf.len(), buf.dtype()), (len, dtype), "{len} of {}", dtype.name());
}

/// Asserts that rows can be read in units of 16 bytes.
fn check_aligned(dev: &CudaDevice, bufs: &[Buf<'_>]) {
    assert!(bufs.iter().all(|b| dev.address(*b).is_multiple_of(16)), "rows at aligned addresses");
}

/// Returns a launch of a block per part of a head's columns, head and segment, with memory for `ScanShared`.
fn scan(heads: DeltaHeads, segments: usize, e: DType) -> Launch {
    let parts = heads.value_dim.div_ceil(SCAN_COLUMNS);
    let bytes = e.bytes() as usize;
    let rows = TILE_ROW_BYTES / bytes;
    let operands = rows * (2 * DELTA_HEAD_MAX + SCAN_COLUMNS);
    let shared = 2 * 4 * operands + bytes * operands + 3 * 4 * 2 * rows;
    let grid = [(heads.value_heads * parts) as u32, segments as u32, 1];
    Launch { grid, block: SCAN_THREADS, shared: shared as u32 }
}

pub(crate) fn rule(dev: &CudaDevice, args: DeltaRule<'_>) {
    let DeltaRule { heads, qkv, gates, places, states, out, rest } = args;
    let (rows, segments, e) = (check_rows(heads, qkv, gates), placed(places), qkv.dtype());
    let num_places = check_states(heads, states);
    check(out, rows * heads.value_width(), e);
    rest.into_iter().for_each(|rest| check(rest, rows * heads.value_width(), DType::F32));
    check_aligned(dev, &[qkv, states]);
    let bufs = args![dev, qkv, gates, places.places, places.segments, states, out, rest];
    let args = [&bufs[..], &head_args(heads), &args![dev, rows, num_places]].concat();
    let waves: &[u32] = if places.has_parents { &[WITHOUT_PARENT, WITH_PARENT] } else { &[ALL] };
    for wave in waves {
        let args = [&args[..], &[Arg::U32(*wave)]].concat();
        dev.launch("delta_rule", typed!("delta_rule", qkv), scan(heads, segments, e), &args);
    }
}

/// Returns the shared memory of a block of `delta_chunks.cu` over its steps, in parts of f32 and of e.
fn chunk_shared(e: DType) -> u32 {
    let (f, own) = if e == DType::F32 { (3, 3) } else { (2, 1) };
    let (rows, state) = (STATE_CHUNK * SLICE_STRIDE, DELTA_HEAD_MAX * SLICE_STRIDE);
    let from_gradient = 2 * f * rows + own * rows + f * state;
    let from_pairs = 2 * f * STATE_CHUNK * PAIR_STRIDE + 2 * own * rows;
    let from_state = 2 * f * rows + f * state;
    (2 * from_gradient.max(from_pairs).max(from_state)) as u32
}

pub(crate) fn rule_backward(dev: &CudaDevice, args: DeltaRuleBackward<'_>) {
    let DeltaRuleBackward { heads, qkv, gates, places, states, rest, dout, d_rest, d_states, d_qkv, d_gates } =
        args;
    let (rows, segments, e) = (check_rows(heads, qkv, gates), placed(places), qkv.dtype());
    let num_places = check_states(heads, states);
    check(d_states, states.len(), DType::F32);
    check(dout, rows * heads.value_width(), e);
    [rest, d_rest].into_iter().for_each(|b| check(b, rows * heads.value_width(), DType::F32));
    check(d_qkv, qkv.len(), DType::F32);
    check(d_gates, gates.len(), DType::F32);
    check_aligned(dev, &[qkv, states, d_states, dout, rest, d_rest, d_qkv]);
    let index = [qkv, gates, places.places, places.segments].map(|b| dev.arg(b));
    let sizes = [&head_args(heads)[..], &[count(rows), count(segments), count(num_places)]].concat();
    // Parents go on from what their children leave.
    let waves: &[u32] = if places.has_parents { &[WITH_PARENT, WITHOUT_PARENT] } else { &[ALL] };
    for wave in waves {
        let to = [dout, d_rest, d_states].map(|b| dev.arg(b));
        let args = [&index[..], &to, &sizes, &[Arg::U32(*wave)]].concat();
        dev.launch("delta_reverse", typed!("delta_reverse", qkv), scan(heads, segments, e), &args);
    }
    let of = [states, rest, d_rest, d_states, dout, d_qkv, d_gates].map(|b| dev.arg(b));
    let args = [&index[..], &of, &sizes].concat();
    // Each segment may end with a part of a chunk.
    let chunks = rows / STATE_CHUNK + segments;
    let how = Launch {
        grid: [heads.key_heads as u32, chunks as u32, 1],
        block: CHUNK_THREADS,
        shared: chunk_shared(e),
    };
    dev.launch("delta_chunks", typed!("delta_chunks", qkv), how, &args);
}
