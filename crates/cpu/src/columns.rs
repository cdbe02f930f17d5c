//! Moving blocks of columns between rows and matrices of heads, and products of heads.

use super::elementwise::split;
use super::lanes::by_dtype;
use super::{CpuDevice, Real, matmul};
use plimsoll_device::{ColumnOrder, Columns, HeadProducts, MoveColumns};

pub(super) fn move_columns(dev: &CpuDevice, args: MoveColumns<'_>) {
    args.check();
    by_dtype!(args.from.buf, S => {
        let from = dev.read::<S>(args.from.buf);
        by_dtype!(args.to.buf, D => {
            let to = dev.write::<D>(args.to.buf);
            let each = args.heads * args.columns;
            split(dev, args.rows, each, &|part| {
                for row in part {
                    for head in 0..args.heads {
                        let at = |of: Columns<'_>| of.first + row * of.row + head * of.head;
                        let from = &from[at(args.from)..][..args.columns];
                        // SAFETY: blocks are apart, which `check` has asserted, and each row is one task's.
                        let to = unsafe { to.range(at(args.to), args.columns) };
                        move_block(from, to, args.order, args.add);
                    }
                }
            });
        });
    });
}

/// Panels of weights take whole matrices: columns are moved there and back.
pub(super) fn matmul_heads(dev: &CpuDevice, args: HeadProducts<'_>) {
    args.one_by_one(
        |args| move_columns(dev, args),
        |_, x, w, y| {
            if args.is_turned {
                matmul::backward_x(dev, x, w, y, false);
            } else {
                matmul::forward(dev, x, w, None, y, false);
            }
        },
    );
}

fn move_block<S: Real, D: Real>(from: &[S], to: &mut [D], order: ColumnOrder, add: bool) {
    let n = to.len();
    for (i, to) in to.iter_mut().enumerate() {
        let x = from[MoveColumns::source(order, n, i)].to_f32();
        *to = D::from_f32(if add { to.to_f32() + x } else { x });
    }
}
