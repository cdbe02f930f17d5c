//! Arrays of a step: masks over turns, and nothing of an earlier step in a later one.

use super::*;
use plimsoll_base::rng::{Stream, philox};
use plimsoll_rollout::Finish;

fn planned(sequences: usize, response_tokens: usize, parts: &[StepPart]) -> StepArrays {
    StepArrays { sequences, response_tokens, parts: parts.to_vec() }
}

#[test]
fn exactly_the_tokens_of_turns_are_trained_wherever_they_are() {
    for seed in 0..200 {
        let draw = |i: u64, bound: u32| philox(seed, Stream::Request, i, 0)[0] % bound;
        // Turns with gaps of any length, none among them.
        let (mut turns, mut at) = (Vec::new(), 0);
        for turn in 0..u64::from(1 + draw(0, 4)) {
            let start = at + draw(10 + turn, 3);
            let end = start + 1 + draw(20 + turn, 3);
            turns.push(Turn { start, end, finish: Finish::Eos });
            at = end;
        }
        let (before, length, after) = (draw(1, 4) as usize, (at + draw(2, 3)) as usize, draw(3, 4) as usize);
        let mut buffers = TokenArrays::bind(&planned(3, 40, &[]));
        buffers.begin([before, length, after].into_iter());
        buffers.train_only(1, &turns);
        for (t, mask) in buffers.mask.iter().enumerate() {
            let inside =
                |turn: &Turn| (before + turn.start as usize..before + turn.end as usize).contains(&t);
            let is_other = t < before || t >= before + length;
            let expect = is_other || turns.iter().any(inside);
            assert_eq!(*mask == 1.0, expect, "seed {seed}, token {t}: {turns:?}");
        }
        let drawn: u32 = turns.iter().map(|turn| turn.end - turn.start).sum();
        let trained = buffers.trained(&(1..2)).expect("a turn has a token");
        assert_eq!(trained, (f64::from(drawn), 1.0));
    }
}

#[test]
fn a_step_has_nothing_of_the_one_before_it() {
    let mut buffers = TokenArrays::bind(&planned(3, 4, &[StepPart::Values]));
    buffers.begin([4, 4, 4].into_iter());
    let poison = |buffers: &mut TokenArrays| {
        let values = buffers.values.as_mut().expect("they are planned");
        let arrays = [
            &mut buffers.old_logprobs,
            &mut buffers.ref_logprobs,
            &mut buffers.advantages,
            &mut buffers.token_rewards,
            &mut buffers.logprobs,
            &mut buffers.entropy,
            &mut buffers.d_logprobs,
            &mut buffers.d_entropy,
            &mut values.old_values,
            &mut values.returns,
            &mut values.values,
            &mut values.d_values,
            &mut buffers.mask,
        ];
        let lengths: Vec<usize> = arrays.iter().map(|array| array.len()).collect();
        let sums: Vec<f32> = arrays.iter().map(|array| array.iter().sum()).collect();
        arrays.into_iter().for_each(|array| array.fill(f32::NAN));
        (lengths, sums)
    };
    poison(&mut buffers);
    buffers.begin([1, 0, 2].into_iter());
    let (lengths, sums) = poison(&mut buffers);
    assert_eq!(lengths, [3; 13]);
    // The mask is 1 on every token, and all else is 0.
    assert_eq!((&sums[..12], sums[12]), (&[0.0; 12][..], 3.0));
    assert_eq!(buffers.offsets, [0, 1, 1, 3]);
}

#[test]
fn a_micro_batch_is_its_sequences_from_0() {
    let mut buffers = TokenArrays::bind(&planned(4, 3, &[StepPart::Values]));
    buffers.begin([3, 1, 2, 3].into_iter());
    buffers.logprobs.iter_mut().enumerate().for_each(|(t, logprob)| *logprob = -(t as f32));
    for first in 0..4 {
        for last in first + 1..=4 {
            let tokens = buffers.tokens(&(first..last));
            buffers.set_micro(&(first..last));
            let micro = buffers.micro_batch(tokens.clone());
            let sequences: Vec<Range<usize>> = micro.packed.sequences().collect();
            assert_eq!(sequences.len(), last - first);
            assert_eq!(sequences.last().map(|s| s.end), Some(tokens.len()));
            assert_eq!(micro.logprobs.first(), Some(&-(tokens.start as f32)));
        }
    }
}

#[test]
fn only_the_turns_that_a_row_says_are_learnt() {
    let mut buffers = TokenArrays::bind(&planned(2, 10, &[]));
    buffers.begin([10, 4].into_iter());
    buffers.learn_only(0, &[0..3, 5..6, 9..10]);
    assert_eq!(buffers.mask[..10], [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    // A row that says nothing is learnt as a whole.
    buffers.learn_only(1, &[]);
    assert_eq!(buffers.mask[10..], [1.0; 4]);
    buffers.leave_out(0);
    assert_eq!((buffers.trained(&(0..1)), buffers.trained(&(0..2))), (None, Some((4.0, 1.0))));
}
