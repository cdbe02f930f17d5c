//! Launchers of `head.cu`: log-probabilities, entropies and their gradients through tiles of the vocabulary.
//!
//! Legend: R rows, V vocabulary, K hidden, e the storage of activations. No buffer holds [R, V]. Logits are computed
//! for some rows and `TILE` columns at a time, always in the same products, and reduced in parts of `PART` columns, so
//! a row's bits depend neither on other rows nor on whether it is scored or sampled. On Hopper bf16 logits that are
//! neither truncated nor capped are never written: `head_hopper.cu` reduces a product's tile in registers.

use super::{Arg, CudaDevice, Launch, hopper, matmul};
use crate::layouts::{GRADIENT_TILE, PART, PART_WORDS, ROWS_MAX, TILE, chunk_rows, row_words, width};
use plimsoll_base::DType;
use plimsoll_device::{
    DivergenceBackward, HeadBackward, HeadOut, HeadSide, KEY_WORDS, ListedBackward, Logits, Matrix,
    MatrixLayout, Measure, NO_MASS, RowMasks,
};
use plimsoll_memory::Buf;

/// Rows of a tile of the largest product that the library has.
const PRODUCT_ROWS: usize = 256;
/// Columns of a block of the gradients' kernel, 8 a thread.
const GRADIENT_PART: usize = 2048;
/// Columns of a block of those with a teacher's, one a thread.
const WHOLE_PART: usize = 256;
/// Rows of a block that merges parts.
const ROW_WARPS: usize = 4;

/// Returns rows that are taken at once, where `most` have room: whole tiles of a product, so that none is computed for
/// a few rows (4,096 rows of the backward pass are two of 2,048, not 2,071 and 2,025: 28% less time for the first).
fn product_rows(rows: usize, most: usize) -> usize {
    let whole = if most > PRODUCT_ROWS { most / PRODUCT_ROWS * PRODUCT_ROWS } else { most };
    rows.min(whole).min(ROWS_MAX)
}

/// Returns rows `first..first + n` of a matrix.
pub(super) fn matrix_rows(w: Matrix<'_>, first: usize, n: usize) -> Matrix<'_> {
    Matrix::new(w.buf.slice(first * w.k, n * w.k), n, w.k, MatrixLayout::Rows)
}

/// Returns the first column and number of columns of each tile.
pub(super) fn tiles(vocab: usize, tile: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vocab).step_by(tile).map(move |first| (first, tile.min(vocab - first)))
}

/// The token for which a part's statistics hold a logit.
#[derive(Clone, Copy)]
pub(super) enum Pick<'a> {
    /// The logit of `targets` [R].
    Targets(Buf<'a>),
    /// The lowest token of the largest logit.
    Largest,
    /// A token drawn by keys, [R, KEY_WORDS].
    Draw(Buf<'a>),
}

#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// [R, K] e.
    pub(super) x: Buf<'a>,
    pub(super) w: Matrix<'a>,
    pub(super) rows: usize,
    pub(super) logits: Logits<'a>,
}

/// The head over rows that are taken in chunks.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) dev: &'a CudaDevice,
    /// [R, K] e.
    x: Buf<'a>,
    w: Matrix<'a>,
    /// Cap and factor of logits.
    pub(super) how: Logits<'a>,
    tile: Buf<'a>,
    out: HeadOut<'a>,
    /// All logits of a chunk are in `tile`, instead of a tile's.
    full: bool,
    /// Logits are reduced where they are made.
    at_once: bool,
    chunk: usize,
}

