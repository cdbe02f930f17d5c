//! Attention on every path of the CPU, and what is the CPU's own: threads, and later values that are not finite.

use crate::both::attention::checks::{Cuts, GRADIENT_SHAPES, check_cuts, check_rows, to_cut};
use crate::both::attention::{
    FAMILY, Pass, SHAPES, Sequence, Shape, reference, sequences, shape, sunk, windowed,
};
use crate::both::{Rig, Sized, THREADS, bits, check_close, paths};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_cpu::Isa;
use plimsoll_device::{Device, SinkBackward};

/// Shapes whose heads have sinks, which cards do not compute.
const SUNK: [Shape; 5] = [
    sunk(shape(9, 3, 64, Bf16)),
    sunk(windowed(40, shape(16, 2, 64, Bf16))),
    sunk(windowed(37, shape(9, 3, 64, F32))),
    sunk(windowed(530, shape(3, 1, 48, F32))),
    sunk(shape(26, 1, 32, F32)),
];

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
            let run = |threads| pass.backward(&mut Rig::new(isa, threads, &pass.buffers()), &dout);
            assert!(run(1).map(|x| bits(&x)) == run(2).map(|x| bits(&x)), "{isa:?} {s:?}");
        }
    }
}

#[test]
fn sinks_are_in_every_softmax_once_however_many_chunks_it_has() {
    for window in [usize::MAX, 900, 512, 9] {
        let s = windowed(window, sunk(shape(3, 1, 32, F32)));
        check_rows(&open(true), s, 1100, 1010..1040, 1010..1040);
    }
}

#[test]
fn gradients_with_sinks_and_of_sinks_agree_with_f64() {
    for s in SUNK {
        let x = sequences(s, &FAMILY);
        let (pass, e) = (Pass::whole(s, &x), s.e);
        let dout = pass.dout();
        let (want, [of_sinks, sizes]) =
            (reference::gradients(s, &x, &dout), reference::sink_gradients(s, &x, &dout));
        for isa in paths() {
            let run = |threads, add| {
                let mut rig = Rig::new(isa, threads, &pass.buffers());
                let [_, dq, dkv] = pass.backward(&mut rig, &dout);
                rig.set("d_sinks", &vec![1.5; s.a]);
                let b = |name| rig.buf(name);
                rig.dev.sink_backward(SinkBackward {
                    sinks: b("sinks"),
                    out: b("out"),
                    lse: b("lse"),
                    dout: b("dout"),
                    grad: b("d_sinks"),
                    add,
                });
                (dq, dkv, rig.get("d_sinks"))
            };
            let (dq, dkv, d_sinks) = run(2, false);
            let what = format!("{isa:?} {s:?}");
            let close = |got: &[f32], want: &[f64], of: &str| {
                let size = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                check_close(
                    got,
                    want,
                    &vec![size; want.len()],
                    if e == Bf16 { 1e-2 } else { 2e-5 },
                    &format!("{of} {what}"),
                );
            };
            close(&dq, &want.0, "dq");
            close(&dkv, &want.1, "dkv");
            check_close(
                &d_sinks,
                &of_sinks,
                &sizes,
                if e == Bf16 { 1e-2 } else { 2e-5 },
                &format!("sinks {what}"),
            );
            assert_eq!(bits(&run(1, false).2), bits(&d_sinks), "{what}: threads");
            let added: Vec<f32> = d_sinks.iter().map(|d| 1.5 + d).collect();
            let both = run(2, true).2;
            check_close(&both, &added.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), &sizes, 1e-5, &what);
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
