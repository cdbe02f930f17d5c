//! Responses in the harmony format: their thinking, text and calls, in whatever pieces they come and wherever they
//! break off.

use super::*;
use crate::ChatTemplate;
use crate::calls::Calls;
use crate::calls_xml::Tool;
use crate::said::joined;
use proptest::prelude::*;
use serde_json::json;

const TEMPLATE: &str =
    "{% if tools %}{% endif %}<|channel|>final<|message|>{{ messages[0].content }}<|end|><|start|>assistant";

fn calls(has_tools: bool) -> Calls {
    let tools = if has_tools { Tool::all(&[json!({ "function": { "name": "add" } })]) } else { Vec::new() };
    Calls::new(Some(&ChatTemplate::new(TEMPLATE, &[]).unwrap()), tools)
}

/// Parses a response in pieces of `size` characters.
fn parse(text: &str, size: usize, has_tools: bool) -> Vec<Said> {
    let mut calls = calls(has_tools);
    let letters: Vec<char> = text.chars().collect();
    let mut said: Vec<Said> =
        letters.chunks(size).flat_map(|piece| calls.push(&piece.iter().collect::<String>())).collect();
    said.extend(calls.finish());
    joined(said)
}

fn text(words: &str) -> Said {
    Said::Text(words.into())
}

fn thought(words: &str) -> Said {
    Said::Thought(words.into())
}

fn call(name: &str, arguments: &str) -> Said {
    Said::Call { name: name.into(), arguments: arguments.into() }
}

#[track_caller]
fn check(given: &str, expect: &[Said]) {
    for size in [1, 2, 3, 7, 1000] {
        assert_eq!(parse(given, size, true), expect, "{given:?} in pieces of {size}");
    }
}

#[test]
fn thinking_text_and_calls_are_told_apart() {
    let hm = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    check(&format!("{hm}<|channel|>final<|message|>4 < 5"), &[thought("hm"), text("4 < 5")]);
    check(&format!("{hm}<|channel|>final<|message|>4<|return|>"), &[thought("hm"), text("4")]);
    let add = "<|message|>{\"a\":2,\"n\":12345678901234567890123}";
    for header in [
        "<|channel|>commentary to=functions.add <|constrain|>json",
        "<|channel|>commentary to=functions.add json",
        " to=functions.add<|channel|>commentary <|constrain|>json",
        " to=functions.add<|channel|>commentary json",
        "<|channel|>commentary to=functions.add<|constrain|>json",
        "<|channel|>commentary to=functions.add",
        "<|channel|>analysis to=add code",
        "<|channel|>commentary functions.add json",
    ] {
        let expect = [thought("hm"), call("add", "{\"a\":2,\"n\":12345678901234567890123}")];
        check(&format!("{hm}{header}{add}"), &expect);
        check(&format!("{hm}{header}{add}<|call|>"), &expect);
    }
    check("<|channel|>commentary to=functions.now<|message|><|call|>", &[call("now", "{}")]);
    // A preamble is text, and messages of one kind are on lines of their own.
    let two = format!(
        "{hm}<|channel|>commentary<|message|>I add.<|end|>\n<|start|>assistant<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>5"
    );
    check(&two, &[thought("hm"), text("I add."), thought("\nso"), text("\n5")]);
    check("<|start|>assistant<|channel|>final<|message|>4", &[text("4")]);
    check("Hello <there|", &[text("Hello <there|")]);
    check("", &[]);
}

