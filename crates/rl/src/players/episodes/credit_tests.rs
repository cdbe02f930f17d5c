//! Rewards of turns, and what of an episode is trained.

use super::*;
use plimsoll_algo::{
    advantage::{Gae, discounted_returns, token_rewards},
    packed::Packed,
};
use plimsoll_plan::{StepArrays, StepPart};
use plimsoll_rollout::Finish;

const TURNS: [Turn; 3] = [
    Turn { start: 0, end: 2, finish: Finish::Eos },
    Turn { start: 5, end: 6, finish: Finish::Length },
    Turn { start: 7, end: 9, finish: Finish::Eos },
];

/// One episode of three turns with three and one tokens between them.
fn buffers() -> TokenArrays {
    let of = StepArrays { sequences: 1, response_tokens: 9, parts: vec![StepPart::Values] };
    let mut buffers = TokenArrays::bind(&of);
    buffers.begin([9].into_iter());
    buffers.train_only(0, &TURNS);
    buffers
}

#[test]
fn only_what_was_drawn_is_trained() {
    let mut buffers = buffers();
    assert_eq!(buffers.mask, [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
    // A response of one turn is trained whole.
    buffers.begin([2].into_iter());
    buffers.train_only(0, &TURNS[..1]);
    assert_eq!(buffers.mask, [1.0, 1.0]);
}

#[test]
fn a_credited_reward_reaches_its_turn_and_those_before_it() {
    let mut buffers = buffers();
    let packed = Packed { mask: &buffers.mask, seq_offsets: &buffers.offsets };
    token_rewards(packed, &[4.0], None, &mut buffers.token_rewards);
    credit_earlier(&TURNS, &[1.0, 20.0, 4.0], &mut buffers.token_rewards);
    assert_eq!(buffers.token_rewards, [0.0, 1.0, 0.0, 0.0, 0.0, 10.0, 0.0, 0.0, 4.0]);
    discounted_returns(1.0, packed, &buffers.token_rewards, &mut buffers.advantages);
    assert_eq!(buffers.advantages, [15.0, 15.0, 0.0, 0.0, 0.0, 14.0, 0.0, 4.0, 4.0]);
    // GAE skips the holes, whatever their values are.
    let values = buffers.mask.iter().map(|mask| if *mask == 0.0 { f32::NAN } else { 0.5 }).collect();
    buffers.values_mut().old_values = values;
    crate::methods::critic::gae_advantages(&Gae::default(), &mut buffers);
    assert_eq!(buffers.values().returns, [15.0, 15.0, 0.0, 0.0, 0.0, 14.0, 0.0, 4.0, 4.0]);
}
