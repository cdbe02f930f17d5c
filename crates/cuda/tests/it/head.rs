//! The head on a card: more rows than a chunk, more tokens than the CPU has time for, and buffers as they are planned.

use crate::both::Sized;
use crate::both::draws::{check_draws, check_frequencies};
use crate::both::head::{case, check_rows};
use crate::rig::{Card, on_card};
use plimsoll_base::DType::Bf16;
use plimsoll_cuda::CudaDevice;

fn open(buffers: &[Sized<'_>]) -> Vec<Card> {
    on_card(buffers).into_iter().collect()
}

#[test]
fn bits_of_more_rows_than_a_chunk_of_logits_do_not_depend_on_the_rows_beside() {
    check_rows(&open, case(1100, 20_008, 16, Bf16));
}

#[test]
fn frequencies_of_many_tokens_follow_the_softmax() {
    check_frequencies(&open, 9003);
}

#[test]
fn draws_of_many_tokens_stay_inside_the_set_that_sorting_gives() {
    check_draws(&open, 20_004, 2.0);
}

#[test]
fn planned_buffers_are_used_to_the_end() {
    for (rows, vocab) in [(1, 15), (70, 264), (5, 20_008)] {
        // Rows of no whole 16-byte units, so that logits are written on Hopper too.
        let case = case(rows, vocab, 60, Bf16);
        let Some(gpu) = on_card(&case.buffers::<CudaDevice>(1)) else { return };
        case.inputs().on(gpu).check_planned(&["tile", "dtile"]);
    }
}
