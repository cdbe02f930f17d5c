//! Responses with thinking, text and calls, whole and in pieces of every size.

use super::*;
use crate::said::joined;

const QWEN: &str = "{{ messages }}<think></think>{% if tools %}<tool_call>{% endif %}";
const MAGISTRAL: &str = "{{ messages }}[THINK][/THINK][TOOL_CALLS][ARGS]";

fn check(template: &str, is_thinking: bool, text: &str, expect: &[Said]) {
    let template = ChatTemplate::new(template, &[]).unwrap();
    let tools = Tool::all(&[serde_json::json!({ "function": { "name": "add" } })]);
    for size in [1, 2, 3, 7, 1000] {
        let mut reader = ResponseReader::new(Some(&template), tools.clone(), is_thinking);
        let mut said = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            said.extend(reader.push(std::str::from_utf8(piece).unwrap()));
        }
        said.extend(reader.finish());
        assert_eq!(joined(said), expect, "{text:?} in pieces of {size}");
    }
}

fn thought(words: &str) -> Said {
    Said::Thought(words.into())
}

fn words(words: &str) -> Said {
    Said::Text(words.into())
}

#[test]
fn thinking_is_split_off_where_the_response_or_its_prompt_opens_it() {
    let call = Said::Call { name: "add".into(), arguments: "{\"a\":1}".into() };
    let written = "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>";
    for (is_thinking, text, expect) in [
        (
            false,
            "<think>\nTwo\n\nof  it\n</think>\n\nYes.\n",
            vec![thought("Two\n\nof  it"), words("Yes.\n")],
        ),
        (false, " \n<think>a</think>b", vec![thought("a"), words("b")]),
        (true, "a < b </thin\n</think>\n\nYes", vec![thought("a < b </thin"), words("Yes")]),
        // One that opens it once more has the mark in its words.
        (true, "<think>a</think>", vec![thought("<think>a")]),
        (true, "cut in </thi", vec![thought("cut in </thi")]),
        (true, " \n", vec![]),
        (false, "<think>\n\n</think>\n\nYes", vec![words("Yes")]),
        (false, " \n <thin air", vec![words(" \n <thin air")]),
        (false, " \n<thi", vec![words(" \n<thi")]),
        (false, "So <think>a</think>", vec![words("So <think>a</think>")]),
        (false, "</think>a", vec![words("</think>a")]),
        (false, "<think>a</think>b<think>c</think>", vec![thought("a"), words("b<think>c</think>")]),
        (
            false,
            &format!("<think>I {written}</think>\n{written}"),
            vec![thought(&format!("I {written}")), call.clone()],
        ),
    ] {
        check(QWEN, is_thinking, text, &expect);
    }
    check(
        MAGISTRAL,
        false,
        "[THINK]a[/THINK]b[TOOL_CALLS]add[ARGS]{\"a\":1}",
        &[thought("a"), words("b"), call],
    );
    check("{{ messages }}", false, "<think>a</think>b", &[words("<think>a</think>b")]);
}

#[test]
fn a_prompt_ends_in_thinking_if_its_template_wrote_the_mark_last() {
    let template = ChatTemplate::new(QWEN, &[]).unwrap();
    for (prompt, expect) in
        [("a:<think>\n", true), ("a:<think>", true), ("<think>\n\n</think>\n\n", false), ("<think>a:", false)]
    {
        assert_eq!(template.ends_in_thinking(prompt), expect, "{prompt}");
    }
    let kept = ResponseReader::new(Some(&template), Vec::new(), false).without_thinking();
    assert_eq!(kept.read("<think>a</think>b"), [words("<think>a</think>b")]);
}
