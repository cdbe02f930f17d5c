//! The launcher of `head_divergence.cu`: divergences of a head's rows from a teacher's over the whole vocabulary,
//! composed of the products of both heads, a tile of columns at a time, and a kernel over their rows. Its gradients are
//! in `head.rs`.

use super::head::{Chunk, capped_logits, measure_args, side_inputs, tiles};
use super::{Arg, CudaDevice, Launch, count};
use crate::layouts::{TILE, chunk_rows};
use plimsoll_device::HeadDivergence;
use plimsoll_memory::Buf;

/// Threads of a block, which has a row.
const THREADS: u32 = 256;

/// Computes `values` and `means` of each row.
pub(crate) fn forward(dev: &CudaDevice, args: HeadDivergence<'_>) {
    let HeadDivergence { student, teacher, how, values, means } = args;
    let (rows, vocab) = (student.lse.len(), student.w.n);
    assert_eq!([values, means].map(Buf::len), [rows; 2], "outputs of {rows} rows");
    let sides = [student, teacher].map(|of| (side_inputs(of, rows, vocab), of.tile));
    let most = chunk_rows(rows, vocab, false);
    for first in (0..rows).step_by(most.max(1)) {
        let chunk = Chunk { first, rows: most.min(rows - first) };
        for (column, cols) in tiles(vocab, TILE) {
            let both = sides.map(|(of, tile)| dev.arg(capped_logits(dev, of, chunk, (column, cols), tile)));
            let mut list = both.to_vec();
            list.extend([count(cols), Arg::U32(u32::from(column == 0))]);
            list.extend([student.logits.factor, teacher.logits.factor].map(Arg::F32));
            list.extend(measure_args(how));
            list.extend([student.lse, teacher.lse, values, means].map(|buf| dev.arg(chunk.of(buf, 1))));
            let launch = Launch { grid: [chunk.rows as u32, 1, 1], block: THREADS, shared: 0 };
            dev.launch("head_divergence", "divergence_of_tile", launch, &list);
        }
    }
}