#[test]
fn what_is_not_of_the_format_stays_text_with_its_marks() {
    let broken = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": ";
    for given in [
        "<|channel|>anal",
        "<|channel|>thoughts<|message|>hm",
        "<|channel|><|message|>hm",
        "<|message|>hm",
        "<|channel|>analysis<|channel|>final<|message|>hm",
        "<|channel|>commentary to=functions.add to=functions.now<|message|>{}",
        "<|channel|>commentary to=functions. json<|message|>{}",
        "<|channel|>final json more<|message|>hm",
        " to=assistant<|channel|>commentary<|message|>\"5\"",
        "<|channel|>commentary to=functions.add json<|message|>[1]",
        broken,
    ] {
        check(given, &[text(given)]);
    }
    check(&format!("{broken}<|call|>"), &[text(broken)]);
    // What comes after it is read again.
    let result = "<|start|>functions.add to=assistant<|channel|>commentary<|message|>";
    check(
        &format!(
            "<|channel|>analysis<|message|>a<|end|>{result}5<|end|><|start|>assistant<|channel|>final<|message|>b"
        ),
        &[thought("a"), text(&format!("{result}5\nb"))],
    );
    check(
        "<|channel|>final<|end|><|start|>assistant<|channel|>final<|message|>b",
        &[text("<|channel|>final\nb")],
    );
    check("<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b", &[text("a\nb")]);
    check("<|channel|>final<|message|>a<|end|>b", &[text("a\nb")]);
    let long = format!("<|channel|>{}<|message|>a", "x".repeat(600));
    check(&long, &[text(&long)]);
    // Neither a channel, a name nor a form: nothing that a header holds is lost.
    for header in
        ["{\"a\":1} to=functions.add", "final to=functions.add{\"a\":1}", "final to=functions.add é"]
    {
        let given = format!("<|channel|>{header}<|message|>");
        check(&given, &[text(&given)]);
    }
    // Without functions a call is text.
    let add = "<|channel|>commentary to=functions.add json<|message|>{}";
    assert_eq!(parse(add, 3, false), [text(add)]);
}

/// A response may be cut at any token: at each byte of it, nothing that was said is lost, and no call is made up.
#[test]
fn a_response_that_breaks_off_anywhere_keeps_what_was_said() {
    let whole = "<|channel|>analysis<|message|>Größe?<|end|><|start|>assistant<|channel|>commentary<|message|>I add.<|end|><|start|>assistant to=functions.add<|channel|>commentary <|constrain|>json<|message|>{\"a\":{\"b\":2}}<|call|>";
    for end in (0..=whole.len()).filter(|&end| whole.is_char_boundary(end)) {
        let given = &whole[..end];
        let said = parse(given, 1000, true);
        assert_eq!(parse(given, 1, true), said, "{given}");
        let words: String = said
            .iter()
            .map(|one| match one {
                Said::Text(words) | Said::Thought(words) => words.as_str(),
                Said::Call { arguments, .. } => {
                    assert!(end >= whole.len() - "<|call|>".len(), "{given}");
                    arguments.as_str()
                }
            })
            .collect();
        let bare = |text: &str| -> String { text.chars().filter(|c| c.is_alphanumeric()).collect() };
        // The last word said is the last one given, but for a header that was read or a part of a mark.
        for kept in ["Größe", "Iadd", "ab2"] {
            let has = bare(given).contains(kept);
            assert!(!has || bare(&words).contains(kept), "{given}: {words}");
        }
        let tail = given.rsplit("<|").next().unwrap_or_default();
        let is_mark = ["channel", "message", "end", "start", "constrain", "call"]
            .iter()
            .any(|mark| mark.starts_with(tail) || tail.starts_with(&format!("{mark}|>")));
        assert!(is_mark || bare(&words).ends_with(&bare(tail)), "{given}: {words}");
    }
}

proptest! {
    /// Any order of marks and words is parsed without a fault, the same in any pieces, and its words are kept.
    #[test]
    fn any_order_of_marks_is_parsed(parts in proptest::collection::vec(0usize..14, 0..12), size in 1usize..9) {
        let words = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>",
            "assistant", "analysis", "final", " to=functions.add", "{\"a\":1}", "é ", "<|"];
        let given: String = parts.iter().map(|&part| words[part]).collect();
        let whole = parse(&given, 1000, true);
        prop_assert_eq!(&parse(&given, size, true), &whole);
        let said: String = whole.iter().map(|one| match one {
            Said::Text(text) | Said::Thought(text) => text.clone(),
            Said::Call { arguments, .. } => arguments.clone(),
        }).collect();
        prop_assert_eq!(said.matches('é').count(), given.matches('é').count());
        prop_assert_eq!(said.matches("\"a\"").count(), given.matches("\"a\"").count());
    }
}
