//! Weights of 4 bits on a card.

use crate::both::nf4;
use crate::rig::on_card;
use plimsoll_base::DType::{Bf16, F32};

#[test]
fn codes_become_their_numbers() {
    for shape in nf4::SHAPES {
        for e in [F32, Bf16] {
            let Some(mut gpu) = on_card(&nf4::buffers(&plimsoll_cuda::LAYOUTS, shape, e)) else { return };
            nf4::check(&mut gpu, shape, e, "a card");
        }
    }
}
