//! Attention on every path of the CPU, and what is the CPU's own: threads, and later values that are not finite.

use crate::both::attention::checks::{Cuts, GRADIENT_SHAPES, check_cuts, check_rows, to_cut};
use crate::both::attention::{FAMILY, Pass, SHAPES, reference, sequences, shape};
use crate::both::{Rig, Sized, bits, paths};
use plimsoll_base::DType::Bf16;
use plimsoll_cpu::Isa;

fn one(isa: Isa) -> impl Fn(&[Sized<'_>]) -> Vec<Rig> {
    move |buffers| vec![Rig::new(isa, 2, buffers)]
}

#[test]
fn rows_are_close_to_the_f64_reference() {
    for isa in paths() {
        let len = if isa == Isa::Scalar { 70 } else { 150 };
        for s in SHAPES {
            check_rows(&one(isa), s, len, 0..len, (0..len).step_by(13));
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_calls_segments_threads_or_unused_slots() {
    let bounds = |p| vec![p + 1];
    // The widest take their time and no way of their own.
    for s in SHAPES.into_iter().filter(|s| s.a * s.d <= 1000) {
        for (long, prefills) in [(83, [64, 80]), (560, [500, 513])] {
            let x = to_cut(s, long);
            let (whole, decodes) = (Pass::whole(s, &x), [0, 1, 14, 15, 16, 31, 32, long - 1]);
            for isa in paths().filter(|&isa| (isa == Isa::Scalar) == (long < 100)) {
                check_cuts(&one(isa), s, &x, &Cuts { prefills: &prefills, decodes: &decodes, bounds });
                let run =
                    |threads| whole.forward(&mut Rig::new(isa, threads, &whole.buffers())).map(|x| bits(&x));
                assert!(run(1) == run(2), "{isa:?} {s:?}: threads");
            }
        }
    }
}

#[test]
fn threads_change_no_bit_of_gradients_of_attention() {
    for (s, isa) in GRADIENT_SHAPES.into_iter().flat_map(|s| paths().map(move |isa| (s, isa))) {
        let pass = Pass::whole(s, &sequences(s, &FAMILY));
        let run = |threads| pass.backward(&mut Rig::new(isa, threads, &pass.buffers()), &pass.dout());
        assert!(run(1).map(|x| bits(&x)) == run(2).map(|x| bits(&x)), "{isa:?} {s:?}");
    }
}

#[test]
fn a_later_value_that_is_not_finite_does_not_reach_earlier_rows() {
    let s = shape(9, 3, 64, Bf16);
    for isa in paths() {
        let mut x = sequences(s, &[(None, 0, 40)]);
        let good = Pass::whole(s, &x).each(&one(isa)).swap_remove(0);
        let width = s.k * s.d;
        x[0].v[21 * width..22 * width].fill(f32::NAN);
        x[0].k[21 * width..22 * width].fill(f32::INFINITY);
        let bad = Pass::whole(s, &x).each(&one(isa)).swap_remove(0);
        let row = s.a * s.d;
        assert_eq!(bits(&good[0][..21 * row]), bits(&bad[0][..21 * row]), "{isa:?}");
        assert!(bad[0][21 * row..22 * row].iter().all(|x| x.is_nan()), "{isa:?}");
    }
}

#[test]
fn the_gradients_of_the_reference_of_attention_are_slopes() {
    reference::check();
}
