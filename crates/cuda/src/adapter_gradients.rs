//! Launchers of `adapter_gradients.cu` and `adapter_gradients_hopper.cu`: all gradients of A and B of one layer.
//!
//! Legend: M rows, N outputs and K inputs of the layer, S blocks of rank r.

use super::adapted::BLOCKS_MAX;
use super::boxes::{ring, tensor_map};
use super::matmul::by_library;
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_arch::{LoraShape, ModelSpec, Site, TowerTensor, tower_adapted};
use plimsoll_base::DType;
use plimsoll_device::{AdaptBackward, Adapter, TowerPasses};
use plimsoll_memory::Buf;

/// A block's columns of the wide and of the narrow operand, and the rows of its steps.
#[derive(Clone, Copy)]
struct Tile {
    wide: usize,
    narrow: usize,
    step: usize,
}

const TILE: Tile = Tile { wide: 128, narrow: 32, step: 32 };
/// Approximate blocks of a launch: several for each multiprocessor of a card.
const BLOCKS: usize = 768;
/// Minimum rows of a block.
const ROWS_MIN: usize = 128;
/// Blocks that add the runs of a tile: 256 threads with four elements each.
const ADDERS: usize = TILE.wide * TILE.narrow / 1024;

const HOPPER_TILE: Tile = Tile { wide: 256, narrow: 64, step: 32 };
/// Blocks beyond which more, with fewer rows each, gain nothing: adding their sums takes longer.
const HOPPER_BLOCKS: usize = 76;
const HOPPER_RUNS_MAX: usize = 8;

impl Tile {
    /// Returns the tiles of a layer with these outputs.
    fn count(self, outputs: impl Iterator<Item = usize>, k: usize, r: usize) -> usize {
        let of = |wide: usize, narrow: usize| wide.div_ceil(self.wide) * narrow.div_ceil(self.narrow);
        let (mut sum, mut sr) = (0, 0);
        for n in outputs {
            sum += of(n, r);
            sr += r;
        }
        sum + of(k, sr)
    }

    /// Returns the rows of each of up to `most` runs.
    fn rows(self, m: usize, most: usize) -> usize {
        m.div_ceil(most).next_multiple_of(self.step)
    }
}

/// Returns the runs of rows, and the rows of each, for `m` rows and `tiles`: they depend on the shapes alone.
fn runs(tiles: usize, m: usize) -> (usize, usize) {
    let rows = TILE.rows(m, (BLOCKS / tiles).clamp(1, m.div_ceil(ROWS_MIN)));
    (m.div_ceil(rows), rows)
}

/// Returns the bytes of scratch for the gradients of a model's adapters.
pub(crate) fn scratch_bytes(spec: &ModelSpec, lora: LoraShape) -> u64 {
    let of = |(layer, site): (u32, Site)| {
        let row = site.target(spec, layer).and_then(|target| target.row(spec, layer));
        // Gradients of experts, and those head by head, need none.
        let Some(row) = row.filter(|row| row.experts.is_none() && !site.is_of_heads()) else { return 0 };
        let outputs =
            site.targets(spec, lora, layer).map(|(target, _)| target.widths(spec, layer).1 as usize);
        if site.targets(spec, lora, layer).next().is_none() {
            return 0;
        }
        TILE.count(outputs, row.cols as usize, lora.rank as usize)
    };
    let all = (0..spec.layers.len()).flat_map(|layer| Site::ALL.map(|site| (layer, site)));
    bytes_of(all.map(of).max().unwrap_or(0))
}

/// Returns the bytes of scratch for the gradients of a tower's adapters; none if it has none.
pub(crate) fn tower_scratch_bytes(of: &TowerPasses) -> Option<u64> {
    let rank = of.rank? as usize;
    let tiles = |layers: &Vec<TowerTensor>| {
        let outputs = layers.iter().map(|layer| layer.rows as usize);
        TILE.count(outputs, layers[0].cols as usize, rank)
    };
    Some(bytes_of(tower_adapted(&of.spec).iter().map(tiles).max().unwrap_or(0)))
}

fn bytes_of(tiles: usize) -> u64 {
    (tiles.max(BLOCKS) * TILE.wide * TILE.narrow) as u64 * DType::F32.bytes()
}

/// Computes the gradients, or adds them when `add`. False if the kernel does not take the shapes. `width`: N.
pub(crate) fn run(dev: &CudaDevice, args: &AdaptBackward<'_>, m: usize, width: usize) -> bool {
    let AdaptBackward { x, u, dy, du, grads, .. } = *args;
    let Adapter { a, .. } = grads;
    let (sr, r) = (a.n, grads.rank());
    let aligned = |buf| dev.address(buf).is_multiple_of(16);
    let takes = |first: usize, n: usize| first.is_multiple_of(8) && n.is_multiple_of(8);
    let whole = grads.blocks().count() <= BLOCKS_MAX
        && by_library(dev, &[x, u, dy, du], &[sr, r, a.k, width])
        && grads.blocks().all(|(_, block)| takes(block.first, block.b.n) && aligned(block.b.buf))
        && aligned(a.buf);
    if !whole || m == 0 {
        return false;
    }
    if dev.info().capability == (9, 0) {
        hopper(dev, args, m, width);
    } else {
        in_two(dev, args, m, width);
    }
    true
}

