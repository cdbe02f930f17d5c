//! The sampler: draws one token for each row from one counter-based uniform number.
//!
//! Untruncated sampling picks a vocabulary tile by its mass, then a token of the tile, whose logits are recomputed.
//! Truncation needs all logits of a row, so it takes eight rows at a time. The recorded log-probability, log-sum-exp
//! and entropy are always those of the untruncated policy at temperature, from the head's functions.

use super::head::{self, Outputs, RowStats, Work};
use super::lanes::{LANES, by_dtype, exp_in_place, simd_fn};
use super::matmul::{self, Operand, Panels};
use super::row_masks::Finish;
use super::{CpuDevice, Isa, noise};
use crate::layouts::FULL_ROWS;
use plimsoll_base::rng::{self, Stream};
use plimsoll_device::{HEAD_TILE, KEY_WORDS, PANEL, Sample, Sampling};
use plimsoll_memory::Buf;

/// Draws a token for each row. `keys`: [R, KEY_WORDS] u32.
///
/// A row whose logits are not finite gets the token `u32::MAX` and the log-probability NaN.
pub(crate) fn sample(dev: &CpuDevice, args: Sample<'_>) {
    let Sample { x, w, keys, how, tile, tokens, out, .. } = args;
    let logits = args.tempered();
    let rows = tokens.len();
    assert_eq!((x.len(), keys.len()), (rows * w.k, rows * KEY_WORDS), "{rows} rows of K = {}", w.k);
    by_dtype!(x, E => {
        let (x, w) = (dev.read::<E>(x), Panels::<E>::new(dev, w));
        let noise = *dev.noise.lock().expect("no thread panics with it");
        let noisy = noise.map(|noise| noise::noisy(x, w.k(), dev.read(keys), noise));
        let x = noisy.as_deref().unwrap_or(x);
        let draws = Draws {
            keys: dev.read(keys),
            how,
            logits: Finish::new(dev, logits, rows, w.n()),
            tokens: dev.write(tokens),
            out: Outputs::new(dev, out, rows),
        };
        if how.truncates() {
            truncated::<E>(dev, x, &w, tile, &draws);
        } else {
            untruncated::<E>(dev, x, &w, tile, &draws);
        }
    });
}

/// Inputs and outputs of draws.
struct Draws<'a> {
    keys: &'a [u32],
    how: Sampling,
    /// How logits are finished.
    logits: Finish<'a>,
    tokens: super::Shared<'a, u32>,
    out: Outputs<'a>,
}

