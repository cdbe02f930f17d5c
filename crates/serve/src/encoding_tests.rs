//! Texts wait for room, and one that would never have any is refused by name.

use super::*;
use plimsoll_files::TokenizerFiles;
use std::time::Duration;

const LIMITS: Limits = Limits { slots: 4, queue: 8, context: 512, new_tokens: 128, listed: 0, biases: 300 };

#[test]
fn a_text_waits_for_those_before_it() {
    let (encoding, most) = (TextRoom::new(LIMITS), LIMITS.text_bytes());
    let [first, second] = [encoding.take(most / 2, most), encoding.take(most / 2, most)];
    std::thread::scope(|scope| {
        let third = scope.spawn(|| drop(encoding.take(1, most)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!third.is_finished(), "nothing is free");
        drop(first);
        third.join().unwrap();
    });
    drop(second);
    assert_eq!(*encoding.lock(), 0);
}

#[test]
fn a_text_that_never_has_room_is_refused_before_it_is_tokenized() {
    let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
    let tokenizer = Tokenizer::from_files(&files, 260).unwrap();
    let encoding = TextRoom::new(LIMITS);
    let text = "a".repeat(LIMITS.text_bytes());
    assert_eq!(encoding.encode(&tokenizer, &text).unwrap().len(), text.len());
    let error = encoding.encode(&tokenizer, &format!("{text}a")).unwrap_err();
    assert_eq!(error.slug, "serve-too-long");
    assert!(error.message.contains("24577 bytes of text, and 24576 is the most"), "{}", error.message);
}
