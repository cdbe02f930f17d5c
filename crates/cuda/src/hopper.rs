//! Launchers of `head_hopper.cu`.

use super::boxes::tensor_map;
use super::head::{Chunk, Pick, row_args, row_inputs};
use super::launch::TensorMap;
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_arch::TokenRun;
use plimsoll_base::DType;
use plimsoll_device::{HeadBackward, KEY_WORDS, Logits, Matrix};
use plimsoll_memory::Buf;

/// Rows and columns of a block's tile, and elements of K of a step, as in `head_hopper.cu`.
const BLOCK_M: usize = 128;
const BLOCK_N: usize = 256;
const BLOCK_K: usize = 64;
/// Shared memory: four stages, which begin at a multiple of 1,024.
const SHARED: u32 = (4 * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 + 1024) as u32;
/// One warp group that copies, two that multiply.
const THREADS: u32 = 384;

/// Columns of a part of a row's statistics.
pub(super) const PART: usize = BLOCK_N;

/// True if the head's logits are reduced in registers: on Hopper, for bf16 in whole 16-byte units, for any number of
/// rows.
pub(super) fn takes(dev: &CudaDevice, x: Buf<'_>, w: Matrix<'_>) -> bool {
    let whole = |b: &Buf<'_>| b.dtype() == DType::Bf16 && dev.address(*b).is_multiple_of(16);
    dev.info().capability == (9, 0) && w.k.is_multiple_of(8) && [x, w.buf].iter().all(whole)
}

/// Returns the first suppressed token and the one after the last.
fn suppressed(how: Logits<'_>) -> [Arg; 2] {
    let TokenRun { first, count } = how.suppressed;
    [Arg::U32(first), Arg::U32(first + count)]
}

/// Returns the kernel that takes masks and biases of single rows, by the name of the one that does not.
fn of_rows_own(kernel: &str) -> &'static str {
    match kernel {
        "head_parts_of_targets" => "head_parts_of_targets_own",
        "head_parts_of_largest" => "head_parts_of_largest_own",
        _ => "head_parts_of_draws_own",
    }
}

/// The head's product of [R, K] inputs and [V, K] weights, which writes only what is made from its logits.
pub(super) struct HeadProduct<'a> {
    dev: &'a CudaDevice,
    rows: usize,
    vocab: usize,
    k: usize,
    maps: [TensorMap; 2],
}

impl<'a> HeadProduct<'a> {
    /// Returns the product of at least one row; `takes` must have returned true.
    pub(super) fn new(dev: &'a CudaDevice, x: Buf<'_>, w: Matrix<'_>) -> HeadProduct<'a> {
        let rows = x.len() / w.k;
        let maps = [
            tensor_map(dev, dev.address(x), rows, w.k, rows.next_multiple_of(8).min(BLOCK_M)),
            tensor_map(dev, dev.address(w.buf), w.n, w.k, BLOCK_N),
        ];
        HeadProduct { dev, rows, vocab: w.n, k: w.k, maps }
    }

    /// Computes the statistics of each row's parts, [R, parts], for a chunk.
    pub(super) fn parts(&self, how: Logits<'_>, chunk: Chunk, pick: Pick<'_>, stats: Buf<'_>) {
        let none = Arg::Ptr(0);
        let (kernel, targets, keys) = match pick {
            Pick::Targets(targets) => ("head_parts_of_targets", self.dev.arg(chunk.of(targets, 1)), none),
            Pick::Largest => ("head_parts_of_largest", none, none),
            Pick::Draw(keys) => ("head_parts_of_draws", none, self.dev.arg(chunk.of(keys, KEY_WORDS))),
        };
        let [first, end] = suppressed(how);
        let mut own = vec![Arg::F32(how.factor), first, end, targets, keys, self.dev.arg(stats)];
        if how.masks.is_some() || how.biases.is_some() {
            own.extend(row_args(self.dev, how, chunk.rows, self.vocab));
            return self.launch(of_rows_own(kernel), self.vocab, &own);
        }
        self.launch(kernel, self.vocab, &own);
    }

    /// Writes gradients by logits of vocabulary columns `first..first + cols`, [R, cols] bf16; eight divides `cols`.
    pub(super) fn gradients(&self, first: usize, cols: usize, args: &HeadBackward<'_>, to: Buf<'_>) {
        assert_eq!((to.len(), to.dtype()), (self.rows * cols, DType::Bf16), "[{}, {cols}]", self.rows);
        assert!(cols.is_multiple_of(8) && self.dev.address(to).is_multiple_of(16), "rows of {cols} columns");
        let mut own = vec![count(first), Arg::F32(args.logits.factor)];
        own.extend(row_inputs(self.dev, args, Chunk { first: 0, rows: self.rows }));
        own.push(self.dev.arg(to));
        self.launch("head_gradients", cols, &own);
        let here = args.logits.suppressed.within(first, cols);
        if !here.is_empty() {
            let launch =
                Launch { grid: [(self.rows * here.len()).div_ceil(256) as u32, 1, 1], block: 256, shared: 0 };
            let args = args![self.dev, to, self.rows, cols, here.start, here.len()];
            self.dev.launch("head", "zero_columns", launch, &args);
        }
    }

    /// Launches as many blocks as run at once, which take the tiles of `cols` columns in turn.
    fn launch(&self, kernel: &'static str, cols: usize, own: &[Arg]) {
        let sizes = [self.rows, cols, self.k.div_ceil(BLOCK_K)].map(count);
        let args = [&self.maps.map(Arg::Map)[..], &sizes, own].concat();
        let tiles = self.rows.div_ceil(BLOCK_M) * cols.div_ceil(BLOCK_N);
        let grid = [tiles.min(self.dev.multiprocessors() as usize) as u32, 1, 1];
        self.dev.launch("head_hopper", kernel, Launch { grid, block: THREADS, shared: SHARED }, &args);
    }
}