/// Returns the blocks' first outputs and numbers of outputs, as kernel parameters.
fn outputs(grads: &Adapter<'_>) -> impl Iterator<Item = Arg> {
    let blocks = grads.blocks.into_iter().take(BLOCKS_MAX);
    blocks.flat_map(|block| block.map_or([0, 0], |of| [of.first, of.b.n]).map(count))
}

/// Returns the gradients' addresses: B of three blocks, then A.
fn places(dev: &CudaDevice, grads: &Adapter<'_>) -> [Arg; 4] {
    let [b0, b1, b2, _] = grads.blocks.map(|block| block.map_or(Arg::Ptr(0), |of| dev.arg(of.b.buf)));
    [b0, b1, b2, dev.arg(grads.a.buf)]
}

/// Computes a tile's runs as blocks of one cluster, which add their sums.
fn hopper(dev: &CudaDevice, args: &AdaptBackward<'_>, m: usize, width: usize) {
    let AdaptBackward { x, u, dy, du, grads, add, .. } = *args;
    let (sr, r, k) = (grads.a.n, grads.rank(), grads.a.k);
    let tiles = HOPPER_TILE.count(grads.blocks().map(|(_, of)| of.b.n), k, r);
    let runs = HOPPER_BLOCKS.div_ceil(tiles).next_power_of_two().min(HOPPER_RUNS_MAX);
    let is_float = grads.a.buf.dtype() == DType::F32;
    let kernel = match (is_float, runs) {
        (true, 1) => "adapter_gradients_float_1",
        (true, 2) => "adapter_gradients_float_2",
        (true, 4) => "adapter_gradients_float_4",
        (true, _) => "adapter_gradients_float_8",
        (_, 1) => "adapter_gradients_bf16_1",
        (_, 2) => "adapter_gradients_bf16_2",
        (_, 4) => "adapter_gradients_bf16_4",
        (..) => "adapter_gradients_bf16_8",
    };
    let Tile { wide, narrow, step } = HOPPER_TILE;
    let each = if tiles * runs <= dev.multiprocessors() as usize { 1 } else { 2 };
    let (stages, shared) = ring((wide + narrow) * step * 2, each);
    let map = |b: Buf<'_>, width| Arg::Map(tensor_map(dev, dev.address(b), m, width, step));
    let mut operands = vec![map(dy, width), map(u, sr), map(x, k), map(du, sr)];
    operands.extend(outputs(&grads));
    operands.extend([r, sr, k, m, HOPPER_TILE.rows(m, runs), stages].map(count));
    operands.extend(places(dev, &grads));
    operands.push(Arg::U32(u32::from(add)));
    let grid = [tiles as u32, runs as u32, 1];
    dev.launch("adapter_gradients_hopper", kernel, Launch { grid, block: 288, shared }, &operands);
}

/// Computes the runs of tiles, which a second kernel adds.
fn in_two(dev: &CudaDevice, args: &AdaptBackward<'_>, m: usize, width: usize) {
    let AdaptBackward { x, u, dy, du, grads, add, .. } = *args;
    let (sr, r, k) = (grads.a.n, grads.rank(), grads.a.k);
    let tiles = TILE.count(grads.blocks().map(|(_, of)| of.b.n), k, r);
    let (runs, rows) = runs(tiles, m);
    let parts = Arg::Ptr(dev.scratch((tiles * runs * TILE.wide * TILE.narrow) as u64 * DType::F32.bytes()));
    let [dy, u, x, du] = [dy, u, x, du].map(|buf| dev.arg(buf));
    let mut operands = vec![dy, count(width), u, count(sr), count(r), x, count(k), du];
    operands.extend(outputs(&grads));
    operands.extend([count(m), count(rows), parts]);
    let grid = [tiles as u32, runs as u32, 1];
    dev.launch("adapter_gradients", "adapter_gradients", Launch { grid, block: 128, shared: 0 }, &operands);
    let kernel = super::rows::typed!("adapter_add_runs", grads.a.buf);
    let mut operands = vec![parts, count(runs)];
    operands.extend(grads.blocks.map(|block| count(block.map_or(0, |of| of.b.n))));
    operands.extend([r, sr, k].map(count));
    operands.extend(places(dev, &grads));
    operands.push(Arg::U32(u32::from(add)));
    let grid = [tiles as u32, ADDERS as u32, 1];
    dev.launch("adapter_gradients", kernel, Launch { grid, block: 256, shared: 0 }, &operands);
}
