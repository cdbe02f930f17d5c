//! Spans of texts under tokenizers of bytes with words of their own, on both sides.

use super::*;
use crate::gguf::{read, rules};
use plimsoll_files::TokenizerFiles;
use serde_json::{Value, json};

const NO_LIMIT: AlignLimits = AlignLimits { tokens: 1000, bytes: 10_000 };

/// Builds a tokenizer of bytes with merged words; the tokens of `special` come first, so ids differ between sides.
fn side(special: &[&str], words: &[&str], normalizer: Value) -> Side {
    let spelled = |bytes: &[u8]| bytes.iter().map(|&b| rules::char_of_byte(b)).collect::<String>();
    let mut tokens: Vec<String> = special.iter().map(|text| text.to_string()).collect();
    tokens.extend((0..=255).map(|b| spelled(&[b])));
    let mut merges = Vec::new();
    for word in words.iter().map(|word| word.as_bytes()) {
        for end in 2..=word.len() {
            let merge = format!("{} {}", spelled(&word[..end - 1]), spelled(&word[end - 1..end]));
            if !merges.contains(&merge) {
                merges.push(merge);
                tokens.push(spelled(&word[..end]));
            }
        }
    }
    let ids: Vec<u32> = (0..special.len() as u32).collect();
    let mut json = read::byte_level_json(&tokens, &merges, &ids, Value::Null);
    json["normalizer"] = normalizer;
    let files =
        TokenizerFiles { tokenizer_json: Some(json.to_string().into_bytes()), ..TokenizerFiles::default() };
    let tokenizer = Tokenizer::from_files(&files, 2000).expect("a tokenizer");
    let ends = special.iter().filter(|text| text.starts_with("</")).map(|text| tokenizer.token_id(text));
    Side { ends: ends.flatten().collect(), tokenizer: tokenizer.into() }
}

/// An aligner of a student with the words `student` and a teacher with the words `teacher`.
fn aligner(student: &[&str], teacher: &[&str]) -> Aligner {
    let [student, teacher] = [
        side(&["</s>", "<|call|>"], student, Value::Null),
        side(&["</text>", "<|call|>", "</turn>"], teacher, Value::Null),
    ];
    Aligner::new(student, teacher, false).expect("bytes")
}

/// The spans of a response as the texts of their tokens on both sides.
fn spans_of(aligner: &Aligner, response: &[u32], limits: AlignLimits) -> Vec<(Vec<String>, Vec<String>)> {
    let mut aligned = Aligned::default();
    aligner.align(response, limits, &mut aligned);
    let texts = |side: &Side, ids: &[u32]| {
        let text = |id: &u32| String::from_utf8_lossy(&side.tokenizer.token_bytes(*id)).into_owned();
        ids.iter().map(text).collect::<Vec<_>>()
    };
    let of = |span: &Span| {
        let range = |range: &Range<u32>| range.start as usize..range.end as usize;
        (
            texts(&aligner.student, &response[range(&span.student)]),
            texts(&aligner.teacher, &aligned.ids[range(&span.teacher)]),
        )
    };
    if let Some(last) = aligned.spans.last() {
        assert_eq!(last.teacher.end as usize, aligned.ids.len(), "no token is scored for nothing");
    }
    aligned.spans.iter().map(of).collect()
}

fn encoded(aligner: &Aligner, text: &str) -> Vec<u32> {
    aligner.student.tokenizer.encode(text).expect("a text")
}

fn check(student: &[&str], teacher: &[&str], text: &str, expect: &[(&[&str], &[&str])]) {
    let aligner = aligner(student, teacher);
    let found = spans_of(&aligner, &encoded(&aligner, text), NO_LIMIT);
    let found: Vec<(Vec<&str>, Vec<&str>)> = found
        .iter()
        .map(|(a, b)| (a.iter().map(String::as_str).collect(), b.iter().map(String::as_str).collect()))
        .collect();
    let found: Vec<(&[&str], &[&str])> = found.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    assert_eq!(found, expect, "{text:?} with {student:?} and {teacher:?}");
}

