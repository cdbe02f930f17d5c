//! Products of the columns of heads with each head's rows of one matrix, and moves of blocks of columns.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Open, bits, check_close, f64s, matrix_len, normal};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_device::{ColumnOrder, Columns, HeadPart, HeadProducts, MoveColumns};

/// Elements between heads, and before the first.
const GAP: usize = 8;

/// Rows, heads, rows of a head's part, and inputs of the matrix.
const SHAPES: [[usize; 4]; 3] = [[1, 2, 16, 64], [70, 3, 32, 80], [200, 2, 128, 192]];

pub fn products_of_heads_are_close_and_rows_are_their_own<D: Machine>(open: Open<D>) {
    for ([m, heads, n, k], is_turned) in SHAPES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        for e in [Bf16, F32] {
            let (of_x, of_y) = if is_turned { (n, k) } else { (k, n) };
            let (x_row, y_row) = (GAP + heads * (of_x + GAP), GAP + heads * (of_y + GAP));
            let rows = 2 * n * heads;
            let sizes = [
                ("x", e, m * x_row),
                ("w", e, matrix_len(rows, k, e)),
                ("y", e, m * y_row),
                ("x room", e, heads * m * of_x),
                ("y room", e, heads * m * of_y),
            ];
            let what = format!("{m} rows, {heads} heads of [{n}, {k}], {}, turned: {is_turned}", e.name());
            for mut rig in open(&sizes) {
                let (x, w) = (normal(1, m * x_row, 1.0, e), normal(2, rows * k, 0.1, e));
                rig.set("x", &x);
                rig.set_matrix("w", rows, k, e, &w);
                rig.set("y", &vec![7.0; m * y_row]);
                let of = |name: &str, at: usize, row: usize, width: usize| Columns {
                    buf: rig.buf(name),
                    first: at * row + GAP,
                    row,
                    head: width + GAP,
                };
                let args = |first_row: usize, m: usize| HeadProducts {
                    x: of("x", first_row, x_row, of_x),
                    w: rig.matrix("w", rows, k, e),
                    part: HeadPart { first: n, step: 2 * n, rows: n },
                    y: of("y", first_row, y_row, of_y),
                    rows: m,
                    heads,
                    is_turned,
                    x_room: rig.buf("x room"),
                    y_room: rig.buf("y room"),
                };
                rig.dev.matmul_heads(args(0, m));
                let y = rig.get("y");
                let [x, w] = [f64s(&x), f64s(&w)];
                let (mut got, mut want, mut scale) = (vec![], vec![], vec![]);
                for (i, &value) in y.iter().enumerate() {
                    let (row, Some(at)) = (i / y_row, (i % y_row).checked_sub(GAP)) else {
                        assert_eq!(value, 7.0, "{what}: before the first head");
                        continue;
                    };
                    let (head, j) = (at / (of_y + GAP), at % (of_y + GAP));
                    if j >= of_y {
                        assert_eq!(value, 7.0, "{what}: after head {head} of row {row}");
                        continue;
                    }
                    let x = &x[row * x_row + GAP + head * (of_x + GAP)..][..of_x];
                    let w =
                        |l: usize| w[if is_turned { l * k + j } else { j * k + l } + (2 * head + 1) * n * k];
                    let terms = x.iter().enumerate().map(|(l, x)| x * w(l));
                    got.push(value);
                    want.push(terms.clone().sum::<f64>());
                    scale.push(terms.map(f64::abs).sum::<f64>() + 1e-30);
                }
                check_close(&got, &want, &scale, if e == Bf16 { 4e-3 } else { 1e-6 }, &what);
                // A row alone.
                rig.set("y", &vec![7.0; m * y_row]);
                rig.dev.matmul_heads(args(m / 2, 1));
                let row = m / 2 * y_row..(m / 2 + 1) * y_row;
                assert_eq!(bits(&rig.get("y")[row.clone()]), bits(&y[row]), "{what}: a row alone");
                rig.check_guards();
            }
        }
    }
}

pub fn blocks_of_columns_are_moved_in_each_order<D: Machine>(open: Open<D>) {
    // In whole eights on both sides, and not.
    for (columns, gap) in [(64, 8), (48, 0), (10, 3)] {
        let (m, heads) = (37, 3);
        let row = heads * (columns + gap);
        for (from, to) in [(Bf16, Bf16), (Bf16, F32), (F32, Bf16), (F32, F32)] {
            for mut rig in open(&[("from", from, m * row), ("to", to, heads * m * columns)]) {
                let x = normal(1, m * row, 1.0, Bf16);
                rig.set("from", &x);
                for order in [ColumnOrder::Same, ColumnOrder::ToHalves, ColumnOrder::ToPairs] {
                    rig.dev.move_columns(MoveColumns {
                        from: Columns { buf: rig.buf("from"), first: gap, row, head: columns + gap },
                        to: Columns::by_head(rig.buf("to"), m, columns),
                        rows: m,
                        heads,
                        columns,
                        order,
                        add: false,
                    });
                    let at = |i: usize| {
                        let (head, row_of, c) = (i / (m * columns), i / columns % m, i % columns);
                        let c = MoveColumns::source(order, columns, c);
                        row_of * row + gap + head * (columns + gap) + c
                    };
                    let want: Vec<f32> = (0..heads * m * columns).map(|i| x[at(i)]).collect();
                    assert_eq!(bits(&rig.get("to")), bits(&want), "{columns} columns, {order:?}");
                }
                rig.check_guards();
            }
        }
    }
}
