//! The head: log-probabilities, entropies and their gradients through tiles of the vocabulary.
//!
//! Legend: R rows, V vocabulary, T vocabulary tiles of `HEAD_TILE` columns, K hidden, e the storage of activations.
//! No buffer holds [R, V]. A tile gives each row (max, sum of exp(x - max), sum of (x - max) exp(x - max)) over 16
//! lanes and a fixed tree; tiles are merged in ascending order. The sampler uses the same functions.

use super::activation::{capped, capped_slope};
use super::elementwise;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::listed_gradient::{ListedRows, RowInputs};
use super::matmul::{self, Operand, Packed, Panels};
use super::row_masks::Finish;
use super::whole_gradient::WholeRow;
use super::{CpuDevice, Isa, Shared};
use crate::layouts::{BLOCK_ROWS, FULL_ROWS, HeadShape, stats_per_row};
use plimsoll_base::math;
use plimsoll_device::{HEAD_TILE, HeadBackward, HeadOut, HeadSide, Logits, Matrix, Measure, NO_MASS, PANEL};
use plimsoll_memory::Buf;

/// Below this e^x counts as 0: the smallest normal f32 is e^-87.3.
const EXP_MIN: f32 = -87.3;
/// The `tile` argument in parts: a tile of logits for each slot, then the statistics of a wave.
pub(super) struct Work<'a> {
    pub(super) shape: HeadShape,
    pub(super) tile: Shared<'a, f32>,
    stats_start: usize,
}

impl<'a> Work<'a> {
    pub(super) fn new(dev: &'a CpuDevice, tile: Buf<'a>, rows: usize, vocab: usize) -> Work<'a> {
        let shape = HeadShape::new(dev.pool().threads(), rows, vocab);
        assert!(tile.len() >= shape.elements(), "a head tile of {}, needed {}", tile.len(), shape.elements());
        Work { shape, tile: dev.write::<f32>(tile), stats_start: shape.slots * shape.slot_len() }
    }

    /// Returns a `Work` with room for all logits of `FULL_ROWS` rows instead of tiles: rows of V, padded.
    pub(super) fn full(dev: &'a CpuDevice, tile: Buf<'a>, rows: usize, vocab: usize) -> Work<'a> {
        let rows = rows.min(FULL_ROWS);
        let stats_start = rows * vocab.next_multiple_of(PANEL);
        let needed = stats_start + rows * stats_per_row(vocab);
        assert!(tile.len() >= needed, "a head tile of {}, needed {needed}", tile.len());
        Work {
            shape: HeadShape::new(dev.pool().threads(), rows, vocab),
            tile: dev.write::<f32>(tile),
            stats_start,
        }
    }

    /// Returns the logits of the current task.
    ///
    /// # Safety
    /// One task uses a slot at a time: by its own number where there are enough, else by its thread's.
    #[allow(clippy::mut_from_ref)] // The caller's promise.
    pub(super) unsafe fn logits(&self, task: usize, num_tasks: usize, thread: usize) -> &mut [f32] {
        let slot = if num_tasks <= self.shape.slots { task } else { thread };
        // SAFETY: the caller promises that this task alone uses the slot.
        unsafe { self.tile.range(slot * self.shape.slot_len(), self.shape.slot_len()) }
    }

    /// Returns statistics of a row of the wave: maxima [T], sums [T], weighted sums [T], the target's logit.
    ///
    /// # Safety
    /// No task writes this row's statistics while the slice lives.
    pub(super) unsafe fn row(&self, row: usize) -> &[f32] {
        let len = 3 * self.shape.tiles + 1;
        // SAFETY: the caller promises that no task writes this row's statistics meanwhile.
        unsafe { self.tile.seen(self.stats_start + row * len, len) }
    }

    /// Writes a row's statistics of one tile.
    ///
    /// # Safety
    /// No other task uses these statistics.
    pub(super) unsafe fn set_stats(&self, row: usize, tile: usize, stats: [f32; 3]) {
        let start = self.stats_start + row * (3 * self.shape.tiles + 1) + tile;
        for (i, x) in stats.into_iter().enumerate() {
            // SAFETY: the caller promises that no other task uses these statistics.
            unsafe { self.tile.range(start + i * self.shape.tiles, 1)[0] = x };
        }
    }

    /// Writes the logit of a row's target.
    ///
    /// # Safety
    /// No other task uses it.
    unsafe fn set_target(&self, row: usize, logit: f32) {
        let at = self.stats_start + row * (3 * self.shape.tiles + 1) + 3 * self.shape.tiles;
        // SAFETY: the caller promises that no other task uses the target's logit.
        unsafe { self.tile.range(at, 1)[0] = logit };
    }
}

