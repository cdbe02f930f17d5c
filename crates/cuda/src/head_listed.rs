//! Launchers of `head_listed.cu`: the most likely tokens of a head row, and log-probabilities of given ones. Gradients
//! of listed tokens are put in their place in `head.rs`. Legend: R rows, V vocabulary, h hidden, K tokens a row, e the
//! storage of activations.

use super::head::{Chunk, finish, matrix_rows, row_args, tiles};
use super::{CudaDevice, Launch, matmul};
use crate::layouts::{ROWS_MAX, TILE, chunk_rows};
use plimsoll_arch::TokenRun;
use plimsoll_base::DType;
use plimsoll_device::{HeadSide, ListedTokens, Logits, Matrix, MatrixLayout};
use plimsoll_memory::Buf;

/// Threads of a block that keeps a row's list.
const LIST_THREADS: u32 = 256;
/// Tokens of a block, a warp each.
const LISTED_WARPS: usize = 8;

/// Computes the K most likely tokens of each row, most likely first.
pub(crate) fn top(dev: &CudaDevice, of: HeadSide<'_>, out: ListedTokens<'_>) {
    let HeadSide { x, w, lse, logits: how, tile } = of;
    let (rows, k) = (lse.len(), out.per_row(lse.len()));
    assert_eq!(w.layout, MatrixLayout::Rows);
    assert_eq!(x.len(), rows * w.k, "{rows} rows of K = {}", w.k);
    assert!(k <= w.n, "{k} tokens of {}", w.n);
    if k == 0 {
        return;
    }
    let most = chunk_rows(rows, w.n, false);
    for first in (0..rows).step_by(most.max(1)) {
        let chunk = Chunk { first, rows: most.min(rows - first) };
        for (column, cols) in tiles(w.n, TILE) {
            let logits = tile.slice(0, chunk.rows * cols);
            matmul::forward(dev, chunk.of(x, w.k), matrix_rows(w, column, cols), None, logits, false);
            finish(dev, logits, (column, cols), chunk.logits(how, rows), w.n);
            let is_last = u32::from(column + cols == w.n);
            let (lse, ids, logprobs) = (chunk.of(lse, 1), chunk.of(out.ids, k), chunk.of(out.logprobs, k));
            let args = args![dev, logits, cols, column, how.factor, k, is_last, lse, ids, logprobs];
            let launch = Launch { grid: [chunk.rows as u32, 1, 1], block: LIST_THREADS, shared: 0 };
            dev.launch("head_listed", "top_of_tile", launch, &args);
        }
    }
}

/// Computes the log-probabilities of the tokens `ids`, [R, K]. Ids beyond the vocabulary give NaN.
pub(crate) fn listed(
    dev: &CudaDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    lse: Buf<'_>,
    how: Logits<'_>,
    ids: Buf<'_>,
    logprobs: Buf<'_>,
) {
    let (rows, k) = (lse.len(), ListedTokens { ids, logprobs }.per_row(lse.len()));
    assert_eq!(w.layout, MatrixLayout::Rows);
    assert_eq!((x.len(), x.dtype()), (rows * w.k, w.buf.dtype()), "{rows} rows of K = {}", w.k);
    let kernel = if x.dtype() == DType::F32 { "logprobs_of_f32" } else { "logprobs_of_bf16" };
    if k == 0 {
        return;
    }
    for first in (0..rows).step_by(ROWS_MAX) {
        let chunk = Chunk { first, rows: ROWS_MAX.min(rows - first) };
        let (x, lse) = (chunk.of(x, w.k), chunk.of(lse, 1));
        let (ids, logprobs, cap) = (chunk.of(ids, k), chunk.of(logprobs, k), how.cap.unwrap_or(0.0));
        let TokenRun { first: suppressed, count } = how.suppressed;
        let mut args =
            args![dev, x, w.buf, w.k, w.n, how.factor, cap, suppressed, count, k, lse, ids, logprobs]
                .to_vec();
        args.extend(row_args(dev, chunk.logits(how, rows), chunk.rows, w.n));
        let grid = [k.div_ceil(LISTED_WARPS) as u32, chunk.rows as u32, 1];
        let launch = Launch { grid, block: LISTED_WARPS as u32 * 32, shared: 0 };
        dev.launch("head_listed", kernel, launch, &args);
    }
}