impl Draws<'_> {
    /// Returns the row's uniform number in (0, 1), of 53 bits.
    fn uniform(&self, row: usize) -> f64 {
        let key = &self.keys[row * KEY_WORDS..][..KEY_WORDS];
        let both = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let r = rng::philox(both(key[3], key[4]), Stream::Sampler, both(key[0], key[1]), u64::from(key[2]));
        let bits = (u64::from(r[1]) << 32 | u64::from(r[0])) >> 12;
        (bits as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Writes a row; each row is written by one task.
    fn set(&self, row: usize, token: usize, stats: &RowStats, logit: f32) {
        // SAFETY: a row is drawn by one task, which alone writes its outputs.
        unsafe { self.tokens.range(row, 1)[0] = token as u32 };
        self.out.set(row, stats, logit);
    }

    /// Writes a row whose logits are not finite.
    fn set_not_finite(&self, row: usize) {
        // SAFETY: a row is drawn by one task, which alone writes its outputs.
        unsafe { self.tokens.range(row, 1)[0] = u32::MAX };
        self.out.set(row, &RowStats::NOT_FINITE, f32::NAN);
    }
}

fn untruncated<E: Operand>(dev: &CpuDevice, x: &[E], w: &Panels<'_, E>, tile: Buf<'_>, draws: &Draws<'_>) {
    let (k, num_rows) = (w.k(), draws.tokens.len());
    let work = Work::new(dev, tile, num_rows, w.n());
    for first in (0..num_rows).step_by(work.shape.wave_rows.max(1)) {
        let rows = work.shape.wave_rows.min(num_rows - first);
        let x = &x[first * k..][..rows * k];
        head::wave_stats(dev, x, w, (&draws.logits, first), &work, None);
        // One task for each tile of logits.
        let tasks = work.shape.slots.min(rows);
        dev.pool().run(tasks, &|task, thread| {
            for row in (task..rows).step_by(tasks) {
                // SAFETY: this task alone uses the row and its slot now.
                let (stats, logits) = unsafe { (work.row(row), work.logits(task, tasks, thread)) };
                let x = &x[row * k..][..k];
                draw_untruncated(dev.isa(), x, w, stats, &mut logits[..work.shape.width], draws, first + row);
            }
        });
    }
}

fn draw_untruncated<E: Operand>(
    isa: Isa,
    x: &[E],
    w: &Panels<'_, E>,
    stats: &[f32],
    logits: &mut [f32],
    draws: &Draws<'_>,
    row: usize,
) {
    let tiles = w.n().div_ceil(HEAD_TILE);
    let merged = head::merge(isa, stats, tiles);
    if !merged.is_finite() {
        return draws.set_not_finite(row);
    }
    let how = (&draws.logits, row);
    let width = logits.len();
    let compute = |tile: usize, logits: &mut [f32]| head::tile_logits(isa, x, w, tile, how, logits, width);
    if draws.how.temperature == 0.0 {
        let tile = stats[..tiles].iter().position(|&m| m == merged.max).expect("the maximum is some tile's");
        compute(tile, logits);
        let at =
            logits.iter().position(|&x| x == merged.max).expect("logits computed again have the same bits");
        return draws.set(row, tile * HEAD_TILE + at, &merged, merged.max);
    }
    let uniform = draws.uniform(row);
    let (tile, rest) = pick_tile(isa, stats, tiles, merged.max, uniform);
    let cols = compute(tile, logits);
    let mut masses = [0.0; HEAD_TILE];
    let masses = &mut masses[..cols];
    masses.copy_from_slice(&logits[..cols]);
    exp_shifted(isa, masses, merged.max);
    let at = pick(masses, rest);
    draws.set(row, tile * HEAD_TILE + at, &merged, logits[at]);
}

/// Returns the tile in which `uniform` falls, and how far: a mass in units of exp(x - max).
fn pick_tile(isa: Isa, stats: &[f32], tiles: usize, max: f32, uniform: f64) -> (usize, f64) {
    let visit = |f: &mut dyn FnMut(usize, f64) -> bool| {
        for first in (0..tiles).step_by(LANES) {
            let here = LANES.min(tiles - first);
            let mut weights = [0.0; LANES];
            head::tile_weights(isa, &stats[first..first + here], max, &mut weights);
            for i in 0..here {
                if f(first + i, f64::from(weights[i]) * f64::from(stats[tiles + first + i])) {
                    return;
                }
            }
        }
    };
    let mut total = 0.0;
    visit(&mut |_, mass| {
        total += mass;
        false
    });
    let (wanted, mut before, mut chosen) = (uniform * total, 0.0, (0, 0.0));
    visit(&mut |tile, mass| {
        // Rounding may put `wanted` at the very end: then it is the last tile that has a mass.
        if mass > 0.0 {
            chosen = (tile, wanted - before);
        }
        before += mass;
        before > wanted
    });
    chosen
}

/// Returns the first element at which the running sum exceeds `wanted`, else the last of positive mass.
fn pick(masses: &[f32], wanted: f64) -> usize {
    let (mut sum, mut last) = (0.0, 0);
    for (i, &mass) in masses.iter().enumerate() {
        if mass > 0.0 {
            last = i;
        }
        sum += f64::from(mass);
        if sum > wanted {
            return i;
        }
    }
    last
}

fn truncated<E: Operand>(dev: &CpuDevice, x: &[E], w: &Panels<'_, E>, tile: Buf<'_>, draws: &Draws<'_>) {
    let (k, num_rows, how) = (w.k(), draws.tokens.len(), &draws.logits);
    let stride = w.n().next_multiple_of(PANEL);
    let work = Work::full(dev, tile, num_rows, w.n());
    let tiles = work.shape.tiles;
    for first in (0..num_rows).step_by(FULL_ROWS) {
        let rows = FULL_ROWS.min(num_rows - first);
        let x = &x[first * k..][..rows * k];
        dev.pool().run(tiles, &|tile, _| {
            let start = tile * HEAD_TILE;
            let cols = HEAD_TILE.min(w.n() - start);
            // SAFETY: a task has its own columns of the logits, and its own statistics.
            unsafe {
                matmul::rows_product(dev.isa(), x, &w.rows(start, cols), work.tile, start, stride);
                for row in 0..rows {
                    let logits = work.tile.range(row * stride + start, cols.next_multiple_of(PANEL));
                    head::finish_and_pad(dev.isa(), logits, start, cols, how.how);
                    how.apply(first + row, start, &mut logits[..cols]);
                    work.set_stats(row, tile, head::tile_stats(dev.isa(), logits));
                }
            }
        });
        dev.pool().run(rows, &|row, _| {
            // SAFETY: one task a row: no other uses the row's logits.
            let (stats, logits) = unsafe { (work.row(row), work.tile.range(row * stride, stride)) };
            draw_truncated(dev.isa(), &x[row * k..][..k], w, stats, logits, draws, first + row);
        });
    }
}

fn draw_truncated<E: Operand>(
    isa: Isa,
    x: &[E],
    w: &Panels<'_, E>,
    stats: &[f32],
    logits: &mut [f32],
    draws: &Draws<'_>,
    row: usize,
) {
    let merged = head::merge(isa, stats, w.n().div_ceil(HEAD_TILE));
    if !merged.is_finite() {
        return draws.set_not_finite(row);
    }
    let token = draw_kept(isa, &mut logits[..w.n()], stats, merged.max, &draws.how, draws.uniform(row));
    // The masses have overwritten the logits: compute the token's logit again.
    let width = logits.len().min(HEAD_TILE);
    head::tile_logits(isa, x, w, token / HEAD_TILE, (&draws.logits, row), &mut logits[..width], width);
    draws.set(row, token, &merged, logits[token % HEAD_TILE]);
}

/// Draws from what top-k, top-p and min-p keep of a row's logits, in that order; the logits become masses.
fn draw_kept(isa: Isa, x: &mut [f32], stats: &[f32], max: f32, how: &Sampling, uniform: f64) -> usize {
    if how.top_k > 0 && (how.top_k as usize) < x.len() {
        let smallest = kth_largest(isa, x, &stats[..x.len().div_ceil(HEAD_TILE)], how.top_k as usize);
        replace_below(isa, x, smallest, f32::NEG_INFINITY);
    }
    exp_shifted(isa, x, max);
    let (mut ids, mut masses) = ([0; SHORT], [0.0; SHORT]);
    let Some(count) = gather(x, f32::MIN_POSITIVE, &mut ids, &mut masses) else {
        return pick_kept(isa, x, how, uniform);
    };
    ids[pick_kept(isa, &mut masses[..count], how, uniform)] as usize
}

/// Applies top-p and min-p to masses, the largest of which is exp(0) = 1, and draws.
fn pick_kept(isa: Isa, masses: &mut [f32], how: &Sampling, uniform: f64) -> usize {
    if how.top_p < 1.0 {
        keep_mass(isa, masses, how.top_p);
    }
    replace_below(isa, masses, how.min_p, 0.0);
    let total: f64 = masses.iter().map(|&m| f64::from(m)).sum();
    pick(masses, uniform * total)
}

/// Maximum elements of a list.
const SHORT: usize = 1024;

/// Lists the elements of at least `smallest` in order; returns their number, or `None` if more than `SHORT`.
fn gather(x: &[f32], smallest: f32, ids: &mut [u32; SHORT], values: &mut [f32; SHORT]) -> Option<usize> {
    let mut count = 0;
    for (start, part) in x.chunks(LANES).enumerate() {
        // Most parts hold nothing.
        if part.iter().fold(false, |any, &x| any | (x >= smallest)) {
            for (i, &x) in part.iter().enumerate().filter(|(_, x)| **x >= smallest) {
                (*ids.get_mut(count)?, values[count]) = ((start * LANES + i) as u32, x);
                count += 1;
            }
        }
    }
    Some(count)
}

simd_fn! {
    /// Replaces the elements below `smallest`.
    fn replace_below[](_s: S, x: &mut [f32], smallest: f32, by: f32) {
        for x in x {
            *x = if *x < smallest { by } else { *x };
        }
    }
}

/// Returns the `k`th largest value, k at most the length; `maxima`: of each vocabulary tile.
fn kth_largest(isa: Isa, x: &[f32], maxima: &[f32], k: usize) -> f32 {
    // The k-th largest maximum is a lower bound: usually little lies above it.
    let bound = if k <= maxima.len() { kth_by_bits(isa, maxima, k) } else { f32::NEG_INFINITY };
    let (mut ids, mut values) = ([0; SHORT], [0.0; SHORT]);
    match gather(x, bound, &mut ids, &mut values) {
        Some(count) => kth_by_bits(isa, &values[..count], k),
        None => kth_by_bits(isa, x, k),
    }
}

/// Returns the `k`th largest value, found bit by bit, so that nothing is moved.
fn kth_by_bits(isa: Isa, x: &[f32], k: usize) -> f32 {
    let mut key = 0u32;
    for bit in (0..32).rev() {
        let candidate = key | 1 << bit;
        if count_at_least(isa, x, candidate) >= k {
            key = candidate;
        }
    }
    f32::from_bits(if key >> 31 == 1 { key & 0x7fff_ffff } else { !key })
}

simd_fn! {
    /// Counts elements whose key is at least `key`; keys are ordered as their values.
    fn count_at_least[](_s: S, x: &[f32], key: u32) -> usize {
        let mut count = 0u32;
        for x in x {
            let bits = x.to_bits();
            let mine = bits ^ ((bits as i32 >> 31) as u32 | 0x8000_0000);
            count += u32::from(mine >= key);
        }
        count as usize
    }
}

/// Zeroes all but the smallest set of masses that reaches `share` of the whole; of equal masses the first stay.
fn keep_mass(isa: Isa, masses: &mut [f32], share: f32) {
    let wanted = f64::from(share.max(f32::MIN_POSITIVE)) * mass_at_least(isa, masses, 0.0);
    let mut bits = 0u32; // Positive floats are ordered as their bits.
    for bit in (0..31).rev() {
        let candidate = f32::from_bits(bits | 1 << bit);
        if candidate.is_finite() && mass_at_least(isa, masses, candidate) >= wanted {
            bits |= 1 << bit;
        }
    }
    let smallest = f32::from_bits(bits);
    let above = mass_at_least(isa, masses, f32::from_bits(bits + 1));
    let mut ties = ((wanted - above) / f64::from(smallest)).ceil().max(1.0);
    for mass in masses {
        if *mass == smallest && ties > 0.0 {
            ties -= 1.0;
        } else if *mass <= smallest {
            *mass = 0.0;
        }
    }
}

simd_fn! {
    /// Returns the sum of the elements of at least `smallest`, in eight f64.
    fn mass_at_least[](_s: S, masses: &[f32], smallest: f32) -> f64 {
        let mut sums = [0.0f64; 8];
        let (full, rest) = masses.as_chunks::<8>();
        for part in full {
            for i in 0..8 {
                sums[i] += f64::from(if part[i] >= smallest { part[i] } else { 0.0 });
            }
        }
        for (i, &mass) in rest.iter().enumerate() {
            sums[i] += f64::from(if mass >= smallest { mass } else { 0.0 });
        }
        sums.iter().sum()
    }
}

/// Writes x = exp(x - max), each element.
fn exp_shifted(isa: Isa, x: &mut [f32], max: f32) {
    x.iter_mut().for_each(|x| *x -= max);
    exp_in_place(isa, x);
}