#[test]
fn a_span_ends_where_both_have_a_boundary() {
    check(&[], &[], "ab", &[(&["a"], &["a"]), (&["b"], &["b"])]);
    check(&["ab"], &[], "abc", &[(&["ab"], &["a", "b"]), (&["c"], &["c"])]);
    check(&[], &["ab"], "abc", &[(&["a", "b"], &["ab"]), (&["c"], &["c"])]);
    // Boundaries in turn on one side only: one span of all.
    check(&["ab", "cd"], &["bc"], "abcd", &[(&["ab", "cd"], &["a", "bc", "d"])]);
    check(&["abc"], &["ab"], "abcab", &[(&["abc"], &["ab", "c"]), (&["ab"], &["ab"])]);
}

#[test]
fn characters_of_several_bytes_may_be_cut_anywhere() {
    // é is c3 a9, € is e2 82 ac: the student has whole characters, the teacher bytes, and the other way round.
    check(
        &["é", "€"],
        &[],
        "é€",
        &[(&["é"], &["\u{fffd}", "\u{fffd}"]), (&["€"], &["\u{fffd}", "\u{fffd}", "\u{fffd}"])],
    );
    let aligner = aligner(&[], &["é", "€"]);
    let ids = encoded(&aligner, "é€x");
    let mut aligned = Aligned::default();
    aligner.align(&ids, NO_LIMIT, &mut aligned);
    let ends: Vec<[u32; 2]> = aligned.spans.iter().map(|s| [s.student.end, s.teacher.end]).collect();
    assert_eq!(ends, [[2, 1], [5, 2], [6, 3]]);
    // Cut within the last character: what is whole is aligned, the rest is not.
    aligner.align(&ids[..4], NO_LIMIT, &mut aligned);
    assert_eq!((aligned.spans.len(), aligned.ids.len()), (1, 1));
    aligner.align(&ids[1..], NO_LIMIT, &mut aligned);
    assert_eq!(aligned, Aligned::default(), "it begins within a character");
}

#[test]
fn a_student_that_spells_its_words_oddly_is_not_tokenized_anew() {
    let aligner = aligner(&["ab"], &["ab"]);
    let [a, b] = [encoded(&aligner, "a")[0], encoded(&aligner, "b")[0]];
    let texts = |of: &[&str]| of.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    assert_eq!(spans_of(&aligner, &[a, b], NO_LIMIT), [(texts(&["a", "b"]), texts(&["ab"]))]);
}

#[test]
fn the_end_of_a_text_is_the_teachers_own_end() {
    let aligner = aligner(&["ab"], &[]);
    let [end, call] = ["</s>", "<|call|>"].map(|text| encoded(&aligner, text)[0]);
    let one = |text: &str| encoded(&aligner, text)[0];
    let teachers = |ids: &[u32]| {
        let mut aligned = Aligned::default();
        aligner.align(ids, NO_LIMIT, &mut aligned);
        let texts = aligned.ids.iter().map(|&id| aligner.teacher.tokenizer.token_text(id).expect("a token"));
        (texts.collect::<Vec<_>>(), aligned.spans.len())
    };
    assert_eq!(teachers(&[one("ab"), end]), (vec!["a".into(), "b".into(), "</text>".into()], 2));
    assert_eq!(teachers(&[call, one("a"), end]), (vec!["<|call|>".into(), "a".into(), "</text>".into()], 3));
    assert_eq!(teachers(&[end]), (vec!["</text>".into()], 1));
    // A token without text, and text that spells a mark of the teacher: neither means what the student wrote.
    assert_eq!(teachers(&[one("a"), 1999, one("a")]), (vec!["a".into()], 1));
    let spelled: Vec<u32> =
        "b</turn>".bytes().map(|b| one(std::str::from_utf8(&[b]).expect("ASCII"))).collect();
    assert_eq!(teachers(&spelled), (vec!["b".into()], 1));
    // Its own mark that the teacher lacks.
    let student = side(&["</s>", "<|think|>"], &[], Value::Null);
    let think = student.tokenizer.token_id("<|think|>").expect("a token");
    let other = Aligner::new(student, side(&["</s>"], &[], Value::Null), false).expect("bytes");
    let mut aligned = Aligned::default();
    other.align(&[2 + 97, think, 2 + 98], NO_LIMIT, &mut aligned);
    assert_eq!((aligned.spans.len(), &aligned.ids[..]), (1, &[1 + 97][..]));
    assert_eq!(other.unknown_special(&[97, 0, think]).as_deref(), Some("<|think|>"));
    assert_eq!(other.unknown_special(&[97, 0]), None);
}