/// Rows `first..first + rows`.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl Chunk {
    /// Returns the chunk's part of a buffer of rows of `width`.
    pub(super) fn of(self, buf: Buf<'_>, width: usize) -> Buf<'_> {
        buf.slice(self.first * width, self.rows * width)
    }

    /// Returns how the chunk's logits are finished, of `rows` rows.
    pub(super) fn logits(self, how: Logits<'_>, rows: usize) -> Logits<'_> {
        let masks = how.masks.map(|of| of.of_rows(self.first, self.rows));
        Logits { masks, biases: how.biases.map(|of| of.of_rows(rows, self.first, self.rows)), ..how }
    }
}

impl<'a> Head<'a> {
    pub(super) fn new(
        dev: &'a CudaDevice,
        inputs: Inputs<'a>,
        tile: Buf<'a>,
        out: HeadOut<'a>,
        full: bool,
    ) -> Head<'a> {
        let Inputs { x, w, rows, logits: how } = inputs;
        assert_eq!(w.layout, MatrixLayout::Rows);
        assert_eq!(x.len(), rows * w.k, "{rows} rows of K = {}", w.k);
        let lens = [out.logprobs, out.lse, out.entropy].map(Buf::len);
        assert_eq!(lens, [rows; 3], "outputs of {rows} rows");
        assert!(how.factor > 0.0 && how.factor.is_finite(), "logits times {}", how.factor);
        let chunk = chunk_rows(rows, w.n, full);
        let needed = chunk * row_words(w.n, full);
        assert!(tile.len() >= needed, "a head tile of {}, needed {needed}", tile.len());
        assert_eq!(tile.dtype(), DType::F32);
        let at_once = hopper::takes(dev, x, w) && how.cap.is_none();
        let chunk = if at_once && !full {
            // Statistics alone take far less room than logits.
            product_rows(rows, tile.len() / (w.n.div_ceil(hopper::PART) * PART_WORDS))
        } else {
            chunk
        };
        Head { dev, x, w, how, tile, out, full, at_once, chunk }
    }

    fn part(&self) -> usize {
        if self.at_once { hopper::PART } else { PART }
    }

    fn parts(&self) -> usize {
        self.w.n.div_ceil(self.part())
    }

    pub(super) fn vocab(&self) -> usize {
        self.w.n
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        let (rows, chunk) = (self.out.lse.len(), self.chunk);
        (0..rows).step_by(chunk.max(1)).map(move |first| Chunk { first, rows: chunk.min(rows - first) })
    }

    /// Returns the logits of a tile of a chunk, [rows, columns]: tiles one after the other, or each in the same place.
    pub(super) fn logits(&self, chunk: Chunk, first: usize, cols: usize) -> Buf<'a> {
        let start = if self.full { first * chunk.rows } else { 0 };
        self.tile.slice(start, chunk.rows * cols)
    }

    /// Returns the statistics' place: after the logits, or over them where they are no longer needed.
    fn stats(&self, chunk: Chunk) -> Buf<'a> {
        let start = if self.at_once { 0 } else { chunk.rows * width(self.w.n, self.full) };
        self.tile.slice(start, chunk.rows * self.parts() * PART_WORDS)
    }

    /// Computes the statistics of all parts of a chunk. If all its logits are in `tile`, they may be overwritten.
    pub(super) fn fill_stats(&self, chunk: Chunk, pick: Pick<'_>) {
        if self.at_once {
            let product = hopper::HeadProduct::new(self.dev, chunk.of(self.x, self.w.k), self.w);
            let how = chunk.logits(self.how, self.out.lse.len());
            return product.parts(how, chunk, pick, self.stats(chunk));
        }
        for (first, cols) in tiles(self.w.n, TILE) {
            if !self.full {
                self.compute(chunk, first, cols);
            }
            self.reduce(chunk, first, cols, pick);
        }
    }

    pub(super) fn compute(&self, chunk: Chunk, first: usize, cols: usize) {
        let (x, w) = (chunk.of(self.x, self.w.k), matrix_rows(self.w, first, cols));
        let logits = self.logits(chunk, first, cols);
        matmul::forward(self.dev, x, w, None, logits, false);
        finish(self.dev, logits, (first, cols), chunk.logits(self.how, self.out.lse.len()), self.w.n);
    }

    /// Reduces a tile's logits to the statistics of its parts.
    fn reduce(&self, chunk: Chunk, first: usize, cols: usize, pick: Pick<'_>) {
        let logits = self.logits(chunk, first, cols);
        let mut args = args![self.dev, logits, cols, first, self.parts(), self.how.factor].to_vec();
        let kernel = match pick {
            Pick::Targets(targets) => {
                args.push(self.dev.arg(chunk.of(targets, 1)));
                "parts_of_targets"
            }
            Pick::Largest => "parts_of_largest",
            Pick::Draw(keys) => {
                args.push(self.dev.arg(chunk.of(keys, KEY_WORDS)));
                "parts_of_draws"
            }
        };
        args.push(self.dev.arg(self.stats(chunk)));
        let grid = [cols.div_ceil(PART) as u32, chunk.rows as u32, 1];
        self.dev.launch("head", kernel, Launch { grid, block: 256, shared: 0 }, &args);
    }

    /// Merges the parts' statistics into the outputs for `targets`.
    pub(super) fn finish_targets(&self, chunk: Chunk, targets: Buf<'_>) {
        let mut args = self.merge_args(chunk);
        args.extend(args![self.dev, self.part(), self.w.n, chunk.of(targets, 1)]);
        self.finish("rows_of_targets", chunk, args);
    }

    /// Merges the parts' statistics and writes the picked tokens.
    pub(super) fn finish_tokens(&self, chunk: Chunk, pick: Pick<'_>, tokens: Buf<'_>) {
        let (keys, greedy) = match pick {
            Pick::Draw(keys) => (self.dev.arg(chunk.of(keys, KEY_WORDS)), 0),
            _ => (Arg::Ptr(0), 1),
        };
        let mut args = self.merge_args(chunk);
        args.extend([keys, Arg::U32(greedy), self.dev.arg(chunk.of(tokens, 1))]);
        self.finish("rows_of_draws", chunk, args);
    }

    fn merge_args(&self, chunk: Chunk) -> Vec<Arg> {
        args![self.dev, self.stats(chunk), chunk.rows, self.parts()].to_vec()
    }

    fn finish(&self, kernel: &'static str, chunk: Chunk, mut args: Vec<Arg>) {
        let HeadOut { logprobs, lse, entropy } = self.out;
        args.extend([logprobs, lse, entropy].map(|out| self.dev.arg(chunk.of(out, 1))));
        let grid = [chunk.rows.div_ceil(ROW_WARPS) as u32, 1, 1];
        self.dev.launch("head", kernel, Launch { grid, block: ROW_WARPS as u32 * 32, shared: 0 }, &args);
    }
}

