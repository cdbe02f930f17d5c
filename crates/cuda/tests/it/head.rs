//! The head on a card: more rows than a chunk, more tokens than the CPU has time for, and buffers as they are planned.

use crate::both::draws::{check_draws, check_frequencies, check_keys};
use crate::both::head::{case, check_rows};
use crate::rig::{on_card, run_on_card};
use plimsoll_base::DType::Bf16;
use plimsoll_cuda::CudaDevice;

#[test]
fn bits_of_more_rows_than_a_chunk_of_logits_do_not_depend_on_the_rows_beside() {
    run_on_card(|open| check_rows(open, case(1100, 20_008, 16, Bf16)));
}

#[test]
fn frequencies_of_many_tokens_follow_the_softmax() {
    run_on_card(|open| check_frequencies(open, 9003));
}

#[test]
fn draws_of_many_tokens_stay_inside_the_set_that_sorting_gives() {
    run_on_card(|open| check_draws(open, 20_004, 2.0));
}

#[test]
fn a_draw_of_many_tokens_depends_on_its_key_alone() {
    run_on_card(|open| check_keys(open, 20_008));
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
