//! The CPU's matrix orders and buffer sizes. Legend: M rows, N outputs, K inputs, R head rows, V vocabulary, T
//! vocabulary tiles of `HEAD_TILE` columns.

use plimsoll_base::DType;
use plimsoll_device::{HEAD_TILE, Layouts, MatrixLayout, PANEL};

pub static LAYOUTS: Layouts = Layouts {
    name: "cpu",
    order: |weights| if weights == DType::Bf16 { MatrixLayout::Pairs } else { MatrixLayout::Single },
    head_tile: head_tile_elements,
    head_gradient_tile: |rows, vocab| (rows * HEAD_TILE.min(vocab)) as u64,
    pack: pack_elements,
    partial: |_| DType::F32,
    multiplies_fp8: false,
};

/// Rows of a task: their part of A stays in the second-level cache while panels stream by.
pub const BLOCK_ROWS: usize = 64;
/// Rows whose full logits a truncating sampler holds.
pub const FULL_ROWS: usize = 8;
/// Minimum blocks of rows of a wave: a vocabulary tile is read from memory once for all of them.
const WAVE_BLOCKS: usize = 4;
/// Minimum tasks per thread in a wave.
const TASKS_PER_THREAD: usize = 4;

/// Returns the elements of `pack` for a weight gradient `[n, k]` over `m` rows: both operands, interleaved in panels.
pub fn pack_elements(m: u64, n: u64, k: u64, weights: DType) -> u64 {
    let steps = if weights == DType::Bf16 { m.next_multiple_of(2) } else { m };
    (n.next_multiple_of(PANEL as u64) + k.next_multiple_of(PANEL as u64)) * steps
}

/// Returns the f32 elements of the head operations' `tile`, for calls of at most `rows_max` rows.
///
/// `truncates`: some call samples with top-k, top-p or min-p.
pub fn head_tile_elements(threads: usize, rows_max: usize, vocab: usize, truncates: bool) -> u64 {
    let tiled = HeadShape::new(threads, rows_max, vocab).elements();
    let full = FULL_ROWS.min(rows_max) * (vocab.next_multiple_of(PANEL) + stats_per_row(vocab));
    (if truncates { tiled.max(full) } else { tiled }) as u64
}

/// The cut of head rows into blocks and waves, and the buffers it needs.
#[derive(Clone, Copy, Debug)]
pub struct HeadShape {
    pub tiles: usize,
    /// Columns of a tile, padded.
    pub width: usize,
    pub block_rows: usize,
    /// Rows whose statistics are held at once.
    pub wave_rows: usize,
    pub slots: usize,
}

/// Returns the statistics of a row: three for each tile, and the target's logit.
pub fn stats_per_row(vocab: usize) -> usize {
    3 * vocab.div_ceil(HEAD_TILE) + 1
}

impl HeadShape {
    pub fn new(threads: usize, rows: usize, vocab: usize) -> HeadShape {
        let tiles = vocab.div_ceil(HEAD_TILE);
        let width = vocab.next_multiple_of(PANEL).min(HEAD_TILE);
        let block_rows = BLOCK_ROWS.min(rows);
        let blocks = (TASKS_PER_THREAD * threads).div_ceil(tiles).max(WAVE_BLOCKS);
        let wave_rows = (blocks * BLOCK_ROWS).min(rows);
        let tasks = tiles * wave_rows.div_ceil(BLOCK_ROWS);
        HeadShape { tiles, width, block_rows, wave_rows, slots: threads.min(tasks) }
    }

    pub fn slot_len(&self) -> usize {
        self.block_rows * self.width
    }

    pub fn elements(&self) -> usize {
        self.slots * self.slot_len() + self.wave_rows * (3 * self.tiles + 1)
    }
}
