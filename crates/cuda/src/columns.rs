//! Launcher of `columns.cu`: blocks of columns between rows and matrices of heads.

use super::rows::{blocks, typed};
use super::{Arg, CudaDevice, count};
use plimsoll_base::DType;
use plimsoll_device::{ColumnOrder, Columns, MoveColumns};

pub(crate) fn move_columns(dev: &CudaDevice, args: MoveColumns<'_>) {
    args.check();
    let MoveColumns { from, to, rows, heads, columns, order, add } = args;
    let items = rows * heads * columns;
    if items == 0 {
        return;
    }
    let name = match from.buf.dtype() {
        DType::F32 => typed!("move_columns_float", to.buf),
        _ => typed!("move_columns_bf16", to.buf),
    };
    let place = |of: Columns<'_>| [of.first, of.row, of.head].map(|n| Arg::U64(n as u64));
    let order = match order {
        ColumnOrder::Same => 0,
        ColumnOrder::ToHalves => 1,
        ColumnOrder::ToPairs => 2,
    };
    let sizes = [heads, columns, order, usize::from(add)].map(count);
    let args = [
        &[dev.arg(from.buf), dev.arg(to.buf)],
        &place(from)[..],
        &place(to),
        &sizes,
        &[Arg::U64(items as u64)],
    ]
    .concat();
    dev.launch("columns", name, blocks(items, 256, 256), &args);
}
