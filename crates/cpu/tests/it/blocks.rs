//! Weights in the blocks of a file on every path of the machine.

use crate::both::{Rig, blocks, paths};
use plimsoll_base::DType::{Bf16, F32};

#[test]
fn blocks_become_their_numbers_on_every_path() {
    for isa in paths() {
        for case in blocks::CASES {
            for e in [F32, Bf16] {
                let mut rig = Rig::new(isa, 2, &blocks::buffers(&plimsoll_cpu::LAYOUTS, case, e));
                blocks::check(&mut rig, case, e, isa.name());
            }
        }
    }
}
