//! Prompts: their limits, their templates, and sets of them.

use crate::chars::model;
use plimsoll_config::{Data, Overlong};
use plimsoll_infer::hub::localise_sets;
use plimsoll_infer::sets::test_items;
use plimsoll_infer::text::{Item, Limit, TextModel, prompt_messages, prompt_text, text_model};
use plimsoll_text::{Message, Prompt, Row};
use serde_json::json;

const CHARS: &str = "abcdefghijklmnopqrstuvwxyz:?!";

fn item(ids: usize, teacher: usize) -> Item {
    let count = |n: usize| (0..n as u32).collect();
    Item { ids: count(ids), teacher: count(teacher), ..Item::default() }
}

fn limited(overlong: Overlong) -> Limit {
    Limit::of(&Data { prompt_tokens_max: Some(3), overlong, ..Data::default() })
}

fn plain() -> TextModel {
    text_model(&model(&["</s>"], CHARS, None), &Data::default()).expect("its own")
}

#[test]
fn a_prompt_without_a_token_is_refused_by_its_row() {
    let error = Limit::of(&Data::default()).apply(item(0, 2), "p.jsonl", 4).expect_err("no token");
    assert_eq!(error.slug, "prompt-empty");
    assert!(error.message.contains("p.jsonl: row 5 "), "{error}");
}

#[test]
fn a_prompt_beyond_the_limit_is_refused_dropped_or_loses_its_beginning() {
    for overlong in [Overlong::Error, Overlong::Drop, Overlong::TruncateLeft] {
        let kept = limited(overlong).apply(item(3, 3), "p.jsonl", 0).expect("within the limit");
        assert_eq!(kept.expect("kept").ids, [0, 1, 2], "{overlong:?}");
    }
    // What a teacher reads counts too.
    for (ids, teacher) in [(5, 0), (2, 5)] {
        let error = limited(Overlong::Error).apply(item(ids, teacher), "p.jsonl", 0).expect_err("too long");
        assert_eq!(error.slug, "prompt-too-long");
        assert!(error.message.contains("row 1 has 5 tokens, data.prompt_tokens_max is 3"), "{error}");
        let dropped = limited(Overlong::Drop).apply(item(ids, teacher), "p.jsonl", 0).expect("dropped");
        assert!(dropped.is_none());
    }
    let cut = limited(Overlong::TruncateLeft).apply(item(2, 5), "p.jsonl", 0).expect("cut").expect("kept");
    assert_eq!((cut.ids, cut.teacher), (vec![0, 1], vec![2, 3, 4]));
}

#[test]
fn rows_of_a_task_cannot_be_dropped() {
    let hints = |name| limited(Overlong::Error).too_long(name, 0, 9).hints;
    assert!(hints("p.jsonl").iter().any(|hint| hint.contains("data.overlong")));
    assert!(hints("builtin:sums").iter().all(|hint| !hint.contains("data.overlong")));
}

#[test]
fn arguments_need_a_template_to_go_to() {
    let data = Data { template_args: [("depth".to_string(), json!(1))].into(), ..Data::default() };
    let error = text_model(&model(&["</s>"], CHARS, None), &data).expect_err("no template");
    assert_eq!(error.slug, "bad-value");
    assert!(error.message.contains("data.template_args.depth has no template to go to"), "{error}");
    let own = model(&["</s>"], CHARS, Some("{{ messages[0].content }}"));
    assert!(text_model(&own, &data).is_ok());
}

#[test]
fn a_template_that_ends_a_turn_with_a_token_that_ends_no_response_is_warned_of() {
    const CHAT: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|turn|>{% endfor %}";
    let mut chat = model(&["</s>", "<|turn|>"], CHARS, Some(CHAT));
    let text = text_model(&chat, &Data::default()).expect("its own");
    assert_eq!(text.turn_end(), Some(1));
    let warning = text.turn_end_warning().expect("a warning");
    assert!(warning.contains("ends a turn with <|turn|>") && warning.contains("</s> does"), "{warning}");
    chat.eos_token_ids.push(1);
    let text = text_model(&chat, &Data::default()).expect("its own");
    assert_eq!((text.turn_end(), text.turn_end_warning()), (None, None));
    assert_eq!(plain().turn_end(), None, "no template ends no turn");
}

#[test]
fn the_first_prompt_is_shown_as_the_model_reads_it() {
    let row = |text: &str| Row { prompt: Prompt::Text(text.into()), columns: Default::default() };
    let text = plain();
    let words = text.first_prompt_words(&text.item(row("what?")).expect("known characters"));
    assert_eq!(words, "prompts are taken as they are; the first: \"what?\"");
    // Of a long one the middle is left out.
    let long = format!("a{}z", "b".repeat(400));
    let words = text.first_prompt_words(&text.item(row(&long)).expect("known characters"));
    assert!(words.contains("bbb ... bbb") && words.ends_with("bz\"") && words.len() < 320, "{words}");
}

#[test]
fn a_reward_reads_the_last_message_of_a_conversation() {
    let talk = Prompt::Messages(vec![Message::new("user", "one?"), Message::new("user", "two?")]);
    assert_eq!(prompt_text(&talk), "two?");
    let messages = prompt_messages(&talk).expect("a conversation");
    assert_eq!(messages[0], json!({ "role": "user", "content": "one?" }));
    assert_eq!(prompt_text(&Prompt::Messages(Vec::new())), "");
    assert_eq!(prompt_messages(&Prompt::Text("one?".into())), None);
}

#[test]
fn a_set_has_its_first_rows_and_names_the_row_that_it_cannot_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.jsonl");
    std::fs::write(&path, "{\"prompt\": \"one?\"}\n{\"prompt\": \"TWO\"}\n{\"prompt\": \"three\"}\n")
        .expect("a file");
    let (name, text) = (path.to_str().expect("UTF-8"), plain());
    let items = test_items(name, &Data::default(), &text, Some(1)).expect("one row");
    assert_eq!(items.iter().map(|item| item.text.as_str()).collect::<Vec<_>>(), ["one?"]);
    let error = test_items(name, &Data::default(), &text, None).expect_err("no capitals");
    assert!(error.to_string().contains("row 2 of "), "{error}");
    let short = Data { prompt_tokens_max: Some(3), overlong: Overlong::Drop, ..Data::default() };
    let error = test_items(name, &short, &text, Some(1)).expect_err("all are dropped");
    assert_eq!(error.slug, "data-empty");
}

#[test]
fn names_that_are_not_the_hubs_stay_and_bad_ones_are_refused() {
    let mut sets = [("held".to_string(), "p.jsonl".to_string())];
    localise_sets(&mut sets, false).expect("nothing to fetch");
    assert_eq!(sets, [("held".to_string(), "p.jsonl".to_string())]);
    let mut sets = [("held".to_string(), "hf:../../etc".to_string())];
    assert_eq!(localise_sets(&mut sets, false).expect_err("no name").slug, "data-hub-name");
}