/// Caps a product's logits, [rows, cols] of tokens from `first` on, if there is a cap, adds biases, and takes the mass
/// of suppressed and masked tokens. `how` is that of these rows; `vocab`: all tokens.
pub(super) fn finish(
    dev: &CudaDevice,
    logits: Buf<'_>,
    (first, cols): (usize, usize),
    how: Logits<'_>,
    vocab: usize,
) {
    let n @ 1.. = logits.len() else { return };
    let launch = |n: usize| Launch { grid: [n.div_ceil(256) as u32, 1, 1], block: 256, shared: 0 };
    let here = how.suppressed.within(first, cols);
    assert!(here.is_empty() || how.cap.is_none(), "capped logits suppress no tokens");
    if let Some(cap) = how.cap {
        dev.launch("head", "cap_logits", launch(n), &args![dev, logits, n as u64, cap]);
    }
    if !here.is_empty() {
        let rows = n / cols;
        let args = args![dev, logits, rows, cols, here.start, here.len(), NO_MASS / how.factor];
        dev.launch("head", "suppress_logits", launch(rows * here.len()), &args);
    }
    if let Some(biases) = how.biases {
        let per_row = biases.per_row(n / cols);
        let args = args![dev, logits, n / cols, cols, first, biases.ids, biases.values, per_row];
        dev.launch("head", "bias_logits", launch(n / cols * per_row), &args);
    }
    if let Some(masks) = how.masks {
        let words = RowMasks::words_of(vocab);
        let args =
            args![dev, logits, n as u64, cols, first, masks.words, words, masks.rows, NO_MASS / how.factor];
        dev.launch("head", "mask_logits", launch(n), &args);
    }
}