#[test]
fn limits_cut_at_a_boundary_and_long_spans_are_left_out() {
    let aligner = aligner(&["ab"], &["bab"]);
    let ids = encoded(&aligner, "cabab");
    let ends = |tokens: usize, bytes: usize| {
        let mut aligned = Aligned::default();
        aligner.align(&ids, AlignLimits { tokens, bytes }, &mut aligned);
        (aligned.spans.iter().map(|span| span.student.end).collect::<Vec<_>>(), aligned.ids.len())
    };
    // c, ab, ab and c, a, bab.
    assert_eq!(ends(3, 5), (vec![1, 3], 3));
    assert_eq!(ends(2, 5), (vec![1], 1));
    assert_eq!(ends(3, 4), (vec![1, 2], 3), "without the end of the text, the teacher reads c, a, b");
    assert_eq!(ends(0, 5), (vec![], 0));
    assert_eq!(ends(3, 0), (vec![], 0));
    // 40 letters are one token of the teacher, and 40 of the student.
    let long: String = ('a'..='z').chain('A'..='N').collect();
    let aligner = self::aligner(&[], &[&long]);
    let ids = encoded(&aligner, &format!("1{long}2"));
    let mut aligned = Aligned::default();
    aligner.align(&ids, NO_LIMIT, &mut aligned);
    assert_eq!(
        aligned.spans,
        [Span { student: 0..1, teacher: 0..1 }, Span { student: 41..42, teacher: 2..3 }]
    );
    aligner.align(&ids[..41], NO_LIMIT, &mut aligned);
    assert_eq!((aligned.spans.len(), aligned.ids.len()), (1, 1));
}

#[test]
fn a_teacher_that_changes_texts_is_aligned_up_to_there() {
    let lower = side(&["</s>"], &[], json!({ "type": "Lowercase" }));
    let aligner = Aligner::new(side(&["</s>"], &["ab"], Value::Null), lower, false).expect("bytes");
    let text = |text: &str| aligner.probe(text, NO_LIMIT).expect("a text");
    assert_eq!((text("abab"), text("abAab"), text("Aab")), ((2, 2), (3, 1), (2, 0)));
    assert!(aligner.words("aB").contains("\"ab\""), "{}", aligner.words("aB"));
}

#[test]
fn a_tokenizer_whose_tokens_are_no_pieces_of_text_is_named() {
    let words = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": null, "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": { "?": 0, "a": 1, "##b": 2 } },
    });
    let files =
        TokenizerFiles { tokenizer_json: Some(words.to_string().into_bytes()), ..TokenizerFiles::default() };
    let tokenizer = Arc::new(Tokenizer::from_files(&files, 3).expect("a tokenizer"));
    let teacher = Side { tokenizer: tokenizer.clone(), ends: vec![] };
    let error = Aligner::new(side(&[], &[], Value::Null), teacher.clone(), false).expect_err("words");
    assert!(
        error.slug == "teacher-not-aligned" && error.message.contains("the teacher's tokenizer"),
        "{error}"
    );
    // The same tokens on both sides need no text.
    let same = Aligner::new(teacher.clone(), teacher, true).expect("the same");
    let mut aligned = Aligned::default();
    same.align(&[2, 1, 2], AlignLimits { tokens: 3, bytes: 0 }, &mut aligned);
    assert_eq!((&aligned.ids[..], aligned.spans.len()), (&[2, 1, 2][..], 3));
    assert_eq!(aligned.spans[2], Span { student: 2..3, teacher: 2..3 });
}
