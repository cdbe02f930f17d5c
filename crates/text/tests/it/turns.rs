//! Supervised rows that train every assistant turn: the tokens of transformers' mask, and turns by prefixes.

use plimsoll_files::TokenizerFiles;
use plimsoll_text::{
    ChatTemplate, Message, Prompt, SftRow, SftTokens, Strings, Tokenizer, load_sft, tokenize_sft,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Message>,
    ids: Vec<u32>,
    mask: Vec<u8>,
}

fn tokenizer() -> Tokenizer {
    let tokenizer_json = Some(include_bytes!("../turns/tokenizer.json").to_vec());
    Tokenizer::from_files(&TokenizerFiles { tokenizer_json, ..TokenizerFiles::default() }, 300).unwrap()
}

fn tokens(template: &str, row: &SftRow) -> plimsoll_base::Result<SftTokens> {
    let template = ChatTemplate::new(template, &[]).unwrap();
    tokenize_sft(&tokenizer(), Some(&template), row, None, &Strings::Chat { marks: Vec::new() }, None)
}

fn messages(lines: &[(&str, &str)]) -> Vec<Message> {
    lines.iter().map(|(role, content)| Message::new(role, *content)).collect()
}

#[test]
fn the_learnt_tokens_are_those_of_transformers_mask() {
    let cases = include_str!("../turns/cases.jsonl").lines();
    let cases: Vec<Case> = cases.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 18);
    for Case { template, messages, ids, mask } in cases {
        let made = tokens(&template, &SftRow::Turns(messages)).expect(&template);
        let first = mask.iter().position(|&bit| bit == 1).unwrap();
        let last = mask.iter().rposition(|&bit| bit == 1).unwrap();
        assert_eq!(
            (&made.prompt[..], &made.completion[..]),
            (&ids[..first], &ids[first..=last]),
            "{template}"
        );
        let is_learnt = |token: u32| u8::from(made.learnt.iter().any(|range| range.contains(&token)));
        let learnt: Vec<u8> = (0..made.completion.len() as u32).map(is_learnt).collect();
        assert_eq!(learnt, mask[first..=last], "{template}");
    }
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Without marks a turn is what the answer of a row with that turn as its last one is.
#[test]
fn turns_by_prefixes_are_the_answers_of_the_rows_that_end_with_them() {
    let whole = messages(&[
        ("user", "Hello"),
        ("assistant", "lo"),
        ("user", "a"),
        ("assistant", " é\n"),
        ("user", "b"),
    ]);
    let made = tokens(CHATML, &SftRow::Turns(whole.clone())).unwrap();
    let all = [&made.prompt[..], &made.completion[..]].concat();
    let from = made.prompt.len() as u32;
    assert_eq!(made.learnt.len(), 2);
    for (range, at) in made.learnt.iter().zip([1, 3]) {
        let (prompt, completion) = (Prompt::Messages(whole[..at].to_vec()), whole[at].content.clone());
        let row = tokens(CHATML, &SftRow::Answer { prompt, completion }).unwrap();
        let (start, end) = ((range.start + from) as usize, (range.end + from) as usize);
        assert_eq!((&all[..start], &all[start..end]), (&row.prompt[..], &row.completion[..]), "message {at}");
        assert_eq!(row.learnt, []);
    }
}

#[test]
fn turns_that_the_text_does_not_show_are_refused() {
    let two = [("user", "a"), ("assistant", "<think>x</think>b"), ("user", "c"), ("assistant", "d")];
    let strips = CHATML
        .replace("{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}");
    let counts = format!("{{{{ messages | length }}}}{CHATML}");
    let none = CHATML
        .replace("{{ m.content }}", "{% if m.role == 'x' %}{% generation %}y{% endgeneration %}{% endif %}");
    let lost = "{% macro m() %}{% generation %}y{% endgeneration %}{% endmacro %}{{ m() }}";
    for (template, slug, words) in [
        (
            strips.as_str(),
            "turns-not-found",
            "up to message 2 of 4 is another one in the whole conversation: the template takes the thinking",
        ),
        (&counts, "turns-not-found", "message 2 changes the text of the prompt before it"),
        (&none, "turns-not-found", "marks no token of this conversation"),
        (lost, "chat-template-invalid", "in a macro, a filter or a `set`"),
    ] {
        let error = tokens(template, &SftRow::Turns(messages(&two))).unwrap_err();
        assert_eq!(error.slug, slug, "{template}: {error}");
        assert!(error.message.contains(words), "{error}");
    }
}

#[test]
fn rows_of_which_every_turn_is_learnt_have_one_of_the_assistants() {
    let dir = tempfile::tempdir().unwrap();
    let rows = |text: &str| {
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        load_sft(&path, true)
    };
    let text = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}"#;
    assert_eq!(
        rows(text).unwrap(),
        [SftRow::Turns(messages(&[("user", "a"), ("assistant", "b"), ("user", "c")]))]
    );
    let answer = SftRow::Answer { prompt: Prompt::Text("a".into()), completion: "b".into() };
    assert_eq!(rows(r#"{"prompt": "a", "completion": "b"}"#).unwrap(), [answer]);
    let error = rows(r#"{"messages": [{"role": "user", "content": "a"}]}"#).unwrap_err();
    assert_eq!(error.slug, "data-bad-prompt");
    assert!(error.to_string().contains("no message is the assistant's"), "{error}");
}
