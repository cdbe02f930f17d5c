//! Spans of two tokenizers that Hugging Face's library trained, against the groups of TRL 1.16 (`tests/spans.json`,
//! which `tests/spans.py` writes): every group of at most 32 tokens on a side is a span, and nothing else is.

use plimsoll_files::TokenizerFiles;
use plimsoll_text::{AlignLimits, Aligned, Aligner, SPAN_TOKENS_MAX, Side, Span, Tokenizer};
use serde_json::Value;

fn side(json: &Value) -> Side {
    let files =
        TokenizerFiles { tokenizer_json: Some(json.to_string().into_bytes()), ..TokenizerFiles::default() };
    Side { tokenizer: Tokenizer::from_files(&files, 1000).expect("a tokenizer").into(), ends: vec![] }
}

fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number") as u32).collect()
}

#[test]
fn spans_are_the_groups_of_trl() {
    let file: Value = serde_json::from_str(include_str!("../spans.json")).expect("JSON");
    let [student, teacher] = ["student", "teacher"].map(|name| side(&file[name]));
    let aligner = Aligner::new(student.clone(), teacher, false).expect("bytes");
    let (mut aligned, limits) = (Aligned::default(), AlignLimits { tokens: 1000, bytes: 10_000 });
    let (mut longest, mut single) = (0, 0);
    for case in file["cases"].as_array().expect("a list") {
        let (text, ids) = (case["text"].as_str().expect("a text"), numbers(&case["student"]));
        assert_eq!(student.tokenizer.encode(text).expect("a text"), ids, "{text}");
        aligner.align(&ids, limits, &mut aligned);
        let (mut expect, mut from) = (Vec::new(), [0, 0]);
        for end in case["ends"].as_array().expect("a list").iter().map(numbers) {
            let span = Span { student: from[0]..end[0], teacher: from[1]..end[1] };
            from = [end[0], end[1]];
            longest = longest.max(span.student.len());
            single += usize::from(span.student.len() == 1 && span.teacher.len() == 1);
            if span.student.len().max(span.teacher.len()) <= SPAN_TOKENS_MAX as usize {
                expect.push(span);
            }
        }
        assert_eq!(aligned.spans, expect, "{text}");
        let scored = aligned.spans.last().map_or(0, |span| span.teacher.end as usize);
        assert_eq!(aligned.ids, numbers(&case["teacher"])[..scored], "{text}");
    }
    assert!(longest == 6 && single > 40, "{longest} {single}");
}
