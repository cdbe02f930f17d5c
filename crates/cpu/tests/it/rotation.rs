//! Rotation: gradients in f64 that are differences, and bits that threads do not change.

use crate::both::rotation::{cases, check_reference};
use crate::both::{Rig, bits, paths};

#[test]
fn gradients_of_the_reference_of_rotation_are_slopes() {
    check_reference();
}

#[test]
fn threads_change_no_bit_of_rotation() {
    for case in cases().into_iter().filter(|case| case.heads.head_dim == 48) {
        let inputs = case.inputs();
        for isa in paths() {
            let run = |threads| {
                let rig = Rig::new(isa, threads, &case.buffers());
                let gradients = inputs.backward(&rig).map(|x| bits(&x));
                case.forward(&rig);
                (gradients, ["q", "keys", "values"].map(|name| bits(&rig.get(name))))
            };
            assert!(run(1) == run(2), "{case:?}, {isa:?}");
        }
    }
}
