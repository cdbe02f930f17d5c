//! Responses as text: stop strings over tokens, what rewards read, and what people see of a sample.

use super::*;
use plimsoll_files::TokenizerFiles;
use plimsoll_text::Tokenizer;
use serde_json::json;
use std::sync::Arc;

fn model() -> TextModel {
    let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
    TextModel {
        tokenizer: Tokenizer::from_files(&files, 259).expect("bytes need no file").into(),
        template: None,
        system_prompt: None,
        strings: Default::default(),
        eos: Some(257),
        ends: Vec::new(),
        rules: Default::default(),
        teacher_prompt: None,
        teacher_text: None,
        album: None,
        form: None,
    }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Returns after how many tokens a response is stopped.
fn stopped(stop: &mut TextStop<'_>, sample: usize, text: &str) -> Option<usize> {
    let ids = bytes(text);
    (1..=ids.len()).find(|&length| stop.stops(sample, &ids[..length]))
}

#[test]
fn a_stop_string_ends_a_response_whichever_tokens_spell_it() {
    let text = model();
    let stops = ["</s>".to_string(), "é".to_string()];
    let mut stop = TextStop::new(&text, &stops, 2).expect("they can be searched for");
    assert_eq!(stopped(&mut stop, 0, "a </s> b"), Some(6));
    // Half of one stop string is no stop, and the next response to the slot begins anew.
    assert_eq!(stopped(&mut stop, 1, "a </"), None);
    assert_eq!(stopped(&mut stop, 1, "s>"), None);
    assert_eq!(stopped(&mut stop, 1, "caf\u{e9}."), Some(5), "at the last byte of the character");
    let mut none = TextStop::new(&text, &[], 2).expect("no string");
    assert_eq!(stopped(&mut none, 0, "a </s> b"), None);
    let error = TextStop::new(&text, &[String::new()], 2).expect_err("it would end every response");
    assert_eq!(error.slug, "stop-string-invalid");
}

#[test]
fn rewards_read_a_response_without_its_end() {
    let text = model();
    let stops = ["##".to_string(), "END".to_string()];
    let of = |ids: &[u32], finish, keep| response_text(&text, ids, finish, &stops, keep);
    let said = bytes("five END ## x");
    assert_eq!(of(&said, Finish::Stop, false), "five ");
    assert_eq!(of(&said, Finish::Stop, true), "five END ## x");
    // A response that ended in another way may have the string in it.
    assert_eq!(of(&said, Finish::Length, false), "five END ## x");
    let ended = [bytes("five"), vec![257]].concat();
    assert_eq!(of(&ended, Finish::Eos, false), "five", "special tokens are no text");
}

fn kept(text: &TextModel, samples: &Samples, item: &Item, response: &str) -> KeptSample {
    let names = ["exact".to_string(), "length".to_string()];
    let kept =
        SamplesHeader { text, step: 3, answer_column: "answer", names: &names, samples, policy_version: 9 };
    let place = Place { set: "train", index: 41, of_group: 1 };
    let scored = Scored { total: Some(0.5), parts: vec![Some(1.0), None], ..Scored::default() };
    kept.sample(0, place, item, response, &scored)
}

#[test]
fn each_token_of_a_kept_sample_has_its_characters() {
    let text = model();
    for said in ["plain", "gr\u{f6}\u{df}er \u{1f980}!", "", "\u{65e5}\u{672c}"] {
        let mut samples = Samples::with_capacity(1, 64);
        samples.clear();
        let ids = bytes(said);
        samples.push_response(&ids, &vec![-0.25; ids.len()], Finish::Length);
        let sample = kept(&text, &samples, &Item::default(), said);
        assert_eq!((sample.token_chars.len(), sample.logprobs.len()), (ids.len(), ids.len()));
        assert_eq!(sample.token_chars.iter().sum::<u32>() as usize, said.chars().count(), "{said}");
        // The last byte of a character completes it.
        let mut at = 0;
        for c in said.chars() {
            let end = at + c.len_utf8();
            assert!(
                sample.token_chars[at..end - 1].iter().all(|&n| n == 0) && sample.token_chars[end - 1] == 1
            );
            at = end;
        }
    }
}

#[test]
fn a_line_of_samples_quotes_no_more_than_the_plan_has_room_for() {
    let text = TextModel { system_prompt: Some("\u{e9}".repeat(300)), ..model() };
    let mut samples = Samples::with_capacity(1, 4);
    samples.clear();
    samples.push_response(&[53], &[-0.5], Finish::Eos);
    let item = |answer: Value| Item {
        text: "2+3=".into(),
        columns: Arc::new(json!({ "answer": answer }).as_object().expect("an object").clone()),
        ..Item::default()
    };
    let sample = kept(&text, &samples, &item(json!("x".repeat(1000))), "5");
    assert_eq!(sample.ground_truth.as_ref().map(String::len), Some(256));
    let quoted = sample.system_prompt.as_deref().expect("it has one");
    assert!(quoted.len() <= 256 && quoted.chars().all(|c| c == '\u{e9}'), "cut at a character");
    // An answer that is no text is written as it is in the row; without one there is no key.
    let sample = kept(&text, &samples, &item(json!([5, "five"])), "5");
    assert_eq!(sample.ground_truth.as_deref(), Some("[5,\"five\"]"));
    let line = serde_json::to_value(kept(&model(), &samples, &Item::default(), "5")).expect("plain data");
    assert!(line.get("ground_truth").is_none() && line.get("system_prompt").is_none(), "{line}");
    assert_eq!(line["rewards"], json!({ "exact": 1.0, "length": null }));
    let numbers = [&line["step"], &line["prompt_index"], &line["sample"], &line["policy_version"]];
    assert_eq!(numbers, [&json!(3), &json!(41), &json!(1), &json!(9)]);
}
