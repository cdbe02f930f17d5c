//! Weights of 4 bits on every path of the machine.

use crate::both::{Rig, nf4, paths};
use plimsoll_base::DType::{Bf16, F32};

#[test]
fn codes_become_their_numbers_on_every_path() {
    for isa in paths() {
        for shape in nf4::SHAPES {
            for e in [F32, Bf16] {
                let mut rig = Rig::new(isa, 2, &nf4::buffers(&plimsoll_cpu::LAYOUTS, shape, e));
                nf4::check(&mut rig, shape, e, isa.name());
            }
        }
    }
}