/// A row's statistics, merged over its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowStats {
    pub(super) max: f32,
    /// Sum of exp(x - max); NaN if any logit is.
    pub(super) sum: f32,
    /// Sum of (x - max) exp(x - max).
    weighted: f32,
}

impl RowStats {
    /// Statistics of a row with a NaN or an infinity.
    pub(super) const NOT_FINITE: RowStats = RowStats { max: f32::NAN, sum: f32::NAN, weighted: f32::NAN };

    /// False if some logit is NaN or plus infinity.
    pub(super) fn is_finite(&self) -> bool {
        self.sum.is_finite()
    }

    pub(super) fn lse(&self) -> f32 {
        (f64::from(self.max) + math::ln(f64::from(self.sum))) as f32
    }

    pub(super) fn entropy(&self) -> f32 {
        (math::ln(f64::from(self.sum)) - f64::from(self.weighted) / f64::from(self.sum)) as f32
    }

    /// Returns the log-probability of a token of logit `x`.
    pub(super) fn logprob(&self, x: f32) -> f32 {
        ((f64::from(x) - f64::from(self.max)) - math::ln(f64::from(self.sum))) as f32
    }
}

/// Computes the log-probability of `targets`, log-sum-exp and entropy. `x`: [R, K] e.
pub(crate) fn forward(
    dev: &CpuDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    targets: Buf<'_>,
    logits: Logits<'_>,
    tile: Buf<'_>,
    out: HeadOut<'_>,
) {
    let targets = dev.read::<u32>(targets);
    let (work, out) = (Work::new(dev, tile, targets.len(), w.n), Outputs::new(dev, out, targets.len()));
    assert_eq!(x.len(), targets.len() * w.k, "{} rows of K = {}", targets.len(), w.k);
    let how = Finish::new(dev, logits, targets.len(), w.n);
    by_dtype!(x, E => {
        let (x, w) = (dev.read::<E>(x), Panels::<E>::new(dev, w));
        for first in (0..targets.len()).step_by(work.shape.wave_rows.max(1)) {
            let rows = work.shape.wave_rows.min(targets.len() - first);
            let wave = &targets[first..first + rows];
            wave_stats(dev, &x[first * w.k()..][..rows * w.k()], &w, (&how, first), &work, Some(wave));
            each_row(dev, rows, |row| {
                // SAFETY: one task a row: no other uses this row's statistics.
                let stats = unsafe { work.row(row) };
                out.set(first + row, &merge(dev.isa(), stats, work.shape.tiles), stats[3 * work.shape.tiles]);
            });
        }
    });
}

