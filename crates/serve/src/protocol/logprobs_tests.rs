//! Log-probabilities as clients index them.

use super::*;
use plimsoll_files::TokenizerFiles;

fn bytes() -> Tokenizer {
    Tokenizer::from_files(&TokenizerFiles { bytes: true, ..TokenizerFiles::default() }, 260).unwrap()
}

fn drawn(ids: &[u32], logprobs: &[f32]) -> Part {
    Part { ids: ids.to_vec(), logprobs: logprobs.to_vec(), ..Part::default() }
}

#[test]
fn offsets_go_on_over_the_parts_of_a_stream() {
    let (tokenizer, logprobs) = (bytes(), Logprobs { top: 1 });
    let ids: Vec<u32> = "plimsoll".bytes().map(u32::from).collect();
    let numbers: Vec<f32> = (0..ids.len()).map(|n| -(n as f32)).collect();
    let part = |range: std::ops::Range<usize>| Part {
        ids: ids[range.clone()].to_vec(),
        logprobs: numbers[range.clone()].to_vec(),
        listed: range.map(|at| vec![(ids[at], numbers[at])]).collect(),
        ..Part::default()
    };
    let whole = logprobs.completion(&tokenizer, (None, &part(0..8)), &mut 0);
    let mut offset = 0;
    let parts =
        [0..3, 3..3, 3..8].map(|range| logprobs.completion(&tokenizer, (None, &part(range)), &mut offset));
    for name in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        let joined: Vec<&Value> =
            parts.iter().flat_map(|part| part[name].as_array().expect("a list")).collect();
        assert_eq!(whole[name], json!(joined), "{name}");
    }
    assert_eq!(whole["text_offset"], json!([0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(whole["top_logprobs"][1], json!({ "l": -1.0 }));
}

#[test]
fn half_a_character_has_its_bytes() {
    let entry = Logprobs { top: 0 }.chat(&bytes(), &drawn(&[0xc3], &[-0.5]));
    assert_eq!(entry["content"][0]["bytes"], json!([0xc3]));
    assert_eq!(entry["content"][0]["top_logprobs"], json!([]));
}

/// A token that is part of a character was counted as one.
#[test]
fn r_offsets_after_a_character_of_several_tokens_were_too_large() {
    let ids: Vec<u32> = "é€a".bytes().map(u32::from).collect();
    let found = Logprobs { top: 0 }.completion(&bytes(), (None, &drawn(&ids, &[0.0; 6])), &mut 0);
    assert_eq!(found["text_offset"], json!([0, 0, 1, 1, 1, 2]));
}
