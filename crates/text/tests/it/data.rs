//! JSON lines: rows of both kinds, and every way in which a file can be wrong.

use plimsoll_base::Result;
use plimsoll_files::OpenModel;
use plimsoll_text::{
    ChatTemplate, Message, Prompt, Row, RowTokenizer, SftRow, SftTokens, Strings, Tokenizer, each_prompt,
    file_size, load_sft,
};
use serde_json::Map;
use std::path::{Path, PathBuf};

fn load_prompts(path: &Path, column: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    each_prompt(path, column, |index, row| {
        assert_eq!(index, rows.len());
        rows.push(row);
        Ok(())
    })?;
    Ok(rows)
}

fn file(dir: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("d.jsonl");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn rows_keep_their_other_columns() {
    let dir = tempfile::tempdir().unwrap();
    let text = "\u{feff}{\"prompt\": \"1+1=\", \"ground_truth\": \"2\", \"n\": [1]}\n\n  \r\n{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    let rows = load_prompts(&file(&dir, text.as_bytes()), "prompt").unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].prompt, Prompt::Text("1+1=".into()));
    assert_eq!(serde_json::to_string(&rows[0].columns).unwrap(), r#"{"ground_truth":"2","n":[1]}"#);
    assert_eq!(rows[1].prompt, Prompt::Messages(vec![Message::new("user", "hi")]));
    let rows = load_prompts(&file(&dir, b"{\"q\": \"a\", \"prompt\": 1}"), "q").unwrap();
    assert_eq!(rows[0].columns["prompt"], 1);
}

/// They were the user's message, or refused.
#[test]
fn r_messages_as_text_and_lists_of_parts_were_no_messages() {
    let dir = tempfile::tempdir().unwrap();
    let text = concat!(
        r#"{"prompt": "[{\"role\": \"user\", \"content\": \"hi\"}]"}"#,
        "\n",
        r#"{"prompt": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]}"#,
        "\n",
        r#"{"prompt": "[1, 2] is a list"}"#,
    );
    let rows = load_prompts(&file(&dir, text.as_bytes()), "prompt").unwrap();
    let hi = Prompt::Messages(vec![Message::new("user", "hi")]);
    assert_eq!((&rows[0].prompt, &rows[1].prompt), (&hi, &hi));
    assert_eq!(rows[2].prompt, Prompt::Text("[1, 2] is a list".into()));
    let text = r#"{"messages": "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]"}"#;
    let rows = load_sft(&file(&dir, text.as_bytes()), "prompt", false, &[], None).unwrap();
    assert_eq!(rows[0].row.row, SftRow::answer(Prompt::Messages(vec![Message::new("user", "a")]), "b"));
}

#[test]
fn a_file_is_measured_by_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let text = "{\"prompt\": \"\\\\frac{1}{2} \\\"a\\\": {\\\"b\\\"\", \"x\": { \"y\" : [{\"z\": 1}]}}\n{\"prompt\":\"\"}\n";
    let size = file_size(&file(&dir, text.repeat(5000).as_bytes()), None).unwrap();
    // The longest row ends the file, or is across the ends of buffers.
    let long = format!("{{\"prompt\": \"{}\"}}", "a".repeat(200_000));
    for text in [format!("{text}{long}"), format!("{text}{long}\n{text}"), long.clone()] {
        let longest = file_size(&file(&dir, text.as_bytes()), None).unwrap().longest.0;
        assert!((long.len() as u64..=long.len() as u64 + 1).contains(&longest), "{longest}");
    }
    assert_eq!((size.json.0, size.rows), (5000 * text.len() as u64, 5000 * 2));
    // A line's buffer doubles, and a text may have escapes.
    assert_eq!(size.reading.0, 3 * size.longest.0);
}

/// A list of messages in a text is read as one, and takes what the list takes.
#[test]
fn messages_as_text_are_measured_as_messages() {
    let dir = tempfile::tempdir().unwrap();
    let messages = serde_json::json!([{"role": "user", "content": "[\"a\\\\\"]"}, {"role": "assistant", "content": "b", "x": [1]}]);
    let values =
        |row: serde_json::Value| file_size(&file(&dir, row.to_string().as_bytes()), None).unwrap().values.0;
    let as_list = values(serde_json::json!({ "messages": messages }));
    let as_text = values(serde_json::json!({ "messages": messages.to_string() }));
    assert!((as_list..as_list + 100).contains(&as_text), "{as_list} as a list, {as_text} as a text");
    let other = "[{\"a\": 1}, {\"b\": 2}]";
    assert_eq!(
        values(serde_json::json!({ "messages": other })),
        values(serde_json::json!({ "messages": "a" }))
    );
}

#[test]
fn every_wrong_file_is_named_by_line_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let good = "{\"prompt\": \"a\"}\n";
    for (bytes, slug, words) in [
        (b"".to_vec(), "data-empty", "no rows"),
        (b"\n \n".to_vec(), "data-empty", "no rows"),
        (
            format!("{good}{{\"prompt\": ").into_bytes(),
            "data-bad-json",
            ":2: EOF while parsing a value at column 10",
        ),
        (b"[1]".to_vec(), "data-bad-json", ":1: not an object"),
        (b"{\"prompt\": \"\xff\"}".to_vec(), "data-bad-json", ":1: "),
        (
            format!("{good}{{\"question\": 1, \"b\": 2}}").into_bytes(),
            "data-column-missing",
            ":2: no column `prompt`",
        ),
        (b"{\"prompt\": 3}".to_vec(), "data-bad-prompt", "column `prompt`"),
        (b"{\"prompt\": []}".to_vec(), "data-bad-prompt", "column `prompt`"),
        (b"{\"prompt\": [{\"role\": \"user\"}]}".to_vec(), "data-bad-prompt", "missing field `content`"),
        (
            br#"{"prompt": [{"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}]}"#
                .to_vec(),
            "data-bad-prompt",
            "`tool_calls`[0].function.name",
        ),
        (
            br#"{"prompt": [{"from": "human", "value": "hi"}]}"#.to_vec(),
            "data-bad-prompt",
            "write `from` as `role`",
        ),
        (vec![b'x'; (16 << 20) + 2], "data-bad-json", ":1: longer than"),
    ] {
        let error = load_prompts(&file(&dir, &bytes), "prompt").unwrap_err();
        assert_eq!(error.slug, slug, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    let error = load_prompts(&file(&dir, b"{\"question\": 1, \"b\": 2}"), "prompt").unwrap_err();
    assert_eq!(error.facts, ["columns there: `question`, `b`"]);
    let table = dir.path().join("d.csv");
    std::fs::write(&table, "prompt,answer\n1+1=,2\n").unwrap();
    let error = load_prompts(&table, "prompt").unwrap_err();
    assert!(error.slug == "data-bad-json" && error.hints[1].contains("csv files are not read"), "{error:?}");
    for path in [dir.path().join("absent"), dir.path().to_path_buf()] {
        assert_eq!(load_prompts(&path, "prompt").unwrap_err().slug, "data-missing");
    }
}

#[test]
fn supervised_rows_have_three_forms() {
    let dir = tempfile::tempdir().unwrap();
    let text = concat!(
        "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n",
    );
    let rows = load_sft(&file(&dir, text.as_bytes()), "prompt", false, &[], None).unwrap();
    let chat = SftRow::answer(Prompt::Messages(vec![Message::new("user", "a")]), "b");
    let rows: Vec<SftRow> = rows.into_iter().map(|of| of.row.row).collect();
    assert_eq!(rows, [SftRow::answer(Prompt::Text("2+2=".into()), "4"), chat.clone(), chat]);
    let named = file(&dir, b"{\"question\": \"2+2=\", \"completion\": \"4\"}");
    let rows = load_sft(&named, "question", false, &[], None).unwrap();
    assert_eq!(rows[0].row.row, SftRow::answer(Prompt::Text("2+2=".into()), "4"));
    let error = load_sft(&named, "qestion", false, &[], None).unwrap_err();
    assert_eq!((error.slug, &*error.hints[0]), ("data-column-missing", "did you mean `question`?"));
    for (text, slug) in [
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "data-bad-prompt"),
        ("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", "data-bad-prompt"),
        ("{\"messages\": \"a\"}", "data-bad-prompt"),
        ("{\"prompt\": \"a\"}", "data-column-missing"),
        ("{\"prompt\": \"a\", \"completion\": 4}", "data-bad-prompt"),
    ] {
        assert_eq!(
            load_sft(&file(&dir, text.as_bytes()), "prompt", false, &[], None).unwrap_err().slug,
            slug,
            "{text}"
        );
    }
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

/// Returns the text of a tokenized prompt.
fn strings(apply_chat: bool) -> Strings {
    if apply_chat { Strings::Chat { marks: Vec::new() } } else { Strings::Raw }
}

fn of_texts<'t>(tokenizer: &'t Tokenizer, strings: &'t Strings) -> RowTokenizer<'t> {
    RowTokenizer {
        tokenizer,
        template: None,
        system_prompt: None,
        strings,
        eos: None,
        begins: true,
        continues: false,
    }
}

fn prompt_text(
    prompt: &Prompt,
    system: Option<&str>,
    apply_chat: bool,
    with_template: bool,
) -> Result<String> {
    let model = OpenModel::open("random:smollm2-135m", None, false)?;
    let tokenizer = Tokenizer::from_files(&model.tokenizer, model.spec.vocab)?;
    let template = ChatTemplate::new(TEMPLATE, &[])?;
    let strings = strings(apply_chat);
    let rows = RowTokenizer {
        template: with_template.then_some(&template),
        system_prompt: system,
        ..of_texts(&tokenizer, &strings)
    };
    let ids = rows.prompt(prompt, &Map::new())?;
    Ok(tokenizer.decode(&ids, false))
}

#[test]
fn a_string_is_raw_unless_a_chat_is_asked_for() {
    let text = Prompt::Text("x".into());
    let chat = Prompt::Messages(vec![Message::new("system", "s"), Message::new("user", "x")]);
    let user = Prompt::Messages(vec![Message::new("user", "x")]);
    for (prompt, system, apply_chat, expect) in [
        (&text, None, false, "x"),
        (&text, None, true, "u:x;a:"),
        (&text, Some("p"), false, "s:p;u:x;a:"),
        (&user, None, false, "u:x;a:"),
        (&user, Some("p"), false, "s:p;u:x;a:"),
        (&chat, Some("p"), true, "s:s;u:x;a:"),
    ] {
        assert_eq!(prompt_text(prompt, system, apply_chat, true).unwrap(), expect);
    }
    assert_eq!(prompt_text(&text, None, false, false).unwrap(), "x");
    for (prompt, apply_chat) in [(&text, true), (&user, false)] {
        assert_eq!(prompt_text(prompt, None, apply_chat, false).unwrap_err().slug, "chat-template-missing");
    }
}

#[test]
fn a_supervised_row_ends_with_eos_or_as_its_template_ends() {
    let model = OpenModel::open("random:smollm2-135m", None, false).unwrap();
    let tokenizer = Tokenizer::from_files(&model.tokenizer, model.spec.vocab).unwrap();
    let template = ChatTemplate::new(TEMPLATE, &[]).unwrap();
    let row = SftRow::answer(Prompt::Text("x".into()), "y");
    for (apply_chat, expect) in [(false, ("x", "y<eos>")), (true, ("u:x;a:", "y;"))] {
        let strings = strings(apply_chat);
        let rows =
            RowTokenizer { template: Some(&template), eos: Some(257), ..of_texts(&tokenizer, &strings) };
        let SftTokens { prompt, completion, learnt } = rows.sft(&row, &Map::new()).unwrap();
        assert_eq!(learnt, []);
        assert_eq!(
            (tokenizer.decode(&prompt, false).as_str(), tokenizer.decode(&completion, false).as_str()),
            expect
        );
    }
    let other = ChatTemplate::new("{{ messages | length }}", &[]).unwrap();
    let strings = strings(true);
    let rows = RowTokenizer { template: Some(&other), ..of_texts(&tokenizer, &strings) };
    let error = rows.sft(&row, &Map::new()).unwrap_err();
    assert_eq!(error.slug, "chat-template-invalid");
}
