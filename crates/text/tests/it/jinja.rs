//! Chat templates against what Jinja2 itself renders in Hugging Face's environment (`tests/jinja/make.py`).

use plimsoll_text::{ChatTemplate, Message};
use serde_json::Value;

const CASES: &str = include_str!("../jinja/cases.jsonl");

fn conversation() -> Vec<Message> {
    vec![
        Message::new("system", "Be brief."),
        Message::new("user", " What's 1+1? <&> \"é\"\n"),
        Message::new("assistant", "<think>\nhm\n</think>\n\nTwo, 2"),
    ]
}

#[test]
fn templates_render_as_in_jinja2_or_are_refused_as_there() {
    let special = [("eos_token", "</s>"), ("bos_token", "<s>")];
    let (mut rendered, mut refused) = (0, 0);
    for case in CASES.lines() {
        let case: Value = serde_json::from_str(case).expect("a case is JSON");
        let template = case["template"].as_str().expect("a template is text");
        let result = ChatTemplate::new(template, &special).and_then(|t| t.render(&conversation(), true));
        match (result, case["text"].as_str()) {
            (Ok(text), Some(expect)) => {
                assert_eq!(text, expect, "{template}");
                rendered += 1;
            }
            (Err(error), None) => {
                assert_eq!(error.slug, "chat-template-invalid", "{template}");
                assert!(error.message.contains(" in line "), "{template}: {error}");
                refused += 1;
            }
            (result, expect) => panic!("{template}: {result:?}, Jinja2: {expect:?}"),
        }
    }
    assert_eq!((rendered, refused), (131, 57));
}