/// Returns what single rows have of their own: masks, their words and the rows' masks; ids and values of biases, and
/// how many a row has. Null where there is none.
pub(super) fn row_args(dev: &CudaDevice, how: Logits<'_>, rows: usize, vocab: usize) -> [Arg; 6] {
    let masks = how.masks.map_or([Arg::Ptr(0); 2], |of| [of.words, of.rows].map(|buf| dev.arg(buf)));
    let biases = how.biases.map_or([Arg::Ptr(0); 2], |of| [of.ids, of.values].map(|buf| dev.arg(buf)));
    let per_row = how.biases.map_or(0, |of| of.per_row(rows));
    let [words, per_row] = [RowMasks::words_of(vocab), per_row].map(super::count);
    [masks[0], words, masks[1], biases[0], biases[1], per_row]
}

/// Zeroes the gradients of a tile's masked tokens, [R, cols] e of tokens from `first` on.
fn zero_masked(
    dev: &CudaDevice,
    dtile: Buf<'_>,
    (first, cols): (usize, usize),
    masks: RowMasks<'_>,
    vocab: usize,
) {
    let n @ 1.. = dtile.len() else { return };
    let words = RowMasks::words_of(vocab);
    let kernel = if dtile.dtype() == DType::F32 { "zero_masked_f32" } else { "zero_masked_bf16" };
    let args = args![dev, dtile, n as u64, cols, first, masks.words, words, masks.rows];
    dev.launch("head", kernel, Launch { grid: [n.div_ceil(256) as u32, 1, 1], block: 256, shared: 0 }, &args);
}

/// Computes log-probability of `targets`, log-sum-exp, entropy. `x`: [R, K] e. Targets beyond the vocabulary give NaN.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    targets: Buf<'_>,
    logits: Logits<'_>,
    tile: Buf<'_>,
    out: HeadOut<'_>,
) {
    let head = Head::new(dev, Inputs { x, w, rows: targets.len(), logits }, tile, out, false);
    for chunk in head.chunks() {
        head.fill_stats(chunk, Pick::Targets(targets));
        head.finish_targets(chunk, targets);
    }
}

/// Computes dx and grad, tile by tile of the vocabulary: logits are recomputed.
pub(crate) fn backward(dev: &CudaDevice, args: HeadBackward<'_>) {
    let HeadBackward { x, w, targets, head_out, tile, dx, .. } = args;
    let rows = targets.len();
    assert_eq!(w.layout, MatrixLayout::Rows);
    let same = args.grad.is_none_or(|grad| (grad.n, grad.k, grad.layout) == (w.n, w.k, w.layout));
    assert!(same, "the gradient's shape is the weights'");
    assert_eq!((x.len(), dx.len()), (rows * w.k, rows * w.k), "{rows} rows of K = {}", w.k);
    let lens = [head_out.lse, head_out.entropy, args.dlogprobs, args.dentropy].map(Buf::len);
    assert_eq!(lens, [rows; 4], "a number for each of {rows} rows");
    assert!(args.logits.biases.is_none(), "biases have no gradient");
    if let Some(of) = &args.listed {
        let lens = [of.slopes, of.rest, of.d].map(Buf::len);
        assert_eq!(lens, [of.listed.ids.len(), rows, rows], "numbers of {rows} rows with lists");
    }
    let width = w.n.min(GRADIENT_TILE);
    assert!(args.dtile.len() >= rows * width, "dtile of {} elements for {rows} rows", args.dtile.len());
    assert_eq!(args.dtile.dtype(), x.dtype(), "gradients of logits are stored as activations are");
    let chunk = product_rows(rows, tile.len() / width);
    assert!(rows == 0 || chunk > 0, "a head tile of {} elements", tile.len());
    let at_once =
        (rows > 0 && hopper::takes(dev, x, w) && w.n.is_multiple_of(8) && args.logits.cap.is_none())
            .then(|| hopper::HeadProduct::new(dev, x, w));
    for (first, cols) in tiles(w.n, GRADIENT_TILE) {
        let part = matrix_rows(w, first, cols);
        let dtile = args.dtile.slice(0, rows * cols);
        if let Some(whole) = &args.whole {
            whole_gradients(dev, &args, whole, first, dtile);
        } else if let Some(at_once) = &at_once {
            at_once.gradients(first, cols, &args, dtile);
        } else {
            for row in (0..rows).step_by(chunk.max(1)) {
                let here = Chunk { first: row, rows: chunk.min(rows - row) };
                let logits = tile.slice(0, here.rows * cols);
                matmul::forward(dev, here.of(x, w.k), part, None, logits, false);
                finish(dev, logits, (first, cols), here.logits(args.logits, rows), w.n);
                gradients(dev, here, logits, first, &args, here.of(dtile, cols));
            }
        }
        if let Some(listed) = &args.listed {
            put_listed(dev, &args, listed, first, dtile);
        }
        if let Some(masks) = args.logits.masks {
            zero_masked(dev, dtile, (first, cols), masks, w.n);
        }
        matmul::backward_x(dev, dtile, part, dx, first > 0);
        if let Some(grad) = args.grad {
            matmul::backward_w(dev, dtile, x, matrix_rows(grad, first, cols), args.add);
        }
    }
}

