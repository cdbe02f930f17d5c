//! Matrix orders and buffer sizes on an NVIDIA GPU. Legend: R head rows, V vocabulary.

use plimsoll_device::{Layouts, MatrixLayout};

pub static LAYOUTS: Layouts = Layouts {
    name: "cuda",
    order: |_| MatrixLayout::Rows,
    head_tile: |_, rows_max, vocab, truncates| head_tile_elements(rows_max, vocab, truncates),
    head_gradient_tile: head_dtile_elements,
    pack: |_, _, _, _| 0,
    partial: |sums| sums,
    multiplies_fp8: true,
};

/// Vocabulary columns of a tile of logits. A decode step has few rows, so a tile should be wide: SmolLM2's 49,152
/// columns are three, Qwen2.5's 151,936 ten.
pub const TILE: usize = 16_384;
/// Columns that a block reduces, as in `head.cu`; a constant of the build, because the merge order depends on it.
pub const PART: usize = 4096;
/// f32 words of a part's statistics, as in `head.cu`.
pub const PART_WORDS: usize = 5;
/// Maximum logits of a tile: 512 rows of 16,384 are 32 MiB, most of which stay in the second-level cache.
pub const TILE_LOGITS: usize = 8 << 20;
/// Maximum logits of a truncating sampler, or those of one row: 64 MiB are 341 rows of 49,152.
pub const FULL_LOGITS: usize = 16 << 20;
/// Maximum rows of a grid.
pub const ROWS_MAX: usize = 32_768;
/// Columns of a tile in the backward pass, which takes all rows: each gradient is rounded once per tile.
pub const GRADIENT_TILE: usize = 4096;

/// Returns the f32 elements of the head operations' `tile`, for calls of at most `rows_max` rows.
///
/// `truncates`: some call samples with top-k, top-p or min-p.
pub fn head_tile_elements(rows_max: usize, vocab: usize, truncates: bool) -> u64 {
    let elements = |full: bool| chunk_rows(rows_max, vocab, full) * row_words(vocab, full);
    (if truncates { elements(false).max(elements(true)) } else { elements(false) }) as u64
}

/// Returns the elements (e) of the `dtile` argument of `head_backward`: [R, columns of a tile].
pub fn head_dtile_elements(rows_max: usize, vocab: usize) -> u64 {
    (rows_max * vocab.min(GRADIENT_TILE)) as u64
}

/// Returns the columns of logits that are held of a row.
pub fn width(vocab: usize, full: bool) -> usize {
    if full { vocab } else { vocab.min(TILE) }
}

/// Returns the words of a row: logits and statistics.
pub fn row_words(vocab: usize, full: bool) -> usize {
    width(vocab, full) + vocab.div_ceil(PART) * PART_WORDS
}

/// Returns the rows that are taken at once.
pub fn chunk_rows(rows: usize, vocab: usize, full: bool) -> usize {
    let logits = if full { FULL_LOGITS } else { TILE_LOGITS };
    rows.min((logits / width(vocab, full)).clamp(1, ROWS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_stay_bounded_and_hold_every_smaller_call() {
        for vocab in [15, 128, 4096, 10_000, 49_152, 151_936] {
            for truncates in [false, true] {
                let most = head_tile_elements(100_000, vocab, truncates);
                // Logits, and a five-hundredth of them in statistics where rows are long.
                assert!(most * 4 <= (72 << 20), "{most} elements for V = {vocab}");
                let mut before = 0;
                for rows in [1, 2, 64, 500, 512, 513, 1024, 4096, 16_384] {
                    let now = head_tile_elements(rows, vocab, truncates);
                    assert!(before <= now && now <= most, "{rows} rows of V = {vocab}");
                    before = now;
                }
            }
        }
    }

    #[test]
    fn a_decode_step_is_one_chunk() {
        for vocab in [49_152, 151_936] {
            assert_eq!(chunk_rows(256, vocab, false), 256);
            assert!(head_tile_elements(256, vocab, false) * 4 < 17 << 20);
        }
    }
}
