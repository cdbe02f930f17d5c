//! A teacher with a tokenizer of characters in another order, with and without a chat template of its own.

use crate::text::{TextModel, text_model};
use plimsoll_config::Data;
use plimsoll_files::{OpenModel, TokenizerFiles};
use plimsoll_text::{AlignLimits, Message, Prompt, Row};
use serde_json::{Value, json};

const LIMITS: AlignLimits = AlignLimits { tokens: 100, bytes: 1000 };
const CHAT: &str = "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% endfor %}<|turn|>";

/// A model whose tokens are `special`, the first of which ends a text, and the characters of `chars`.
fn model(special: &[&str], chars: impl Iterator<Item = char>, template: Option<&str>) -> OpenModel {
    let names: Vec<String> =
        special.iter().map(|text| text.to_string()).chain(chars.map(String::from)).collect();
    let added = |(id, content): (usize, &&str)| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let json = json!({
        "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "added_tokens": special.iter().enumerate().map(added).collect::<Vec<Value>>(),
        "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "merges": [],
            "vocab": names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect::<serde_json::Map<_, _>>() },
    });
    let mut model = OpenModel::open("builtin:nano", None, false).expect("it is built in");
    model.spec.vocab = names.len() as u32;
    model.eos_token_ids = vec![0];
    model.tokenizer = TokenizerFiles {
        tokenizer_json: Some(json.to_string().into_bytes()),
        chat_template: template.map(str::to_string),
        ..TokenizerFiles::default()
    };
    model
}

fn printable() -> impl DoubleEndedIterator<Item = char> {
    (' '..='~').chain(['\n'])
}

fn of(data: &Data, student: &OpenModel, teacher: &OpenModel) -> TextModel {
    let text = text_model(student, data).expect("its own");
    text.with_teacher(data, student, teacher).expect("both are of characters")
}

/// Returns what the teacher reads of a prompt.
fn read(text: &TextModel, prompt: Prompt) -> plimsoll_base::Result<String> {
    let item = text.item(Row { prompt, columns: Default::default() })?;
    let teacher = text.teacher_text.as_ref().expect("it was added");
    Ok(teacher.tokenizer.decode(&item.teacher, false))
}

fn talk() -> Prompt {
    Prompt::Messages(vec![Message::new("user", "2+2?")])
}

#[test]
fn a_teacher_reads_conversations_in_its_own_template() {
    let student = model(&["</s>", "<|turn|>"], printable(), Some(CHAT));
    let own = model(&["<end>", "<|says|>"], printable().rev(), Some("{{ messages[0].content }}<|says|>"));
    let data = Data::default();
    assert_eq!(read(&of(&data, &student, &own), talk()).expect("a prompt"), "2+2?<|says|>");
    // A template of the run file is for both, and so is none.
    let both = Data { chat_template: Some("{{ messages[0].content }}!".into()), ..Data::default() };
    assert_eq!(read(&of(&both, &student, &own), talk()).expect("a prompt"), "2+2?!");
    let none = Data { chat_template: Some("none".into()), ..Data::default() };
    assert_eq!(read(&of(&none, &student, &own), Prompt::Text("1+1=".into())).expect("a prompt"), "1+1=");
}

#[test]
fn a_teacher_without_a_template_has_the_students_if_it_knows_its_marks() {
    let student = model(&["</s>", "<|turn|>"], printable(), Some(CHAT));
    let knows = model(&["<end>", "<|turn|>"], printable().rev(), None);
    let text = of(&Data::default(), &student, &knows);
    assert_eq!(read(&text, talk()).expect("a prompt"), "<|turn|>user:2+2?<|turn|>");
    let lacks = model(&["<end>"], printable().rev(), None);
    let error = read(&of(&Data::default(), &student, &lacks), talk()).expect_err("a mark it does not know");
    assert!(error.slug == "teacher-not-aligned" && error.message.contains("<|turn|>"), "{error}");
    // Characters that it lacks are named as the prompt is read.
    let few = model(&["<end>"], '0'..='9', None);
    let plain = model(&["</s>"], printable(), None);
    let error = read(&of(&Data::default(), &plain, &few), Prompt::Text("1+1".into())).expect_err("no plus");
    assert_eq!(error.slug, "tokenizer-unknown-character", "{error}");
    assert!(error.to_string().contains("as distill.teacher reads it"), "{error}");
}

#[test]
fn the_same_tokens_leave_the_prompt_to_the_student() {
    let student = model(&["</s>", "<|turn|>"], printable(), Some(CHAT));
    let text = of(&Data::default(), &student, &student);
    assert_eq!(read(&text, talk()).expect("a prompt"), "", "none of its own");
    assert!(text.teacher_text.expect("it was added").aligner.is_same());
}

#[test]
fn a_teacher_of_which_a_plan_knows_the_shape_has_no_tokenizer_to_read() {
    let student = model(&["</s>"], printable(), None);
    let mut shape = model(&["<end>"], '0'..='9', None);
    (shape.random, shape.tokenizer) = (true, TokenizerFiles::default());
    assert!(of(&Data::default(), &student, &shape).teacher_text.expect("it was added").aligner.is_same());
    // One that is there is read.
    shape.random = false;
    let text = text_model(&student, &Data::default()).expect("its own");
    let error = text.with_teacher(&Data::default(), &student, &shape).expect_err("no tokenizer");
    assert_eq!(error.slug, "tokenizer-missing", "{error}");
}

#[test]
fn half_of_the_tokens_of_prompts_are_needed() {
    let student = model(&["</s>"], printable(), None);
    let digits = model(&["<end>"], ('0'..='9').rev(), None);
    let text = of(&Data::default(), &student, &digits);
    let check = |texts: &[&str]| {
        let teacher = text.teacher_text.as_ref().expect("it was added");
        teacher.check(texts.iter().copied(), LIMITS)
    };
    assert!(check(&["1234", "5a7"]).is_ok() && check(&[]).is_ok());
    let error = check(&["12", "x5+7"]).expect_err("4 of 6 tokens");
    assert_eq!(error.slug, "teacher-not-aligned");
    assert!(error.message.contains("of 6 tokens in 2 prompts, 2 are in a span"), "{error}");
    assert!(error.to_string().contains("'x' at position 0"), "{error}");
}