/// Returns the inputs of the gradients of each row's logits, for the rows of a chunk: `GradientRows`.
pub(super) fn row_inputs(dev: &CudaDevice, args: &HeadBackward<'_>, chunk: Chunk) -> [Arg; 7] {
    let HeadOut { lse, entropy, .. } = args.head_out;
    let (rest, d) = args.listed.map(|of| (of.rest, of.d)).unzip();
    let [targets, lse, entropy, by_logprob, by_entropy] =
        [args.targets, lse, entropy, args.dlogprobs, args.dentropy].map(Some);
    [targets, lse, entropy, by_logprob, by_entropy, rest, d]
        .map(|of| of.map_or(Arg::Ptr(0), |of| dev.arg(chunk.of(of, 1))))
}

/// Computes gradients of a tile's logits, [rows, columns] e; `first`: the tile's first column.
fn gradients(
    dev: &CudaDevice,
    chunk: Chunk,
    logits: Buf<'_>,
    first: usize,
    of: &HeadBackward<'_>,
    dlogits: Buf<'_>,
) {
    let cols = logits.len() / chunk.rows;
    let Logits { factor, cap, .. } = of.logits;
    let mut args = args![dev, logits, cols, first, factor, cap.unwrap_or(0.0)].to_vec();
    args.extend(row_inputs(dev, of, chunk));
    args.push(dev.arg(dlogits));
    let kernel = if dlogits.dtype() == DType::F32 { "gradients_f32" } else { "gradients_bf16" };
    let grid = [cols.div_ceil(GRADIENT_PART) as u32, chunk.rows as u32, 1];
    dev.launch("head", kernel, Launch { grid, block: GRADIENT_PART as u32 / 8, shared: 0 }, &args);
}

/// Writes the gradients of listed tokens into those of a tile's logits, [R, cols] e, whose columns begin at `first`.
fn put_listed(
    dev: &CudaDevice,
    args: &HeadBackward<'_>,
    of: &ListedBackward<'_>,
    first: usize,
    dtile: Buf<'_>,
) {
    let rows = args.targets.len();
    let k = of.listed.per_row(rows);
    if rows * k == 0 {
        return;
    }
    let (cols, Logits { factor, cap, .. }) = (dtile.len() / rows, args.logits);
    let mut list = row_inputs(dev, args, Chunk { first: 0, rows }).to_vec();
    list.extend(args![dev, of.listed.ids, of.listed.logprobs, of.slopes, rows, k, cols, first]);
    list.extend(args![dev, factor, cap.unwrap_or(0.0), dtile]);
    let kernel = if dtile.dtype() == DType::F32 { "put_listed_f32" } else { "put_listed_bf16" };
    let launch = Launch { grid: [(rows * k).div_ceil(256) as u32, 1, 1], block: 256, shared: 0 };
    dev.launch("head_listed", kernel, launch, &list);
}

