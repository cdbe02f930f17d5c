//! Several tokens of a head row: the most likely ones, and log-probabilities of given ones.
//!
//! Legend as in `head.rs`, and K tokens a row. A logit is computed by the same products as a tile's, so it has the
//! same bits whether its token was found or given.

use super::head::{Side, each_row, finish_and_pad};
use super::lanes::by_dtype;
use super::matmul::{self, Operand, Panels};
use super::row_masks::Finish;
use super::{CpuDevice, Shared};
use crate::layouts::BLOCK_ROWS;
use plimsoll_device::{HEAD_TILE, HeadSide, ListedTokens, Logits, Matrix, PANEL};
use plimsoll_memory::Buf;

/// Computes the K most likely tokens of each row, most likely first.
pub(crate) fn top(dev: &CpuDevice, of: HeadSide<'_>, out: ListedTokens<'_>) {
    let (rows, vocab) = (of.lse.len(), of.w.n);
    by_dtype!(of.x, E => top_as(dev, &Side::<E>::new(dev, of, rows, vocab), vocab, out));
}

fn top_as<E: Operand>(dev: &CpuDevice, of: &Side<'_, E>, vocab: usize, out: ListedTokens<'_>) {
    let (rows, shape) = (of.lse.len(), of.work.shape);
    let k = out.per_row(rows);
    assert!(k <= vocab, "{k} tokens of {vocab}");
    let (ids, logprobs) = (dev.write::<u32>(out.ids), dev.write::<f32>(out.logprobs));
    let num_tasks = rows.div_ceil(BLOCK_ROWS);
    dev.pool().run(num_tasks, &|task, thread| {
        let first = task * BLOCK_ROWS;
        let here = BLOCK_ROWS.min(rows - first);
        // SAFETY: ranges of rows are disjoint, and each is one task's.
        let (ids, best) = unsafe { (ids.range(first * k, here * k), logprobs.range(first * k, here * k)) };
        for tile in 0..shape.tiles {
            // SAFETY: a slot is this task's by its number or by its thread's.
            let logits = unsafe { of.logits(dev.isa(), (first, here), tile, (task, num_tasks, thread)) };
            let cols = HEAD_TILE.min(vocab - tile * HEAD_TILE);
            for r in 0..here {
                let logits = &logits[r * shape.width..][..cols];
                insert(logits, tile * HEAD_TILE, &mut ids[r * k..][..k], &mut best[r * k..][..k]);
            }
        }
        for (best, &lse) in best.chunks_exact_mut(k.max(1)).zip(&of.lse[first..]) {
            best.iter_mut().for_each(|x| *x = logprob(*x, lse));
        }
    });
}

/// Inserts the logits of tokens from `first` on into a row's list of the largest, which is in order and, before token
/// K, shorter than K. NaN counts as minus infinity.
fn insert(logits: &[f32], first: usize, ids: &mut [u32], best: &mut [f32]) {
    let k = best.len();
    for (id, &x) in (first..).zip(logits) {
        let x = if x.is_nan() { f32::NEG_INFINITY } else { x };
        let held = id.min(k);
        if held == k && best.last().is_none_or(|&least| x <= least) {
            continue;
        }
        // After its equals, whose ids are lower.
        let end = held.min(k - 1);
        let at = best[..end].partition_point(|&other| other >= x);
        best.copy_within(at..end, at + 1);
        ids.copy_within(at..end, at + 1);
        (best[at], ids[at]) = (x, id as u32);
    }
}

/// Computes the log-probabilities of the tokens `ids`, [R, K].
pub(crate) fn listed(
    dev: &CpuDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    lse: Buf<'_>,
    how: Logits<'_>,
    ids: Buf<'_>,
    logprobs: Buf<'_>,
) {
    let (rows, k) = (lse.len(), ListedTokens { ids, logprobs }.per_row(lse.len()));
    assert_eq!(x.len(), rows * w.k, "{rows} rows of K = {}", w.k);
    let how = Finish::new(dev, how, rows, w.n);
    let (lse, ids, out) = (dev.read::<f32>(lse), dev.read::<u32>(ids), dev.write::<f32>(logprobs));
    by_dtype!(x, E => {
        let (x, w) = (dev.read::<E>(x), Panels::<E>::new(dev, w));
        each_row(dev, rows, |row| {
            let x = &x[row * w.k()..][..w.k()];
            // SAFETY: one task a row, which alone writes its outputs.
            let out = unsafe { out.range(row * k, k) };
            for (to, &id) in out.iter_mut().zip(&ids[row * k..]) {
                *to = logprob(logit(dev, x, &w, id as usize, (&how, row)), lse[row]);
            }
        });
    });
}

/// Returns one finished logit, by the product of its panel.
fn logit<E: Operand>(
    dev: &CpuDevice,
    x: &[E],
    w: &Panels<'_, E>,
    id: usize,
    (how, row): (&Finish<'_>, usize),
) -> f32 {
    assert!(id < w.n(), "token {id} of a vocabulary of {}", w.n());
    let first = id / PANEL * PANEL;
    let cols = PANEL.min(w.n() - first);
    let mut logits = [0.0; PANEL];
    // SAFETY: `logits` is borrowed mutably, so no other task writes it.
    unsafe {
        matmul::rows_product(dev.isa(), x, &w.rows(first, cols), Shared::of(&mut logits), 0, PANEL);
    }
    finish_and_pad(dev.isa(), &mut logits, first, cols, how.how);
    how.apply(row, first, &mut logits[..cols]);
    logits[id - first]
}

fn logprob(logit: f32, lse: f32) -> f32 {
    (f64::from(logit) - f64::from(lse)) as f32
}
