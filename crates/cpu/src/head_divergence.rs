//! The divergence of a head's rows from a teacher's over the whole vocabulary. Legend as in `head.rs`.
//!
//! Terms are computed and added in f64, in ascending order of tokens, so a row's bits depend on nothing but the row.

use super::CpuDevice;
use super::head::Side;
use super::lanes::by_dtype;
use super::matmul::Operand;
use super::whole_gradient::Terms;
use crate::layouts::BLOCK_ROWS;
use plimsoll_device::{HEAD_TILE, HeadDivergence};
use plimsoll_memory::Buf;

/// Computes `values` and `means` of each row.
pub(crate) fn forward(dev: &CpuDevice, args: HeadDivergence<'_>) {
    by_dtype!(args.student.x, E => forward_as::<E>(dev, args));
}

fn forward_as<E: Operand>(dev: &CpuDevice, args: HeadDivergence<'_>) {
    let (rows, vocab) = (args.student.lse.len(), args.student.w.n);
    assert_eq!([args.values, args.means].map(Buf::len), [rows; 2], "outputs of {rows} rows");
    let [student, teacher] = [args.student, args.teacher].map(|of| Side::<E>::new(dev, of, rows, vocab));
    let (values, means) = (dev.write::<f32>(args.values), dev.write::<f32>(args.means));
    let (num_tasks, shape) = (rows.div_ceil(BLOCK_ROWS), student.work.shape);
    dev.pool().run(num_tasks, &|task, thread| {
        let first = task * BLOCK_ROWS;
        let here = BLOCK_ROWS.min(rows - first);
        let mut sums = [[0.0f64; 2]; BLOCK_ROWS];
        for tile in 0..shape.tiles {
            // SAFETY: a slot of each side's buffer is this task's by its number or by its thread's.
            let [logits, theirs] = [&student, &teacher]
                .map(|of| unsafe { of.logits(dev.isa(), (first, here), tile, (task, num_tasks, thread)) });
            let cols = HEAD_TILE.min(vocab - tile * HEAD_TILE);
            for (r, sums) in sums[..here].iter_mut().enumerate() {
                let (own, other) = (&logits[r * shape.width..][..cols], &theirs[r * shape.width..][..cols]);
                for (&x, &y) in own.iter().zip(other) {
                    let of = Terms::new([x, student.lse[first + r]], [y, teacher.lse[first + r]]);
                    let [value, pull] = of.parts(args.how);
                    *sums = [sums[0] + value, sums[1] + pull];
                }
            }
        }
        // SAFETY: ranges of rows are disjoint, and each is one task's.
        let (values, means) = unsafe { (values.range(first, here), means.range(first, here)) };
        for ((value, mean), sums) in values.iter_mut().zip(means).zip(sums) {
            [*value, *mean] = sums.map(|sum| sum as f32);
        }
    });
}
