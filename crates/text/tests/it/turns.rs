//! Supervised rows that train every assistant turn: the tokens of transformers' mask, and turns by prefixes.

use plimsoll_files::TokenizerFiles;
use plimsoll_text::{
    ChatTemplate, Message, Prompt, RowTokenizer, SftRow, SftTokens, Strings, Tokenizer, load_sft,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

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
    let (template, strings) =
        (ChatTemplate::new(template, &[]).unwrap(), Strings::Chat { marks: Vec::new() });
    let tokenizer = tokenizer();
    let rows = RowTokenizer {
        tokenizer: &tokenizer,
        template: Some(&template),
        system_prompt: None,
        strings: &strings,
        eos: None,
        begins: true,
        continues: false,
    };
    rows.sft(row, &Map::new())
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
        let (prompt, completion) = (Prompt::Messages(whole[..at].to_vec()), whole[at].clone());
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
        let rows = load_sft(&path, "prompt", true, &[], None)?;
        Ok::<Vec<SftRow>, plimsoll_base::Error>(rows.into_iter().map(|of| of.row.row).collect())
    };
    let text = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}"#;
    assert_eq!(
        rows(text).unwrap(),
        [SftRow::Turns(messages(&[("user", "a"), ("assistant", "b"), ("user", "c")]))]
    );
    let answer = SftRow::answer(Prompt::Text("a".into()), "b");
    assert_eq!(rows(r#"{"prompt": "a", "completion": "b"}"#).unwrap(), [answer]);
    let error = rows(r#"{"messages": [{"role": "user", "content": "a"}]}"#).unwrap_err();
    assert_eq!(error.slug, "data-bad-prompt");
    assert!(error.to_string().contains("no message is the assistant's"), "{error}");
}

/// A template that writes thinking as Qwen3's does.
const THINKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}\
    {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn answer(fields: Value) -> SftRow {
    let completion: Message = serde_json::from_value(fields).unwrap();
    SftRow::Answer { prompt: Prompt::Messages(messages(&[("user", "a")])), completion }
}

/// The field was dropped: what was learnt was the answer without its thinking.
#[test]
fn r_the_thinking_of_a_row_was_not_learnt() {
    let row = answer(json!({"role": "assistant", "content": "b", "reasoning_content": "hm"}));
    let learnt = tokens(THINKS, &row).unwrap();
    let text = tokenizer().decode(&learnt.completion, false);
    assert_eq!(text, "<think>\nhm\n</think>\nb<|im_end|>\n");
    let SftRow::Answer { completion, .. } = row else { panic!("an answer") };
    let turns = SftRow::Turns(vec![Message::new("user", "a"), completion.clone()]);
    assert_eq!(tokens(THINKS, &turns).unwrap().completion, learnt.completion);
    // A template that does not write it loses it.
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let row = answer(json!({"role": "assistant", "content": "b", name: "hm"}));
        let error = tokens(CHATML, &row).unwrap_err();
        assert!(error.slug == "data-field-lost" && error.message.contains(name), "{error}");
        assert!(error.hints[1].contains(&format!("data.ignore = [\"{name}\"]")), "{error}");
    }
}

/// Calls, names and tools were refused or dropped; now a template reads them, or the row is refused.
#[test]
fn what_changes_a_conversation_is_read_or_refused() {
    let calls = json!([{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]);
    let writes = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}{{ m.name }}",
    );
    let called = answer(json!({"role": "assistant", "content": "", "tool_calls": calls}));
    let named = answer(json!({"role": "assistant", "content": "b", "name": "Ann"}));
    for (row, name, text) in [
        (&called, "tool_calls", r#"{"name": "add", "arguments": {"a": 1}}<|im_end|>"#),
        (&named, "name", "bAnn<|im_end|>"),
    ] {
        let learnt = tokens(&writes, row).unwrap();
        assert_eq!(tokenizer().decode(&learnt.completion, false).trim_end(), text);
        let error = tokens(CHATML, row).unwrap_err();
        assert!(error.slug == "data-field-lost" && error.message.contains(name), "{error}");
    }
}

/// OpenAI's rows say with `weight` which turns are learnt.
#[test]
fn a_turn_of_weight_0_is_not_learnt() {
    let turn = |content: &str, weight: i64| -> Message {
        serde_json::from_value(json!({"role": "assistant", "content": content, "weight": weight})).unwrap()
    };
    let user = || Message::new("user", "a");
    let marked = CHATML.replace("{{ m.content }}<|im_end|>", "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}");
    for template in [CHATML, &marked] {
        let text = |row: &SftRow| {
            let made = tokens(template, row).unwrap();
            let learnt = made.learnt.iter().flat_map(|r| &made.completion[r.start as usize..r.end as usize]);
            tokenizer().decode(&learnt.copied().collect::<Vec<u32>>(), false).replace('\n', "")
        };
        let row = SftRow::Turns(vec![user(), turn("one", 0), user(), turn("two", 1)]);
        assert_eq!(text(&row), "two<|im_end|>");
        let row = SftRow::Turns(vec![user(), turn("one", 1), user(), turn("two", 0)]);
        assert_eq!(text(&row), "one<|im_end|>");
    }
    let dir = tempfile::tempdir().unwrap();
    for (every_turn, weights, words) in [
        (true, "00", "every turn has the weight 0"),
        (false, "10", "the answer has the weight 0"),
        (false, "11", "message 2 has the weight 1"),
        (true, "13", "the weight 3: it can be 0 or 1"),
    ] {
        let weight = |at: usize| i64::from(weights.as_bytes()[at] - b'0');
        let messages = [user(), turn("one", weight(0)), user(), turn("two", weight(1))];
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, json!({ "messages": messages }).to_string()).unwrap();
        let error = load_sft(&path, "prompt", every_turn, &[], None).unwrap_err();
        assert!(error.slug == "data-bad-prompt" && error.message.contains(words), "{error}");
        assert!(load_sft(&path, "prompt", every_turn, &["weight".to_string()], None).is_ok());
    }
}
