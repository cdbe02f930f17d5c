//! Products of codes against those of the widened matrix, to the bit, for every path, number of rows and of threads.

use crate::both::{Rig, bits, blocks, normal, paths};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_base::Encoding::{Q4_0, Q4K, Q6K, Q8_0};
use plimsoll_device::Device;

const MATRICES: [blocks::Case; 3] =
    [(&[(Q8_0, 150)], 96), (&[(Q4_0, 100), (Q8_0, 61)], 288), (&[(Q4K, 130), (Q4K, 20), (Q6K, 37)], 512)];
const ROWS: usize = 300;

#[test]
fn products_of_codes_have_the_bits_of_the_widened_matrix() {
    for isa in paths() {
        for case in MATRICES {
            for types in [[F32, F32], [Bf16, Bf16], [Bf16, F32]] {
                [1, 2, 4].into_iter().for_each(|threads| {
                    check(case, types, || {
                        let (n, k) = shape(case);
                        let mut all = blocks::buffers(&plimsoll_cpu::LAYOUTS, case, types[0]);
                        let room = all.last().expect("the dense matrix").2;
                        all.extend([("room", types[0], room), ("x", types[0], ROWS * k)]);
                        all.extend([("want", types[1], ROWS * n), ("got", types[1], ROWS * n)]);
                        Rig::new(isa, threads, &all)
                    })
                });
            }
        }
    }
}

fn shape((parts, k): blocks::Case) -> (usize, usize) {
    (parts.iter().map(|(_, n)| n).sum(), k)
}

fn check(case: blocks::Case, [e, out]: [DType; 2], open: impl Fn() -> Rig) {
    let (n, k) = shape(case);
    for rows in [1, 9, ROWS] {
        let mut rig = open();
        let codes = blocks::fill(&rig, case);
        rig.set("x", &normal(7, ROWS * k, 1.0, e));
        let (dense, room) = (rig.matrix("dense", n, k, e), rig.matrix("room", n, k, e));
        let x = rig.buf("x").slice(0, rows * k);
        let [want, got] = ["want", "got"].map(|name| rig.buf(name).slice(0, rows * n));
        rig.dev.dequantize(codes, dense);
        rig.dev.matmul(x, dense, None, want, false);
        rig.dev.matmul_codes(x, codes, room, None, None, got);
        let what = format!("{case:?}, {rows} rows");
        assert!(bits(&rig.get("got")[..rows * n]) == bits(&rig.get("want")[..rows * n]), "{what}");
        if out == F32 {
            let resid = normal(8, ROWS * n, 1.0, F32);
            ["want", "got"].iter().for_each(|name| rig.set(name, &resid));
            rig.dev.matmul_add(x, dense, want, want);
            rig.dev.matmul_codes(x, codes, room, None, Some(got), got);
            assert!(bits(&rig.get("got")[..rows * n]) == bits(&rig.get("want")[..rows * n]), "{what}, added");
        }
        rig.check_guards();
    }
}
