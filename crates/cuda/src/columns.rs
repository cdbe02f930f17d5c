//! Launcher of `columns.cu`: blocks of columns between rows and matrices of heads.

use super::rows::{blocks, typed};
use super::{Arg, CudaDevice, count};
use plimsoll_base::DType;
use plimsoll_device::{ColumnOrder, Columns, MoveColumns};

/// Elements that a thread moves at once.
const EIGHT: usize = 8;

pub(crate) fn move_columns(dev: &CudaDevice, args: MoveColumns<'_>) {
    args.check();
    let MoveColumns { from, to, rows, heads, columns, order, add } = args;
    let items = rows * heads * columns;
    if items == 0 {
        return;
    }
    let place = |of: Columns<'_>| [of.first, of.row, of.head].map(|n| Arg::U64(n as u64));
    let order = match order {
        ColumnOrder::Same => 0,
        ColumnOrder::ToHalves => 1,
        ColumnOrder::ToPairs => 2,
    };
    let operands = [&[dev.arg(from.buf), dev.arg(to.buf)], &place(from)[..], &place(to)].concat();
    if !add && from.buf.dtype() == DType::Bf16 && in_eights(dev, from, to, columns) {
        let (pieces, eights) = (columns / EIGHT, items / EIGHT);
        let args = [&operands[..], &[heads, pieces, order, eights].map(count)].concat();
        return dev.launch("columns", typed!("move_eights", to.buf), blocks(eights, 256, 256), &args);
    }
    let name = match from.buf.dtype() {
        DType::F32 => typed!("move_columns_float", to.buf),
        _ => typed!("move_columns_bf16", to.buf),
    };
    let sizes = [heads, columns, order, usize::from(add)].map(count);
    let args = [&operands[..], &sizes, &[Arg::U64(items as u64)]].concat();
    dev.launch("columns", name, blocks(items, 256, 256), &args);
}

/// True if blocks on both sides begin and end at whole 16-byte pieces, few enough to be counted in 32 bits.
fn in_eights(dev: &CudaDevice, from: Columns<'_>, to: Columns<'_>, columns: usize) -> bool {
    let is_whole = |of: Columns<'_>| {
        let at_eights = [of.first, of.row, of.head].iter().all(|n| n.is_multiple_of(EIGHT));
        at_eights && dev.address(of.buf).is_multiple_of(16) && of.buf.len() < 1 << 32
    };
    columns.is_multiple_of(EIGHT) && is_whole(from) && is_whole(to)
}
