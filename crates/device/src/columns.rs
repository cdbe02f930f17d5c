//! Moving blocks of columns: between rows that have the columns of all heads and matrices of one head each. Products of
//! heads' columns with each head's rows of a matrix.

use crate::Matrix;
use plimsoll_memory::Buf;

/// Blocks of columns in a buffer, one of each head in each row.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// e or f32.
    pub buf: Buf<'a>,
    /// Index of the first element of row 0 and head 0.
    pub first: usize,
    /// Elements from a row to the next.
    pub row: usize,
    /// Elements from a head to the next.
    pub head: usize,
}

/// The order of a block's elements on the other side of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnOrder {
    /// The same.
    Same,
    /// Element 2i becomes element i, and 2i + 1 becomes n/2 + i: pairs for a rotation of halves.
    ToHalves,
    /// The inverse of `ToHalves`.
    ToPairs,
}

/// Copies blocks of columns, rounding once if the dtypes differ.
#[derive(Clone, Copy, Debug)]
pub struct MoveColumns<'a> {
    pub from: Columns<'a>,
    /// Elements outside of the blocks stay.
    pub to: Columns<'a>,
    pub rows: usize,
    pub heads: usize,
    /// n: elements of a block.
    pub columns: usize,
    pub order: ColumnOrder,
    /// True if blocks of f32 are added to, false if overwritten.
    pub add: bool,
}

/// Rows of a matrix of weights that are a head's.
#[derive(Clone, Copy, Debug)]
pub struct HeadPart {
    /// The first one of head 0.
    pub first: usize,
    /// From a head's first to the next one's.
    pub step: usize,
    /// Rows of a head.
    pub rows: usize,
}

/// Products of each head: y = x W^T, or x W where `is_turned`, with the head's rows of W, rounded once.
#[derive(Clone, Copy, Debug)]
pub struct HeadProducts<'a> {
    pub x: Columns<'a>,
    /// The rows of all heads, and those between them.
    pub w: Matrix<'a>,
    pub part: HeadPart,
    /// Elements outside of the blocks stay.
    pub y: Columns<'a>,
    pub rows: usize,
    pub heads: usize,
    pub is_turned: bool,
    /// Room for x as matrices of heads, one after another.
    pub x_room: Buf<'a>,
    /// Room for y as matrices of heads.
    pub y_room: Buf<'a>,
}

impl<'a> HeadProducts<'a> {
    /// Returns the columns of a head in x and in y.
    pub fn widths(&self) -> [usize; 2] {
        if self.is_turned { [self.part.rows, self.w.k] } else { [self.w.k, self.part.rows] }
    }

    /// Computes them by moves and products of whole matrices: of a head, and of its x, W and y.
    pub fn one_by_one(
        &self,
        move_columns: impl Fn(MoveColumns<'a>),
        product: impl Fn(usize, Buf<'a>, Matrix<'a>, Buf<'a>),
    ) {
        let HeadProducts { rows, heads, part, .. } = *self;
        let [of_x, of_y] = self.widths();
        let by_head =
            |room: Buf<'a>, width| Columns::by_head(room.slice(0, heads * rows * width), rows, width);
        let [x, y] = [by_head(self.x_room, of_x), by_head(self.y_room, of_y)];
        let moves = |from, to, columns| {
            move_columns(MoveColumns {
                from,
                to,
                rows,
                heads,
                columns,
                order: ColumnOrder::Same,
                add: false,
            });
        };
        moves(self.x, x, of_x);
        for head in 0..heads {
            let w = self.w.rows(part.first + head * part.step, part.rows);
            product(head, x.buf.part(head, rows * of_x), w, y.buf.part(head, rows * of_y));
        }
        moves(y, self.y, of_y);
    }
}

impl<'a> Columns<'a> {
    /// Returns `width` columns of rows as one block each.
    pub fn of_rows(buf: Buf<'a>, first: usize, width: usize) -> Columns<'a> {
        Columns { buf, first, row: width, head: 0 }
    }

    /// Returns matrices `[rows, width]`, one of each head.
    pub fn by_head(buf: Buf<'a>, rows: usize, width: usize) -> Columns<'a> {
        Columns { buf, first: 0, row: width, head: rows * width }
    }
}

impl MoveColumns<'_> {
    /// Asserts that all blocks are inside of their buffers, and that no two of `to` overlap.
    pub fn check(&self) {
        let (rows, heads, n) = (self.rows, self.heads, self.columns);
        if rows * heads == 0 {
            return;
        }
        for of in [self.from, self.to] {
            let last = of.first + (rows - 1) * of.row + (heads - 1) * of.head + n;
            assert!(last <= of.buf.len(), "blocks of {n} up to {last} of {}", of.buf.len());
        }
        let Columns { row, head, .. } = self.to;
        // Rows of a head inside of each other's gaps, or heads of a row.
        let (of_rows, of_heads) = ((rows - 1) * row + n, (heads - 1) * head + n);
        let is_apart = |steps: usize, step: usize, inner: usize| steps == 1 || step >= inner;
        let by_row = is_apart(rows, row, of_heads) && is_apart(heads, head, n);
        let by_head = is_apart(heads, head, of_rows) && is_apart(rows, row, n);
        assert!(by_row || by_head, "blocks of {n}, {row} and {head} apart");
        assert!(self.order == ColumnOrder::Same || n.is_multiple_of(2), "{n} elements are pairs");
        assert!(!self.add || self.to.buf.dtype() == plimsoll_base::DType::F32, "sums are f32");
    }

    /// Returns where an element of a block comes from.
    pub fn source(order: ColumnOrder, n: usize, i: usize) -> usize {
        match order {
            ColumnOrder::Same => i,
            ColumnOrder::ToHalves if i < n / 2 => 2 * i,
            ColumnOrder::ToHalves => 2 * (i - n / 2) + 1,
            ColumnOrder::ToPairs => i / 2 + i % 2 * (n / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_pairs_are_inverse() {
        for n in [2, 8, 64] {
            let there: Vec<usize> =
                (0..n).map(|i| MoveColumns::source(ColumnOrder::ToHalves, n, i)).collect();
            let back: Vec<usize> =
                (0..n).map(|i| there[MoveColumns::source(ColumnOrder::ToPairs, n, i)]).collect();
            assert_eq!(back, (0..n).collect::<Vec<_>>());
        }
        let halves: Vec<usize> = (0..6).map(|i| MoveColumns::source(ColumnOrder::ToHalves, 6, i)).collect();
        assert_eq!(halves, [0, 2, 4, 1, 3, 5]);
    }
}
