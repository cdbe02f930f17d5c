//! Weights in the blocks of a file on a card.

use crate::both::blocks;
use crate::rig::on_card;
use plimsoll_base::DType::{Bf16, F32};

#[test]
fn blocks_become_their_numbers() {
    for case in blocks::CASES {
        for e in [F32, Bf16] {
            let Some(mut gpu) = on_card(&blocks::buffers(&plimsoll_cuda::LAYOUTS, case, e)) else { return };
            blocks::check(&mut gpu, case, e, "a card");
        }
    }
}
