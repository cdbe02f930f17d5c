//! Launcher of `adapter_gradients.cu`: the gradients of A and B of one layer, all in one launch.
//!
//! Legend: M rows, N outputs and K inputs of the layer, S blocks of rank r.

use super::matmul::by_library;
use super::rows::count;
use super::{Arg, CudaDevice, Launch};
use plimsoll_base::{DType, LoraShape, LoraTarget, ModelSpec};
use plimsoll_device::{AdaptBackward, Adapter};

/// Wide and narrow columns of a block, and the rows of one of its steps, as in the kernel.
const WIDE: usize = 128;
const NARROW: usize = 32;
const STEP: usize = 32;
/// Blocks of a launch, about: several for each multiprocessor of a card.
const BLOCKS: usize = 768;
/// Fewest rows of a block.
const ROWS_MIN: usize = 128;
/// Blocks that add the runs of a tile: 256 threads with four elements each.
const ADDERS: usize = WIDE * NARROW / 1024;

/// Tiles of a layer with these outputs.
fn tiles(outputs: impl Iterator<Item = usize>, k: usize, r: usize) -> usize {
    let of = |wide: usize, narrow: usize| wide.div_ceil(WIDE) * narrow.div_ceil(NARROW);
    let (mut sum, mut sr) = (0, 0);
    for n in outputs {
        sum += of(n, r);
        sr += r;
    }
    sum + of(k, sr)
}

/// Runs of rows, and the rows of each, for `m` rows and `tiles`: they depend on the shapes alone.
fn runs(tiles: usize, m: usize) -> (usize, usize) {
    let most = (BLOCKS / tiles).clamp(1, m.div_ceil(ROWS_MIN));
    let rows = m.div_ceil(most).next_multiple_of(STEP);
    (m.div_ceil(rows), rows)
}

/// Bytes of scratch that the gradients of a model's adapters need.
pub(crate) fn scratch_bytes(spec: &ModelSpec, lora: LoraShape) -> u64 {
    use LoraTarget::{Down, Gate, K, O, Q, Up, V};
    let of = |targets: &[LoraTarget]| {
        let there = || targets.iter().filter(|target| lora.targets.contains(**target));
        let outputs = there().map(|target| target.widths(spec).1 as usize);
        let (k, _) = targets[0].widths(spec);
        if there().next().is_none() { 0 } else { tiles(outputs, k as usize, lora.rank as usize) }
    };
    let most = [&[Q, K, V][..], &[O], &[Gate, Up], &[Down]].into_iter().map(of).max().unwrap_or(0);
    (most.max(BLOCKS) * WIDE * NARROW) as u64 * DType::F32.bytes()
}

/// Computes the gradients, or adds them when `add`. False where shapes are none that the kernel takes. `width`: N.
pub(crate) fn run(dev: &CudaDevice, args: &AdaptBackward<'_>, m: usize, width: usize) -> bool {
    let AdaptBackward { x, u, dy, du, grads, add, .. } = *args;
    let Adapter { a, blocks, .. } = grads;
    let (sr, r) = (a.n, grads.rank());
    let aligned = |buf| dev.address(buf).is_multiple_of(16);
    let takes = |first: usize, n: usize| first.is_multiple_of(8) && n.is_multiple_of(8);
    let whole = by_library(dev, &[x, u, dy, du], &[sr, r, a.k, width])
        && grads.blocks().all(|(_, block)| takes(block.first, block.b.n) && aligned(block.b.buf))
        && aligned(a.buf);
    if !whole || m == 0 {
        return false;
    }
    let outputs = || grads.blocks().map(|(_, block)| block.b.n);
    let tiles = tiles(outputs(), a.k, r);
    let (runs, rows) = runs(tiles, m);
    let parts = Arg::Ptr(dev.scratch((tiles * runs * WIDE * NARROW) as u64 * DType::F32.bytes()));
    let [n0, n1, n2] = blocks.map(|block| count(block.map_or(0, |block| block.b.n)));
    let [f0, f1, f2] = blocks.map(|block| count(block.map_or(0, |block| block.first)));
    let [dy, u, x, du] = [dy, u, x, du].map(|buf| dev.arg(buf));
    let (sr, r, k) = (count(sr), count(r), count(a.k));
    let operands =
        [dy, count(width), u, sr, r, x, k, du, f0, n0, f1, n1, f2, n2, count(m), count(rows), parts];
    let grid = [tiles as u32, runs as u32, 1];
    dev.launch("adapter_gradients", "adapter_gradients", Launch { grid, block: 128, shared: 0 }, &operands);
    let kernel = super::rows::typed!("adapter_add_runs", a.buf);
    let [b0, b1, b2] = blocks.map(|block| block.map_or(Arg::Ptr(0), |block| dev.arg(block.b.buf)));
    let operands =
        [parts, count(runs), n0, n1, n2, r, sr, k, b0, b1, b2, dev.arg(a.buf), Arg::U32(u32::from(add))];
    let grid = [tiles as u32, ADDERS as u32, 1];
    dev.launch("adapter_gradients", kernel, Launch { grid, block: 256, shared: 0 }, &operands);
    true
}