/// Fills the statistics of a wave of rows from `first` on, and the logits of `targets` if given.
pub(super) fn wave_stats<E: Operand>(
    dev: &CpuDevice,
    x: &[E],
    w: &Panels<'_, E>,
    (how, first): (&Finish<'_>, usize),
    work: &Work<'_>,
    targets: Option<&[u32]>,
) {
    let (tiles, width) = (work.shape.tiles, work.shape.width);
    let rows = x.len() / w.k();
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let num_tasks = tiles * blocks;
    dev.pool().run(num_tasks, &|task, thread| {
        let (tile, row) = (task / blocks, task % blocks * BLOCK_ROWS);
        let here = BLOCK_ROWS.min(rows - row);
        // SAFETY: a slot is this task's by its number or by its thread's.
        let logits = unsafe { work.logits(task, num_tasks, thread) };
        let x = &x[row * w.k()..][..here * w.k()];
        let cols = tile_logits(dev.isa(), x, w, tile, (how, first + row), logits, width);
        for r in 0..here {
            let logits = &logits[r * width..][..width];
            let target = targets.map_or(usize::MAX, |t| t[row + r] as usize);
            // SAFETY: the statistics of one row and tile are this task's; a target lies in one tile.
            unsafe {
                work.set_stats(row + r, tile, tile_stats(dev.isa(), logits));
                if target / HEAD_TILE == tile {
                    assert!(target % HEAD_TILE < cols, "target {target} of a vocabulary of {}", w.n());
                    work.set_target(row + r, logits[target % HEAD_TILE]);
                }
            }
        }
    });
}

/// Computes the logits of a vocabulary tile for rows from `row` on, finished as `how` says and padded to `width`;
/// returns its columns.
pub(super) fn tile_logits<E: Operand>(
    isa: Isa,
    x: &[E],
    w: &Panels<'_, E>,
    tile: usize,
    (how, row): (&Finish<'_>, usize),
    logits: &mut [f32],
    width: usize,
) -> usize {
    let first = tile * HEAD_TILE;
    let cols = HEAD_TILE.min(w.n() - first);
    let rows = x.len() / w.k();
    // SAFETY: `logits` is borrowed mutably, so no other task writes it.
    unsafe { matmul::rows_product(isa, x, &w.rows(first, cols), Shared::of(logits), 0, width) };
    for (row, logits) in (row..).zip(logits[..rows * width].chunks_exact_mut(width)) {
        finish_and_pad(isa, logits, first, cols, how.how);
        how.apply(row, first, &mut logits[..cols]);
    }
    cols
}

simd_fn! {
    /// Caps and multiplies the first `cols` elements, those of tokens from `first` on, takes the mass of the suppressed
    /// ones, and pads the others.
    pub(super) fn finish_and_pad[](s: S, row: &mut [f32], first: usize, cols: usize, how: Logits<'_>) {
        for (i, part) in row.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut x = f32::load(s, part);
            if let Some(cap) = how.cap {
                x = capped(s, x, cap);
            }
            let x = s.mul(x, s.splat(how.factor));
            let keep = cols.saturating_sub(i * LANES).min(LANES);
            f32::store(s, part, s.first(keep, x, s.splat(NO_MASS)));
        }
        row[how.suppressed.within(first, cols)].fill(NO_MASS);
    }
}

simd_fn! {
    /// Returns (max, sum of exp(x - max), sum of (x - max) exp(x - max)) of a padded tile of one row.
    pub(super) fn tile_stats[](s: S, logits: &[f32]) -> [f32; 3] {
        let parts = logits.as_chunks::<LANES>().0;
        let mut max = s.splat(NO_MASS);
        for part in parts {
            max = s.max(f32::load(s, part), max);
        }
        let max = s.largest(max);
        let (mut sum, mut weighted) = (s.splat(0.0), s.splat(0.0));
        for part in parts {
            // `max` gives its second operand for a NaN, so NaN logits reach the sums.
            let d = s.max(s.splat(EXP_MIN), s.sub(f32::load(s, part), s.splat(max)));
            let e = s.exp(d);
            sum = s.add(sum, e);
            weighted = s.fma(d, e, weighted);
        }
        [max, s.sum(sum), s.sum(weighted)]
    }
}

/// Merges maxima [T], sums [T] and weighted sums [T] in ascending order.
pub(super) fn merge(isa: Isa, stats: &[f32], tiles: usize) -> RowStats {
    let (maxima, rest) = stats.split_at(tiles);
    let mut row = RowStats {
        max: maxima.iter().copied().fold(f32::MIN, |a, b| if b > a { b } else { a }),
        sum: 0.0,
        weighted: 0.0,
    };
    for first in (0..tiles).step_by(LANES) {
        let here = LANES.min(tiles - first);
        let mut weights = [0.0; LANES];
        tile_weights(isa, &maxima[first..first + here], row.max, &mut weights);
        for (i, &weight) in weights[..here].iter().enumerate() {
            let tile = first + i;
            let (sum, weighted) = (rest[tile], rest[tiles + tile]);
            row.sum += weight * sum;
            row.weighted += weight * (weighted + (maxima[tile] - row.max).max(EXP_MIN) * sum);
        }
    }
    row
}

/// Computes exp(m - max) for up to 16 tiles: the factor of their sums.
pub(super) fn tile_weights(isa: Isa, maxima: &[f32], max: f32, weights: &mut [f32; LANES]) {
    for (to, &m) in weights.iter_mut().zip(maxima) {
        *to = m - max;
    }
    super::lanes::exp_in_place(isa, weights);
}

/// Runs `f` for every row, on all threads.
pub(super) fn each_row(dev: &CpuDevice, rows: usize, f: impl Fn(usize) + Sync) {
    // Some microseconds of work per task.
    const ROWS: usize = 8;
    dev.pool().run(rows.div_ceil(ROWS), &|task, _| (task * ROWS..rows.min(task * ROWS + ROWS)).for_each(&f));
}

/// `HeadOut`, for writing.
pub(super) struct Outputs<'a> {
    logprobs: Shared<'a, f32>,
    lse: Shared<'a, f32>,
    entropy: Shared<'a, f32>,
}

