//! tanh and relu, their gradients, and two sequences of operations side by side.

use crate::fixture::{Rig, bits, close, get, numbers, paths, stored};
use plimsoll_base::DType;
use plimsoll_device::{Activation, Device};

fn f(how: Activation, x: f64) -> f64 {
    match how {
        Activation::Tanh => x.tanh(),
        Activation::Relu => x.max(0.0),
    }
}

#[test]
fn activations_and_their_gradients_are_close_also_in_place() {
    for isa in paths() {
        for (e, tolerance) in [(DType::F32, 5e-7), (DType::Bf16, 1.0 / 128.0)] {
            for how in [Activation::Tanh, Activation::Relu] {
                let n = 10_007;
                // From -9 to 9: both ends are flat.
                let scaled: Vec<f32> = numbers(1, n).iter().map(|x| 9.0 * x).collect();
                let (x, dy) = (stored(e, &scaled), stored(e, &numbers(2, n)));
                let mut rig = Rig::new(isa, 2, &["x", "y", "dy", "dx"].map(|name| (name, e, n)));
                let (dev, r) = rig.bufs();
                dev.write_f32(r.buf("x"), 0, &x);
                dev.write_f32(r.buf("dy"), 0, &dy);
                dev.activate(how, r.buf("x"), r.buf("y"));
                let y = get(dev, r.buf("y"));
                let exact: Vec<f64> = x.iter().map(|&x| f(how, x.into())).collect();
                close("y", &y, &exact, if how == Activation::Relu { 0.0 } else { tolerance });
                dev.activate_backward(how, r.buf("y"), r.buf("dy"), r.buf("dx"));
                let slope = |y: f32| match how {
                    Activation::Tanh => 1.0 - f64::from(y) * f64::from(y),
                    Activation::Relu => f64::from(u8::from(y > 0.0)),
                };
                let exact: Vec<f64> = y.iter().zip(&dy).map(|(&y, &d)| f64::from(d) * slope(y)).collect();
                let apart = get(dev, r.buf("dx"));
                close("dx", &apart, &exact, tolerance);
                dev.activate(how, r.buf("x"), r.buf("x"));
                dev.activate_backward(how, r.buf("x"), r.buf("dy"), r.buf("dy"));
                assert_eq!(bits(&get(dev, r.buf("x"))), bits(&y));
                assert_eq!(bits(&get(dev, r.buf("dy"))), bits(&apart));
            }
        }
    }
}

#[test]
fn activations_of_the_ends_are_what_they_should_be() {
    for isa in paths() {
        let mut rig = Rig::new(isa, 1, &["x", "y"].map(|name| (name, DType::F32, 5)));
        let (dev, r) = rig.bufs();
        dev.write_f32(r.buf("x"), 0, &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, 1e-30]);
        dev.activate(Activation::Tanh, r.buf("x"), r.buf("y"));
        let y = get(dev, r.buf("y"));
        assert!((y[0] - 1.0).abs() < 1e-6 && (y[1] + 1.0).abs() < 1e-6, "{y:?}");
        assert!(y[2].is_nan() && y[3] == 0.0 && (y[4] / 1e-30 - 1.0).abs() < 1e-6, "{y:?}");
        dev.activate(Activation::Relu, r.buf("x"), r.buf("y"));
        let y = get(dev, r.buf("y"));
        assert!(y[0] == f32::INFINITY && y[1] == 0.0 && y[2].is_nan(), "{y:?}");
    }
}

#[test]
fn what_runs_side_by_side_has_the_bits_of_one_after_the_other() {
    let mut results = Vec::new();
    for threads in [1, 2, 3] {
        let isa = paths().last().expect("every machine has one");
        let mut rig = Rig::new(isa, threads, &["a", "b"].map(|name| (name, DType::F32, 50_000)));
        let (dev, r) = rig.bufs();
        let (a, b) = (r.buf("a"), r.buf("b"));
        dev.write_f32(a, 0, &numbers(1, 50_000));
        dev.write_f32(b, 0, &numbers(2, 50_000));
        let twice = |x| {
            dev.activate(Activation::Tanh, x, x);
            dev.activate(Activation::Relu, x, x);
        };
        dev.both(&|| twice(a), &|| twice(b));
        results.push((bits(&get(dev, a)), bits(&get(dev, b))));
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}
