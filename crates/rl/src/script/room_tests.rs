//! Arrays that belong together, and those that do not.

use super::super::fault::Fault;
use super::*;

const LIMITS: ScriptLimits = ScriptLimits {
    sequences: 3,
    prompt_tokens: 4,
    response_tokens: 2,
    vocab: 10,
    rows_bytes: 8,
    state_bytes: 8,
};

fn arrays() -> ScriptArrays {
    let mut arrays = ScriptArrays::bind(LIMITS).0;
    arrays.prompts.extend([1, 2, 3]);
    arrays.prompt_offsets.extend([0, 2, 3]);
    arrays.tokens.extend([4, 5, 6, 7]);
    arrays.offsets.extend([0, 1, 3, 4]);
    arrays.owners.extend([0, 0, 1]);
    arrays
}

#[test]
fn sequences_are_cut_by_their_offsets_and_share_their_prompts() {
    let arrays = arrays();
    let Ok(sequences) = arrays.sequences() else { panic!("they are whole") };
    let shown: Vec<_> = sequences.iter().map(|s| (s.group, s.prompt, s.response)).collect();
    assert_eq!(shown, [(0, &[1, 2][..], &[4][..]), (0, &[1, 2], &[5, 6]), (1, &[3], &[7])]);
}

#[test]
fn arrays_that_do_not_belong_together_are_refused_by_name() {
    type Edit = fn(&mut ScriptArrays);
    let cases: [(Edit, &str); 9] = [
        (|a| a.offsets.clear(), "`offsets`"),
        (|a| a.offsets[3] = 5, "`offsets`"),
        (|a| a.offsets[2] = 1, "a part has no token"),
        (|a| a.offsets[1] = 3, "do not ascend"),
        (|a| a.owners[2] = 2, "prompt 2 of 2"),
        (|a| a.owners[0] = 1, "next to each other"),
        (|a| a.owners.truncate(2), "2 entries for 3 sequences"),
        (|a| a.tokens[1] = 10, "token 10 of a vocabulary of 10"),
        (|a| a.prompts[1] = u32::MAX, "`prompts`"),
    ];
    for (edit, words) in cases {
        let mut arrays = arrays();
        edit(&mut arrays);
        match arrays.sequences() {
            Err(Fault::OfRequest(error)) => {
                assert_eq!(error.slug, "script-bad-array");
                assert!(error.message.contains(words), "{words}: {error}");
            }
            other => panic!("{words}: {other:?}"),
        }
    }
}

#[test]
fn a_response_beyond_the_plan_is_refused_with_its_numbers() {
    let mut arrays = arrays();
    (arrays.offsets, arrays.owners) = (vec![0, 1, 4], vec![0, 1]);
    match arrays.sequences() {
        Err(Fault::OfRequest(error)) => assert_eq!(error.slug, "script-too-large"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_room_is_what_its_row_says() {
    let (arrays, gradients) = ScriptArrays::bind(LIMITS);
    let words = |numbers: &[&Vec<u32>]| numbers.iter().map(|n| 4 * n.capacity()).sum::<usize>();
    let numbers = |numbers: &[&Vec<f32>]| numbers.iter().map(|n| 4 * n.capacity()).sum::<usize>();
    let own =
        words(&[&arrays.tokens, &arrays.offsets, &arrays.owners, &arrays.prompts, &arrays.prompt_offsets])
            + numbers(&[&arrays.logprobs, &arrays.reference, &arrays.advantages, &arrays.mask])
            + numbers(&[&gradients.logprobs, &gradients.entropy])
            + 8 * arrays.positions.capacity()
            + arrays.rows.capacity()
            + arrays.state.capacity();
    let made = LIMITS.sequences as u64 * BYTES_PER_SEQUENCE + LIMITS.rows_bytes as u64 * VALUES_PER_BYTE;
    assert_eq!(own as u64 + made, LIMITS.bytes().0);
}
