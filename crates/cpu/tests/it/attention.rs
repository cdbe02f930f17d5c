//! Attention on every path of the CPU, and what is the CPU's own: threads, and later values that are not finite.

use crate::both::attention::checks::{Cuts, GRADIENT_SHAPES, check_cuts, check_rows, to_cut};
use crate::both::attention::{FAMILY, Pass, SHAPES, SUNK, Sequence, reference, sequences, shape};
use crate::both::{Rig, Sized, THREADS, bits, paths};
use plimsoll_base::DType::Bf16;
use plimsoll_cpu::Isa;

/// The paths of vectors, or the one without, which has time for short sequences only.
fn some(vectors: bool) -> impl Iterator<Item = Isa> {
    paths().filter(move |&isa| (isa != Isa::Scalar) == vectors)
}

fn open(vectors: bool) -> impl Fn(&[Sized<'_>]) -> Vec<Rig> {
    move |buffers| some(vectors).map(|isa| Rig::new(isa, THREADS, buffers)).collect()
}

#[test]
fn rows_are_close_to_the_f64_reference() {
    for s in SHAPES.into_iter().chain(SUNK) {
        for (vectors, len) in [(false, 70), (true, 150)] {
            check_rows(&open(vectors), s, len, 0..len, (0..len).step_by(13));
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_calls_segments_threads_or_unused_slots() {
    // The widest take their time and no way of their own.
    for s in SHAPES.into_iter().chain(SUNK).filter(|s| s.a * s.d <= 1000) {
        for (vectors, long, prefills) in [(false, 83, [64, 80]), (true, 560, [500, 513])] {
            let (x, decodes) = (to_cut(s, long), [0, 1, 14, 15, 16, 31, 32, long - 1]);
            let cuts = Cuts { prefills: &prefills, decodes: &decodes, bounds: |p| vec![p + 1] };
            let two = check_cuts(&open(vectors), s, &x, &cuts);
            for (isa, two) in some(vectors).zip(two) {
                let whole = Pass::whole(s, &x);
                let one = whole.forward(&mut Rig::new(isa, 1, &whole.buffers()));
                assert!(one.map(|x| bits(&x)) == two.map(|x| bits(&x)), "{isa:?} {s:?}: threads");
            }
        }
    }
}

#[test]
fn threads_change_no_bit_of_gradients_of_attention() {
    for s in GRADIENT_SHAPES.into_iter().chain(SUNK) {
        let pass = Pass::whole(s, &sequences(s, &FAMILY));
        let dout = pass.dout();
        for isa in paths() {
            let run = |threads| {
                let mut rig = Rig::new(isa, threads, &pass.buffers());
                let of_sinks = |rig: &mut Rig| s.sunk.then(|| bits(&pass.sink_backward(rig, None)));
                (pass.backward(&mut rig, &dout).map(|x| bits(&x)), of_sinks(&mut rig))
            };
            assert!(run(1) == run(2), "{isa:?} {s:?}");
        }
    }
}

#[test]
fn a_later_value_that_is_not_finite_does_not_reach_earlier_rows() {
    let s = shape(9, 3, 64, Bf16);
    let mut x = sequences(s, &[(None, 0, 40)]);
    let all = |x: &[Sequence]| Pass::whole(s, x).each(&|b| paths().map(|isa| Rig::new(isa, 1, b)).collect());
    let good = all(&x);
    let (width, row) = (s.k * s.d, s.a * s.d);
    x[0].v[21 * width..22 * width].fill(f32::NAN);
    x[0].k[21 * width..22 * width].fill(f32::INFINITY);
    for (isa, ([good, _], [bad, _])) in paths().zip(good.iter().zip(&all(&x))) {
        assert_eq!(bits(&good[..21 * row]), bits(&bad[..21 * row]), "{isa:?}");
        assert!(bad[21 * row..22 * row].iter().all(|x| x.is_nan()), "{isa:?}");
    }
}

#[test]
fn the_gradients_of_the_reference_of_attention_are_slopes() {
    reference::check();
}