/// Computes the gradients of a tile's logits, [R, cols] e, whose columns begin at `first`, with those of divergences.
fn whole_gradients(
    dev: &CudaDevice,
    args: &HeadBackward<'_>,
    of: &DivergenceBackward<'_>,
    first: usize,
    dtile: Buf<'_>,
) {
    let HeadBackward { x, w, logits: how, tile, .. } = *args;
    let rows = args.targets.len();
    let (student, theirs) = (Inputs { x, w, rows, logits: how }, side_inputs(of.teacher, rows, w.n));
    assert_eq!([of.means, of.d].map(Buf::len), [rows; 2], "numbers of {rows} rows");
    let cols = dtile.len() / rows.max(1);
    let most = (tile.len().min(of.teacher.tile.len()) / cols.max(1)).min(ROWS_MAX);
    assert!(rows == 0 || most > 0, "a head tile of {} elements", tile.len());
    let kernel = if dtile.dtype() == DType::F32 { "whole_gradients_f32" } else { "whole_gradients_bf16" };
    for row in (0..rows).step_by(most.max(1)) {
        let chunk = Chunk { first: row, rows: most.min(rows - row) };
        let own = capped_logits(dev, student, chunk, (first, cols), tile);
        let other = capped_logits(dev, theirs, chunk, (first, cols), of.teacher.tile);
        let mut list = args![dev, own, other, cols, first].to_vec();
        list.extend([how.factor, how.cap.unwrap_or(0.0), of.teacher.logits.factor].map(Arg::F32));
        list.extend(measure_args(of.how));
        list.extend_from_slice(&row_inputs(dev, args, chunk)[..5]);
        list.extend([of.teacher.lse, of.means, of.d].map(|buf| dev.arg(chunk.of(buf, 1))));
        list.push(dev.arg(chunk.of(dtile, cols)));
        let grid = [cols.div_ceil(WHOLE_PART) as u32, chunk.rows as u32, 1];
        dev.launch("head_divergence", kernel, Launch { grid, block: WHOLE_PART as u32, shared: 0 }, &list);
    }
}

/// Returns the kernels' number of a divergence, and its beta.
pub(super) fn measure_args(how: Measure) -> [Arg; 2] {
    let (number, beta) = match how {
        Measure::Reverse => (0, 0.0),
        Measure::Forward => (1, 0.0),
        Measure::Jsd { beta } => (2, beta),
    };
    [Arg::U32(number), Arg::F32(beta)]
}

/// Computes the capped logits of columns `first..first + cols` for a chunk: [rows, cols] f32.
pub(super) fn capped_logits<'a>(
    dev: &CudaDevice,
    of: Inputs<'a>,
    chunk: Chunk,
    (first, cols): (usize, usize),
    tile: Buf<'a>,
) -> Buf<'a> {
    let to = tile.slice(0, chunk.rows * cols);
    matmul::forward(dev, chunk.of(of.x, of.w.k), matrix_rows(of.w, first, cols), None, to, false);
    finish(dev, to, (first, cols), chunk.logits(of.logits, of.rows), of.w.n);
    to
}

/// Returns what the logits of one of two heads are computed from.
pub(super) fn side_inputs(of: HeadSide<'_>, rows: usize, vocab: usize) -> Inputs<'_> {
    let HeadSide { x, w, lse, logits, .. } = of;
    assert_eq!((w.layout, w.n), (MatrixLayout::Rows, vocab), "tokens of both sides");
    assert_eq!((x.len(), lse.len()), (rows * w.k, rows), "{rows} rows of K = {}", w.k);
    Inputs { x, w, rows, logits }
}