impl<'a> Outputs<'a> {
    pub(super) fn new(dev: &'a CpuDevice, out: HeadOut<'a>, rows: usize) -> Outputs<'a> {
        assert_eq!(
            (out.logprobs.len(), out.lse.len(), out.entropy.len()),
            (rows, rows, rows),
            "outputs of {rows} rows"
        );
        Outputs {
            logprobs: dev.write(out.logprobs),
            lse: dev.write(out.lse),
            entropy: dev.write(out.entropy),
        }
    }

    /// Writes a row; each row is written by one task.
    pub(super) fn set(&self, row: usize, stats: &RowStats, target: f32) {
        // SAFETY: one task a row, which alone writes its outputs.
        unsafe {
            self.logprobs.range(row, 1)[0] = stats.logprob(target);
            self.lse.range(row, 1)[0] = stats.lse();
            self.entropy.range(row, 1)[0] = stats.entropy();
        }
    }
}

/// Computes dx and grad, tile by tile of the vocabulary: logits are recomputed.
pub(crate) fn backward(dev: &CpuDevice, args: HeadBackward<'_>) {
    args.grad.into_iter().for_each(|grad| elementwise::begin_sum(dev, grad.buf, args.add));
    let HeadBackward { x, w, head_out, .. } = args;
    let same = args.grad.is_none_or(|grad| (grad.n, grad.k, grad.layout) == (w.n, w.k, w.layout));
    assert!(same, "the gradient's shape is the weights'");
    assert!(args.logits.biases.is_none(), "biases have no gradient");
    by_dtype!(x, E => {
        let rows = Rows {
            targets: dev.read(args.targets), lse: dev.read(head_out.lse), entropy: dev.read(head_out.entropy),
            dlogprobs: dev.read(args.dlogprobs), dentropy: dev.read(args.dentropy),
            how: Finish::new(dev, args.logits, args.targets.len(), w.n),
            listed: args.listed.map(|of| ListedRows::new(dev, of, args.targets.len())),
        };
        let w = Panels::<E>::new(dev, w);
        let whole = args.whole.map(|of| {
            let rows = args.targets.len();
            assert_eq!([of.means, of.d].map(Buf::len), [rows; 2], "numbers of {rows} rows");
            let teacher = Side::<E>::new(dev, of.teacher, rows, w.n());
            Whole { how: of.how, means: dev.read(of.means), d: dev.read(of.d), teacher }
        });
        backward_as::<E>(dev, dev.read::<E>(x), &w, (&rows, whole.as_ref()), args)
    });
}

/// Inputs of the head's backward pass for each row, [R] each.
struct Rows<'a> {
    targets: &'a [u32],
    lse: &'a [f32],
    entropy: &'a [f32],
    dlogprobs: &'a [f32],
    dentropy: &'a [f32],
    how: Finish<'a>,
    listed: Option<ListedRows<'a>>,
}

impl Rows<'_> {
    /// Returns the derivative of the loss by the unscaled logit of a token that is neither target nor listed, divided
    /// by its probability, but for what the entropy adds.
    fn mass(&self, row: usize) -> f32 {
        let factor = self.how.how.factor;
        let by_target = -(factor * self.dlogprobs[row]);
        match &self.listed {
            None => by_target,
            Some(listed) => by_target + factor * listed.rest(row),
        }
    }

    fn of(&self, row: usize) -> RowInputs {
        RowInputs {
            target: self.targets[row],
            lse: self.lse[row],
            entropy: self.entropy[row],
            dlogprob: self.dlogprobs[row],
            dentropy: self.dentropy[row],
        }
    }
}

