//! Two sequences of operations side by side.

use crate::both::{Rig, bits, get, numbers, paths};
use plimsoll_base::DType;
use plimsoll_device::{Activation, Backend, Device};

#[test]
fn what_runs_side_by_side_has_the_bits_of_one_after_the_other() {
    let mut results = Vec::new();
    for threads in [1, 2, 3] {
        let isa = paths().last().expect("every machine has one");
        let rig = Rig::new(isa, threads, &["a", "b"].map(|name| (name, DType::F32, 50_000)));
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
