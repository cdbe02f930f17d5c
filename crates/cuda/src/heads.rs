//! Launcher of `heads.cu`: products of the columns of heads with each head's rows of a matrix, where they lie.
//!
//! f32, other cards than Hopper and operands not in whole 16-byte pieces take moves and a product of each head.

use super::{Arg, CudaDevice, Launch, columns, count, matmul};
use plimsoll_base::DType;
use plimsoll_device::{Columns, HeadProducts, MatrixLayout};

/// Rows and columns of a block's tile, columns where rows are few, threads; buffers of long contractions, and others.
const ROWS: usize = 128;
const COLS: usize = 128;
const FEW_COLS: usize = 64;
const THREADS: u32 = 256;
const STAGES: usize = 3;
const SHORT_STAGES: usize = 4;
/// Elements of a step.
const STEP: usize = 64;
/// Bytes of a row of a step, and the alignment of buffers.
const STEP_BYTES: usize = 128;
const ALIGNMENT: usize = 1024;
/// Elements of 16 bytes.
const EIGHT: usize = 8;

pub(crate) fn product(dev: &CudaDevice, args: HeadProducts<'_>) {
    let HeadProducts { x, w, part, y, rows, heads, is_turned, .. } = args;
    if rows * heads == 0 {
        return;
    }
    if !takes(dev, &args) {
        return args.one_by_one(
            |moves| columns::move_columns(dev, moves),
            |_, x, w, y| {
                if is_turned {
                    matmul::backward_x(dev, x, w, y, false);
                } else {
                    matmul::forward(dev, x, w, None, y, false);
                }
            },
        );
    }
    let [length, width] = args.widths();
    for (of, width) in [(x, length), (y, width)] {
        let last = of.first + (rows - 1) * of.row + (heads - 1) * of.head + width;
        assert!(last <= of.buf.len(), "blocks of {width} up to {last} of {}", of.buf.len());
    }
    assert!(part.first + (heads - 1) * part.step + part.rows <= w.n, "{heads} heads' rows of {}", w.n);
    let cols = if rows > ROWS / 2 { COLS } else { FEW_COLS };
    let stages = if is_turned || cols == FEW_COLS { SHORT_STAGES } else { STAGES };
    let kernel = match (is_turned, cols) {
        (false, COLS) => "heads_128",
        (false, _) => "heads_64",
        (true, COLS) => "heads_turned_128",
        (true, _) => "heads_turned_64",
    };
    let at = |of: Columns<'_>| Arg::Ptr(dev.address(of.buf) + 2 * of.first as u64);
    let weights = Arg::Ptr(dev.address(w.buf) + 2 * (part.first * w.k) as u64);
    let apart = [x.row, x.head, part.step * w.k, y.row, y.head].map(|n| Arg::U64(n as u64));
    let args = [&[at(x), weights, at(y)][..], &apart, &[rows, width, length].map(count)].concat();
    let grid = [width.div_ceil(cols), rows.div_ceil(ROWS), heads].map(|n| n as u32);
    // A step has its buffer, where they are few.
    let buffers = stages.min(length.div_ceil(STEP));
    let shared = (buffers * (ROWS + cols) * STEP_BYTES + ALIGNMENT) as u32;
    dev.launch("heads", kernel, Launch { grid, block: THREADS, shared }, &args);
}

/// True if the kernels take the operands.
fn takes(dev: &CudaDevice, args: &HeadProducts<'_>) -> bool {
    let HeadProducts { x, w, part, y, .. } = *args;
    let is_whole = |of: Columns<'_>| [of.first, of.row, of.head].iter().all(|n| n.is_multiple_of(EIGHT));
    let bufs = [x.buf, w.buf, y.buf];
    dev.info().capability == (9, 0)
        && w.layout == MatrixLayout::Rows
        && bufs.iter().all(|buf| buf.dtype() == DType::Bf16 && dev.address(*buf).is_multiple_of(16))
        && is_whole(x)
        && is_whole(y)
        && [w.k, part.rows].iter().all(|n| n.is_multiple_of(EIGHT))
        // Strides of rows are counted in 32 bits, and tiles of rows in 16.
        && args.rows.div_ceil(ROWS) < 1 << 16
        && x.row < 1 << 32
}
