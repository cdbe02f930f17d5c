//! Calls between marks of Mistral, DeepSeek, Kimi and Gemma, in whatever pieces they come.

use super::*;
use crate::ChatTemplate;
use crate::calls::Calls;
use crate::calls_xml::Tool;
use crate::said::joined;
use serde_json::json;

/// Parses a response of a model whose template has `mark`, in pieces of `size` characters.
fn parse(mark: &str, given: &str, size: usize) -> Vec<Said> {
    let template = ChatTemplate::new(&format!("{{{{ tools }}}}{mark}"), &[]).unwrap();
    let mut calls = Calls::new(Some(&template), Tool::all(&[json!({ "function": { "name": "add" } })]));
    let letters: Vec<char> = given.chars().collect();
    let mut said: Vec<Said> =
        letters.chunks(size).flat_map(|piece| calls.push(&piece.iter().collect::<String>())).collect();
    said.extend(calls.finish());
    joined(said)
}

#[track_caller]
fn check(marks: &Marks, given: &str, expect: &[Said]) {
    for size in [1, 3, 1000] {
        assert_eq!(parse(marks.section, given, size), expect, "{given:?} in pieces of {size}");
    }
}

fn text(words: &str) -> Said {
    Said::Text(words.into())
}

fn call(name: &str, arguments: &str) -> Said {
    Said::Call { name: name.into(), arguments: arguments.into() }
}

#[test]
fn mistral_writes_names_and_arguments_or_a_list() {
    check(&MISTRAL, "[TOOL_CALLS]add[ARGS]{\"a\": 2}", &[call("add", "{\"a\":2}")]);
    check(
        &MISTRAL,
        "I add. [TOOL_CALLS]add[ARGS]{\"a\": [2]}[TOOL_CALLS]now[CALL_ID]x1[ARGS]{}",
        &[text("I add."), call("add", "{\"a\":[2]}"), call("now", "{}")],
    );
    check(&MISTRAL, "[TOOL_CALLS]add{\"a\": 2}", &[call("add", "{\"a\":2}")]);
    check(
        &MISTRAL,
        "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 12345678901234567890123}}, {\"name\": \"now\", \"arguments\": {}, \"id\": \"x\"}]",
        &[call("add", "{\"a\":12345678901234567890123}"), call("now", "{}")],
    );
    for given in [
        "[TOOL_CALLS]add[ARGS]{\"a\": ",
        "[TOOL_CALLS]add[ARGS][1]",
        "[TOOL_CALLS][{\"name\": \"add\"}, 3]",
        "[TOOL_CALLS][{\"arguments\": {}}]",
        "[TOOL_CALLS]two words[ARGS]{}",
        "[TOOL_CALLS]",
        "[TOOL_CA",
        "a [THINK]b[/THINK] ",
    ] {
        check(&MISTRAL, given, &[text(given)]);
    }
    check(
        &MISTRAL,
        "[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]add[ARGS]{",
        &[call("add", "{}"), text("[TOOL_CALLS]add[ARGS]{")],
    );
}

#[test]
fn deepseek_writes_a_block_of_json_or_the_json_alone() {
    let (begin, end) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
    let first = |name: &str, json: &str| {
        format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>")
    };
    let second = |name: &str, json: &str| {
        format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>")
    };
    let found = [text("So:"), call("add", "{\"a\":2}"), call("now", "{}")];
    let given = format!("So:\n{begin}{}\n{}{end}", first("add", "{\"a\": 2}"), first("now", "{}"));
    check(&DEEPSEEK, &given, &found);
    let given = format!("So:{begin}{}{}{end}", second("add", "{\"a\": 2}"), second("now", "{}"));
    check(&DEEPSEEK, &given, &found);
    // Broken off within the second call.
    let given = format!("{begin}{}<｜tool▁call▁begin｜>now<｜tool▁sep｜>{{\"a", second("add", "{}"));
    check(&DEEPSEEK, &given, &[call("add", "{}"), text("<｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a")]);
    for given in [
        format!("{begin}{}{end}", second("add", "2")),
        format!("{begin}{}{end}", second("add", "{} more")),
        format!("{begin}<｜tool▁call▁begin｜>add{end}"),
        begin.to_string(),
        "<｜tool▁calls▁be".to_string(),
    ] {
        check(&DEEPSEEK, &given, &[text(&given)]);
    }
    check(&DEEPSEEK, &format!("{begin}{}{end} a", second("add", "{}")), &[call("add", "{}"), text(" a")]);
}

#[test]
fn kimi_numbers_its_calls() {
    let (begin, end) = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
    let one = |id: &str, json: &str| {
        format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{json}<|tool_call_end|>")
    };
    for id in ["functions.add:0", "add:12", "functions.add", " add "] {
        check(
            &KIMI,
            &format!("{begin}{}{end}", one(id, "{\"a\": \"<|x\"}")),
            &[call("add", "{\"a\":\"<|x\"}")],
        );
    }
    let two = format!("{begin}{}{}", one("functions.add:0", "{}"), one("functions.now:1", ""));
    check(&KIMI, &two, &[call("add", "{}"), call("now", "{}")]);
    let broken = format!("{begin}{}{end}", one("functions.add:0", "{"));
    check(&KIMI, &broken, &[text(&broken)]);
    // A response may be cut at each of its bytes.
    let whole = format!("I add.\n{two}{end}");
    for cut in (0..=whole.len()).filter(|&cut| whole.is_char_boundary(cut)) {
        let said = parse(KIMI.section, &whole[..cut], 1);
        assert_eq!(said, parse(KIMI.section, &whole[..cut], 1000), "{}", &whole[..cut]);
        let calls = said.iter().filter(|one| matches!(one, Said::Call { .. })).count();
        assert!(calls <= whole[..cut].matches("<|tool_call_argument_begin|>").count());
    }
}

#[test]
fn gemma_writes_keys_without_quotation_marks() {
    let two = "So. <|tool_call>call:add{a:<|\"|>x, \"y\"<|\"|>,b:[1]}<tool_call|><|tool_call>call:now{}<tool_call|>";
    check(&GEMMA, two, &[text("So."), call("add", "{\"a\":\"x, \\\"y\\\"\",\"b\":[1]}"), call("now", "{}")]);
    for given in [
        "<|tool_call>call:add{a:1",
        "<|tool_call>call:add{a:one}<tool_call|>",
        "<|tool_call>add{}<tool_call|> and <|tool",
    ] {
        check(&GEMMA, given, &[text(given)]);
    }
}
