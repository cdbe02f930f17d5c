//! Launchers of `chain.cu`: additions to the part of a gradient that a rank owns.

use super::cuda_device::WORKSPACE_BYTES;
use super::rows::{self, blocks, typed, wide};
use super::{Arg, CudaDevice, Launch, count};
use cudarc::driver::sys;
use plimsoll_base::DType;
use plimsoll_device::{MatrixLayout, OwnedRun};
use plimsoll_memory::Buf;

/// Maximum runs of elements of a launch of `add_owned_rows`.
const OWNED_MAX: usize = 1024;

/// Returns the scratch of `embed_backward_part` for `rows` rows: their order, their targets, and the table of runs.
pub(crate) fn scratch_bytes(rows: u64) -> u64 {
    let of_rows = (rows::add_scratch_bytes(rows) + 4 * rows).next_multiple_of(16);
    of_rows + OWNED_MAX as u64 * size_of::<[u64; 3]>() as u64
}

pub(crate) fn accumulate(dev: &CudaDevice, src: Buf<'_>, dst: Buf<'_>, add: bool) {
    assert_eq!(src.len(), dst.len(), "lengths of a sum");
    if !add && src.dtype() == dst.dtype() {
        return copy(dev, src, dev.address(dst));
    }
    let Some(from) = dev.far_away(src) else { return fold(dev, &[src], dst, add) };
    // Kernels read only card memory, so it comes through the scratch.
    let size = src.dtype().bytes();
    let part = (WORKSPACE_BYTES / size) as usize;
    for start in (0..src.len()).step_by(part) {
        let len = part.min(src.len() - start);
        let (at, bytes) = (start as u64 * size, len as u64 * size);
        let here = dev.scratch(bytes);
        dev.copy_far(from.wrapping_add(at as usize), here, bytes, dev.stream());
        fold_at(dev, src.dtype(), &[here], dst.slice(start, len), add);
    }
}

/// Maximum parts that a launch adds.
const PARTS_MAX: usize = 8;

pub(crate) fn fold(dev: &CudaDevice, parts: &[Buf<'_>], dst: Buf<'_>, add: bool) {
    let alike = |part: &Buf<'_>| (part.len(), part.dtype()) == (dst.len(), parts[0].dtype());
    assert!(parts.iter().all(alike), "parts of one dtype, as long as their sum");
    let mut addresses = [0; PARTS_MAX];
    for (index, some) in parts.chunks(PARTS_MAX).enumerate() {
        for (address, part) in addresses.iter_mut().zip(some) {
            *address = dev.address(*part);
        }
        fold_at(dev, parts[0].dtype(), &addresses[..some.len()], dst, add || index > 0);
    }
}

/// Adds at most `PARTS_MAX` parts at addresses, each as long as `dst`.
fn fold_at(dev: &CudaDevice, dtype: DType, parts: &[u64], dst: Buf<'_>, add: bool) {
    let kernel = match (dtype, dst.dtype()) {
        (DType::F32, DType::F32) => "fold_float_float",
        (DType::F32, DType::Bf16) => "fold_float_bf16",
        (DType::Bf16, DType::F32) => "fold_bf16_float",
        (DType::Bf16, DType::Bf16) => "fold_bf16_bf16",
        (from, to) => panic!("a sum of {} in {}", from.name(), to.name()),
    };
    let aligned = |address: &u64, dtype: DType| address.is_multiple_of(4 * dtype.bytes());
    let wide = parts.iter().all(|part| aligned(part, dtype)) && aligned(&dev.address(dst), dst.dtype());
    let mut args = [Arg::Ptr(0); PARTS_MAX + 5];
    for (arg, part) in args.iter_mut().zip(parts) {
        *arg = Arg::Ptr(*part);
    }
    args[PARTS_MAX..].copy_from_slice(&args![dev, parts.len(), dst, dst.len() as u64, wide, add]);
    dev.launch("chain", kernel, blocks(dst.len(), 4 * 256, 256), &args);
}

/// Copies a buffer from any card to an address of this one, by its copy engines.
fn copy(dev: &CudaDevice, from: Buf<'_>, to: u64) {
    let bytes = from.bytes();
    if bytes == 0 || dev.has_failed() {
        return;
    }
    if let Some(from) = dev.far_away(from) {
        return dev.copy_far(from, to, bytes, dev.stream());
    }
    let from = dev.address(from);
    dev.gpu.bind();
    // SAFETY: both ends were checked to lie in arenas, which live as long as the device.
    let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, dev.stream()) };
    dev.keep(copied.result(), "copying from another card");
}

pub(crate) fn embed_backward_part(
    dev: &CudaDevice,
    d: Buf<'_>,
    ids: Buf<'_>,
    h: usize,
    layout: MatrixLayout,
    owned: &[OwnedRun],
    shard: Buf<'_>,
) {
    assert_eq!((layout, d.dtype(), ids.dtype()), (MatrixLayout::Rows, DType::F32, DType::U32));
    assert_eq!(d.len(), ids.len() * h, "[{}, {h}] of embedding gradients", ids.len());
    if ids.is_empty() || owned.is_empty() {
        return;
    }
    let rows = ids.len();
    let order = dev.scratch(scratch_bytes(rows as u64));
    let (runs, targets) = (order + 4 * rows as u64, order + 8 * rows as u64);
    let table = (targets + 4 * rows as u64).next_multiple_of(16);
    // Every row is compared with all others: they are read here, not on another card.
    copy(dev, ids, targets);
    let [order, runs, targets] = [order, runs, targets].map(Arg::Ptr);
    dev.launch("rows", "order_rows", blocks(rows, 8, 256), &[targets, order, runs, count(rows)]);
    let launch = Launch { grid: [rows as u32, h.div_ceil(128) as u32, 1], block: 32, shared: 0 };
    let wide = wide(dev, h, 4, &[d, shard])
        && owned.iter().all(|owned| (owned.run.start | owned.at | owned.run.elements).is_multiple_of(4));
    for owned in owned.chunks(OWNED_MAX) {
        let mut words = [[0u64; 3]; OWNED_MAX];
        for (word, OwnedRun { run, at }) in words.iter_mut().zip(owned) {
            assert!(at + run.elements <= shard.len() as u64, "{run:?} at {at} of a shard of {}", shard.len());
            *word = [run.start, run.end(), *at];
        }
        dev.send(table, &words[..owned.len()]);
        let args = args![dev, d, targets, order, runs, Arg::Ptr(table), owned.len(), shard, h, wide];
        dev.launch("chain", typed!("add_owned_rows", shard), launch, &args);
    }
}
