//! tanh and relu, and their gradients, against f64.

use super::{Machine, Open, bits, check_close, close, normal};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_device::Activation;

fn f(how: Activation, x: f64) -> f64 {
    match how {
        Activation::Tanh => x.tanh(),
        Activation::Relu => x.max(0.0),
    }
}

pub fn activations_and_their_gradients_are_close_also_in_place<D: Machine>(open: Open<D>) {
    let n = 10_007;
    for (e, tolerance) in [(F32, 5e-7), (Bf16, 1.0 / 128.0)] {
        for how in [Activation::Tanh, Activation::Relu] {
            for mut rig in open(&["x", "y", "dy", "dx"].map(|name| (name, e, n))) {
                // Of a few units: tanh is flat at both ends.
                let (x, dy) = (normal(1, n, 3.0, e), normal(2, n, 1.0, e));
                rig.set("x", &x);
                rig.set("dy", &dy);
                let (dev, b) = rig.bufs();
                let [bx, by, bdy, bdx] = ["x", "y", "dy", "dx"].map(|name| b.buf(name));
                dev.activate(how, bx, by);
                let y = rig.get("y");
                let want: Vec<f64> = x.iter().map(|&x| f(how, x.into())).collect();
                close("y", &y, &want, if how == Activation::Relu { 0.0 } else { tolerance });
                dev.activate_backward(how, by, bdy, bdx);
                let slope = |y: f32| match how {
                    Activation::Tanh => 1.0 - f64::from(y) * f64::from(y),
                    Activation::Relu => f64::from(u8::from(y > 0.0)),
                };
                let want: Vec<f64> = y.iter().zip(&dy).map(|(&y, &d)| f64::from(d) * slope(y)).collect();
                let apart = rig.get("dx");
                let scale: Vec<f64> = dy.iter().map(|&d| f64::from(d).abs().max(1.0)).collect();
                check_close(&apart, &want, &scale, tolerance, "dx");
                dev.activate(how, bx, bx);
                dev.activate_backward(how, bx, bdy, bdy);
                assert_eq!(bits(&rig.get("x")), bits(&y), "{how:?} in place");
                assert_eq!(bits(&rig.get("dy")), bits(&apart), "{how:?} backward in place");
                rig.check_guards();
            }
        }
    }
}

pub fn activations_of_the_ends_are_what_they_should_be<D: Machine>(open: Open<D>) {
    for rig in open(&["x", "y"].map(|name| (name, F32, 5))) {
        rig.set("x", &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, 1e-30]);
        rig.dev.activate(Activation::Tanh, rig.buf("x"), rig.buf("y"));
        let y = rig.get("y");
        assert!((y[0] - 1.0).abs() < 1e-6 && (y[1] + 1.0).abs() < 1e-6, "{y:?}");
        assert!(y[2].is_nan() && y[3] == 0.0 && (y[4] / 1e-30 - 1.0).abs() < 1e-6, "{y:?}");
        rig.dev.activate(Activation::Relu, rig.buf("x"), rig.buf("y"));
        let y = rig.get("y");
        assert!(y[0] == f32::INFINITY && y[1] == 0.0 && y[2].is_nan(), "{y:?}");
    }
}
