//! Rows that begin episodes: JSON lines and Parquet, and what is wrong with them.

use crate::shapes::{Table, example, functions, refusal};
use plimsoll_text::Message;
use plimsoll_textenv::{Job, Settings, Start};
use serde_json::{Value, json};
use std::path::PathBuf;

/// A file of the crate that reads data.
fn parquet(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../text/tests/parquet").join(name)
}

fn write(folder: &tempfile::TempDir, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn rows_are_the_arguments_of_reset_and_their_prompt_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, row: Value| Some(write(&folder, name, format!("{row}\n")));
    let settings = Settings {
        rows: file("train.jsonl", json!({ "prompt": "Be exact. ", "a": 1, "b": 2, "source": "here" })),
        eval_rows: file(
            "eval.jsonl",
            json!({ "prompt": [{ "role": "system", "content": "S" }], "a": 3, "b": 4 }),
        ),
        ..crate::settings()
    };
    let mut table = Table::open(&example(), &settings).unwrap();
    let asks = |a, b| format!("What is {a} + {b}? Compute with `add`, then give the sum to `answer`.");
    let first = table.reset(Start::train(0, 0));
    assert_eq!(first, [Message::new("user", format!("Be exact. {}", asks(1, 2)))]);
    let first = table.reset(Start::eval(0));
    assert_eq!(first, [Message::new("system", "S"), Message::new("user", asks(3, 4))]);
    // Without a prompt the class has all the words; one without an argument has its default.
    let rows = file("bare.jsonl", json!({ "prompt": null, "a": 5, "b": 6 }));
    let mut table = Table::open(&example(), &Settings { rows, ..crate::settings() }).unwrap();
    assert_eq!(table.reset(Start::train(0, 0)), [Message::new("user", asks(5, 6))]);
}

#[test]
fn parquet_begins_episodes_as_json_lines_do() {
    let (_folder, settings) = functions(&["add"]);
    let of = |name: &str, column: &str| Settings {
        rows: Some(parquet(name)),
        prompt_column: column.to_string(),
        ..settings.clone()
    };
    let mut table = Table::open("tools", &of("verl-zstd.parquet", "prompt")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..64 {
        let begun = table.ask(Job::Reset(Start::train(0, index))).unwrap();
        let number = begun.columns["extra_info"]["index"].as_i64().unwrap();
        let sum = format!("{number}+{}=", number + 1);
        assert_eq!(begun.messages, [Message::new("system", "Add."), Message::new("user", sum)]);
        assert!(!begun.columns.contains_key("prompt") && begun.columns["ability"] == "math");
        seen.insert(number);
    }
    assert_eq!(seen.len(), 9, "every row begins some");
    let mut table = Table::open("tools", &of("plain.parquet", "ground_truth")).unwrap();
    let begun = table.ask(Job::Reset(Start::train(0, 0))).unwrap();
    assert!(["2", "4"].contains(&begun.messages[0].content.as_str()), "{begun:?}");
    assert!(begun.columns.contains_key("prompt"), "another column has the prompt");
}

#[test]
fn what_is_wrong_with_rows_is_named_as_for_prompts() {
    let (folder, settings) = functions(&["add"]);
    let long = format!("{{\"prompt\": \"{}\"}}\n", "a".repeat(16 << 20));
    let whole = std::fs::read(parquet("verl-zstd.parquet")).unwrap();
    let mut lying = whole.clone();
    let end = lying.len();
    lying[end - 8..end - 4].copy_from_slice(&u32::MAX.to_le_bytes());
    for (rows, slug, words) in [
        (write(&folder, "a.jsonl", ""), "data-empty", "no rows"),
        (write(&folder, "b.jsonl", "[1]\n"), "data-bad-json", "b.jsonl:1: not an object"),
        (write(&folder, "c.jsonl", "{\n"), "data-bad-json", "c.jsonl:1: "),
        (write(&folder, "d.jsonl", long), "data-bad-json", "longer than 16777216 bytes"),
        (write(&folder, "e.parquet", "no"), "data-bad-parquet", "does not begin as a Parquet file does"),
        (write(&folder, "f.parquet", &whole[..end / 2]), "data-bad-parquet", "cut off"),
        (write(&folder, "g.parquet", lying), "data-bad-parquet", "4294967295 bytes of metadata"),
        (parquet("bytes.parquet"), "data-bad-parquet", "column `image`: it holds bytes"),
        (folder.path().join("absent.jsonl"), "data-missing", "absent.jsonl: No such file"),
        (folder.path().to_path_buf(), "data-missing", "not a regular file"),
    ] {
        for env in ["tools", &example()] {
            let tools = if env == "tools" { settings.tools.clone() } else { Vec::new() };
            let error = refusal(env, &Settings { rows: Some(rows.clone()), tools, ..settings.clone() });
            assert_eq!(error.slug, slug, "{env}: {error}");
            assert!(error.message.contains(words), "{env}: {error}");
            assert!(error.to_string().contains("environment.rows"), "{env}: {error}");
            assert!(!error.to_string().contains("data.prompts"), "{env}: {error}");
        }
    }
    // What rewards of the run grade begins with a prompt.
    let late = "{\"prompt\": \"a\"}\n{\"n\": 3}\n";
    for (rows, slug, words) in [
        (write(&folder, "h.jsonl", late), "data-column-missing", "h.jsonl:2: no column `prompt`"),
        (write(&folder, "i.jsonl", "{\"prompt\": 3}\n"), "data-bad-prompt", "column `prompt`"),
        (write(&folder, "j.jsonl", "{\"prompt\": [{\"role\": \"user\"}]}\n"), "data-bad-prompt", "`content`"),
        (write(&folder, "k.jsonl", "{\"prompt\": \"\"}\n"), "prompt-empty", "row 1 has an empty prompt"),
        (parquet("numbers.parquet"), "data-bad-prompt", "column `prompt`"),
    ] {
        let error = refusal("tools", &Settings { eval_rows: Some(rows), ..settings.clone() });
        assert_eq!(error.slug, slug, "{error}");
        let shown = error.to_string();
        assert!(error.message.contains(words) && shown.contains("environment.eval_rows"), "{error}");
    }
}