/// `HeadSide`, for reading.
pub(super) struct Side<'a, E> {
    x: &'a [E],
    w: Panels<'a, E>,
    pub(super) lse: &'a [f32],
    how: Finish<'a>,
    pub(super) work: Work<'a>,
}

impl<'a, E: Operand> Side<'a, E> {
    pub(super) fn new(dev: &'a CpuDevice, of: HeadSide<'a>, rows: usize, vocab: usize) -> Side<'a, E> {
        let (x, w) = (dev.read::<E>(of.x), Panels::<E>::new(dev, of.w));
        assert_eq!(w.n(), vocab, "tokens of both sides");
        assert_eq!((x.len(), of.lse.len()), (rows * w.k(), rows), "{rows} rows of K = {}", w.k());
        let how = Finish::new(dev, of.logits, rows, vocab);
        Side { x, w, lse: dev.read(of.lse), how, work: Work::new(dev, of.tile, rows, vocab) }
    }

    /// Computes its logits of a tile for rows `first..first + rows` in the current task's slot, which it returns.
    ///
    /// # Safety
    /// Requires what `Work::logits` requires.
    pub(super) unsafe fn logits(
        &self,
        isa: Isa,
        (first, rows): (usize, usize),
        tile: usize,
        (task, num_tasks, thread): (usize, usize, usize),
    ) -> &[f32] {
        // SAFETY: the caller promises that this task alone uses the slot.
        let to = unsafe { self.work.logits(task, num_tasks, thread) };
        let x = &self.x[first * self.w.k()..][..rows * self.w.k()];
        tile_logits(isa, x, &self.w, tile, (&self.how, first), to, self.work.shape.width);
        to
    }
}

/// `DivergenceBackward`, for reading.
struct Whole<'a, E> {
    how: Measure,
    means: &'a [f32],
    d: &'a [f32],
    teacher: Side<'a, E>,
}

impl<E> Whole<'_, E> {
    /// Returns a row's numbers; none if the loss does not depend on its divergence.
    fn row(&self, row: usize) -> Option<WholeRow> {
        let Whole { how, means, d, teacher } = self;
        let (teacher_lse, mean, d) = (teacher.lse[row], means[row], d[row]);
        (d != 0.0).then_some(WholeRow { how: *how, teacher_lse, mean, d })
    }
}

fn backward_as<E: Operand>(
    dev: &CpuDevice,
    x: &[E],
    w: &Panels<'_, E>,
    (rows, whole): (&Rows<'_>, Option<&Whole<'_, E>>),
    d: HeadBackward<'_>,
) {
    let num_rows = rows.targets.len();
    assert_eq!(x.len(), num_rows * w.k(), "{num_rows} rows of K = {}", w.k());
    let work = Work::new(dev, d.tile, num_rows, w.n());
    let width = HEAD_TILE.min(w.n());
    assert!(d.dtile.len() >= num_rows * width, "dtile of {} elements for {num_rows} rows", d.dtile.len());
    let mut grad = d.grad.map(|grad| {
        let mut parts = Packed::<E>::new(dev.write(d.pack), num_rows, width, w.k());
        parts.pack_x(dev, matmul::Rows::whole(x, w.k()));
        (grad, parts)
    });
    for tile in 0..work.shape.tiles {
        let first = tile * HEAD_TILE;
        let cols = HEAD_TILE.min(w.n() - first);
        let dtile = d.dtile.slice(0, num_rows * cols);
        tile_gradients::<E>(dev, x, w, (rows, whole), tile, &work, dev.write(dtile));
        let dtile = dev.read::<E>(dtile);
        matmul::backward_x_as::<E, f32>(dev, dtile, &w.rows(first, cols), dev.write(d.dx), tile > 0);
        if let Some((grad, parts)) = &mut grad {
            parts.pack_dy(dev, matmul::Rows::whole(dtile, cols));
            let panel = grad.buf.len() / grad.n.div_ceil(PANEL);
            let part = grad.buf.slice(first / PANEL * panel, cols.div_ceil(PANEL) * panel);
            by_dtype!(part, G => matmul::add_products::<E, G>(dev, parts, dev.write(part), grad.layout));
        }
    }
}

/// Computes the gradients of a tile's logits, rounded to e: [R, columns].
fn tile_gradients<E: Operand>(
    dev: &CpuDevice,
    x: &[E],
    w: &Panels<'_, E>,
    (rows, whole): (&Rows<'_>, Option<&Whole<'_, E>>),
    tile: usize,
    work: &Work<'_>,
    dtile: Shared<'_, E>,
) {
    let (width, num_rows) = (work.shape.width, rows.targets.len());
    let num_tasks = num_rows.div_ceil(BLOCK_ROWS);
    dev.pool().run(num_tasks, &|task, thread| {
        let row = task * BLOCK_ROWS;
        let here = BLOCK_ROWS.min(num_rows - row);
        // SAFETY: a slot is this task's by its number or by its thread's.
        let logits = unsafe { work.logits(task, num_tasks, thread) };
        let x = &x[row * w.k()..][..here * w.k()];
        let cols = tile_logits(dev.isa(), x, w, tile, (&rows.how, row), logits, width);
        let theirs = match whole.filter(|of| of.d[row..][..here].iter().any(|&d| d != 0.0)) {
            None => &[],
            // SAFETY: a slot of another buffer is this task's in the same way.
            Some(of) => unsafe { of.teacher.logits(dev.isa(), (row, here), tile, (task, num_tasks, thread)) },
        };
        for r in 0..here {
            // SAFETY: ranges of rows are disjoint, and each is one task's.
            let to = unsafe { dtile.range((row + r) * cols, cols) };
            if let Some(of) = whole.and_then(|whole| whole.row(row + r)) {
                let [own, theirs] = [logits, theirs].map(|of| &of[r * width..][..cols]);
                of.put(&rows.of(row + r), rows.how.how, tile * HEAD_TILE, own, theirs, to);
                rows.how.fill_masked(row + r, tile * HEAD_TILE, to, E::from_f32(0.0));
                continue;
            }
            let target = (rows.targets[row + r] as usize).wrapping_sub(tile * HEAD_TILE);
            logit_gradients::<E>(dev.isa(), &logits[r * width..][..width], rows, row + r, target, to);
            if let Some(listed) = &rows.listed {
                listed.put(row + r, &rows.of(row + r), rows.how.how, tile * HEAD_TILE, to);
            }
            rows.how.fill_masked(row + r, tile * HEAD_TILE, to, E::from_f32(0.0));
        }
    });
}

simd_fn! {
    /// Computes factor (dlogp (delta - p) - dH p (ln p + H)), ln p = x - lse, times the cap's slope, for a tile's row;
    /// with listed tokens also factor p times the derivative of the others.
    fn logit_gradients[E: Lanes](s: S, logits: &[f32], rows: &Rows<'_>, row: usize, target: usize, to: &mut [E]) {
        let (lse, entropy) = (s.splat(rows.lse[row]), s.splat(rows.entropy[row]));
        let (factor, cap) = (rows.how.how.factor, rows.how.how.cap);
        let dlogp = factor * rows.dlogprobs[row];
        let (mass, minus_dh) = (s.splat(rows.mass(row)), s.splat(-factor * rows.dentropy[row]));
        // No closures: they would be compiled without the path's instructions.
        for (i, (to, part)) in to.chunks_mut(LANES).zip(logits.as_chunks::<LANES>().0).enumerate() {
            let lnp = s.max(s.splat(EXP_MIN), s.sub(f32::load(s, part), lse));
            let p = s.exp(lnp);
            // p (mass - dH (ln p + H)), and dlogp at the target.
            let mut d = s.mul(p, s.fma(minus_dh, s.add(lnp, entropy), mass));
            if target / LANES == i {
                let mut lanes = [0.0; LANES];
                f32::store(s, &mut lanes, d);
                lanes[target % LANES] += dlogp;
                d = f32::load(s, &lanes);
            }
            if let Some(cap) = cap {
                d = s.mul(d, capped_slope(s, f32::load(s, part), cap * factor));
            }
            if let Ok(to) = <&mut [E; LANES]>::try_from(&mut *to) {
                E::store(s, to, d);
            } else {
                E::store_part(s, to, d);
            }
        }
    }
}
