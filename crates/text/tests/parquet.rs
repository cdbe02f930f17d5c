//! Parquet: the rows that pyarrow wrote, and files that are cut off or changed, which cost an error and no memory.
//! `parquet/make.py` makes the files. It has its own process because it counts all allocations of the process.

use plimsoll_base::Result;
use plimsoll_text::{Message, PARQUET_THREAD, Prompt, Row, each_prompt, file_size, load_sft};
use serde_json::{Map, Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bounds what reading a file of 8 KB may allocate in all, however it was changed. The decoder's buffers of 1,024
/// values for each column take a megabyte, a page may claim a megabyte that its metadata does not, thrice.
const ALLOCATED_MAX: usize = 64 << 20;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet").join(name)
}

fn load(path: &Path, column: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    each_prompt(path, column, |_, row| {
        rows.push(row);
        Ok(())
    })?;
    Ok(rows)
}

#[test]
fn verls_columns_are_objects_in_every_codec() {
    for codec in ["snappy", "zstd", "gzip"] {
        let path = fixture(&format!("verl-{codec}.parquet"));
        let rows = load(&path, "prompt").unwrap();
        assert_eq!(rows.len(), 9, "{codec}");
        for (i, row) in rows.iter().enumerate() {
            let messages = [Message::new("system", "Add."), Message::new("user", format!("{i}+{}=", i + 1))];
            assert_eq!(row.prompt, Prompt::Messages(messages.into()));
            let note = if i % 2 == 0 { json!("odd") } else { Value::Null };
            let expect = json!({
                "data_source": "sums", "ability": "math",
                "reward_model": { "ground_truth": (2 * i + 1).to_string(), "style": "rule" },
                "extra_info": { "index": i, "note": note, "split": "train", "tags": (["a", "b"][..i % 3]) },
                "pass_rate": i as f64 / 8.0,
            });
            assert_eq!(Value::Object(row.columns.clone()), expect, "{codec}, row {i}");
        }
        let size = file_size(&path, None).unwrap();
        let line = |row: &Row| Value::Object(row.columns.clone()).to_string().len() as u64;
        assert!(size.json.0 > rows.iter().map(line).sum() && size.reading.0 > 1000, "{size:?}");
        assert!(size.longest > plimsoll_base::Bytes(line(&rows[0])) && size.longest < size.json, "{size:?}");
        assert_eq!(size.rows, 9);
        // Tables of a row, of two messages and of two structs.
        assert!(size.values.0 > 9 * 5 * 400, "{size:?}");
    }
}

#[test]
fn every_type_has_a_form_in_json() {
    let rows = load(&fixture("plain.parquet"), "prompt").unwrap();
    let columns = |row: &Row| Value::Object(row.columns.clone());
    assert_eq!(rows[0].prompt, Prompt::Text("1+1=".into()));
    let first = json!({
        "ground_truth": "2", "day": "1970-01-01", "weight": 0.5, "table": { "a": 1 }, "count": 200
    });
    assert_eq!(columns(&rows[0]), first);
    let second = json!({
        "ground_truth": "4", "day": "1970-01-02", "weight": null, "table": {}, "count": 255
    });
    assert_eq!(columns(&rows[1]), second);
}

/// A whole decimal ended with a point, and no decimal was a number, so that 12.5 was not 12.50.
#[test]
fn r_numbers_have_their_digits_as_in_rows_of_json() {
    let rows = load(&fixture("digits.parquet"), "prompt").unwrap();
    let columns = |row: &Row| Value::Object(row.columns.clone());
    let first = json!({
        "whole": 9007199254740993i64, "unsigned": u64::MAX, "short": u32::MAX, "money": 12.5, "count": 42,
        "long": "12345678901234567890123.50000000000000000000", "share": 0.25, "answers": [7], "real": 0.1
    });
    assert_eq!(columns(&rows[0]), first);
    let second = json!({
        "whole": i64::MIN, "unsigned": 9223372036854775808u64, "short": 0, "money": -0.05,
        "count": 12345678901234567890u64, "long": 0.1, "share": 0.0, "answers": [], "real": 1e22
    });
    assert_eq!(columns(&rows[1]), second);
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let fake = folder.path().join("fake.parquet");
    std::fs::write(&fake, "{\"prompt\": \"a\"}\n").unwrap();
    let short = folder.path().join("short.parquet");
    std::fs::write(&short, "PAR1").unwrap();
    for (path, column, slug, words) in [
        (&fixture("numbers.parquet"), "prompt", "data-bad-prompt", "numbers.parquet:1: column `prompt`"),
        (
            &fixture("plain.parquet"),
            "question",
            "data-column-missing",
            "plain.parquet:1: no column `question`",
        ),
        (&fixture("verl-zstd.parquet"), "extra_info", "data-bad-prompt", "column `extra_info`"),
        (&fixture("bytes.parquet"), "prompt", "data-bad-parquet", "column `image`: it holds bytes"),
        (&fixture("empty.parquet"), "prompt", "data-empty", "no rows"),
        (&fake, "prompt", "data-bad-parquet", "does not begin as a Parquet file does"),
        (&short, "prompt", "data-bad-parquet", "cut off"),
    ] {
        let error = load(path, column).unwrap_err();
        assert!(error.slug == slug && error.message.contains(words), "{error}");
    }
    assert_eq!(
        load_sft(&fixture("numbers.parquet"), "prompt", false, &[], None).unwrap_err().slug,
        "data-bad-prompt"
    );
    // An error of the caller's `visit` ends the reading.
    let error = each_prompt(&fixture("verl-zstd.parquet"), "prompt", |index, _| match index {
        2 => Err(plimsoll_base::Error::new("prompt-empty", "enough")),
        _ => Ok(()),
    });
    assert_eq!(error.unwrap_err().slug, "prompt-empty");
}

/// Reads `bytes` as a file; true if it gave rows. Anything but rows or a named error fails the test.
fn survives(path: &Path, bytes: &[u8], what: &dyn Fn() -> String) -> bool {
    std::fs::write(path, bytes).unwrap();
    let region = Region::new(ALLOCATOR);
    let result = load(path, "prompt").and_then(|rows| file_size(path, None).map(|_| rows.len()));
    let allocated = region.change().bytes_allocated;
    assert!(allocated < ALLOCATED_MAX, "{}: {allocated} bytes", what());
    if let Err(error) = &result {
        let named =
            ["data-bad-parquet", "data-bad-prompt", "data-column-missing", "data-empty", "data-bad-json"];
        assert!(named.contains(&error.slug), "{}: {error}", what());
    }
    result.is_ok()
}

#[test]
fn files_that_are_cut_off_or_changed_cost_an_error() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some(PARQUET_THREAD) {
            print(info);
        }
    }));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.parquet");
    let (mut cases, mut read) = (0, 0);
    for name in ["verl-snappy", "verl-zstd", "verl-gzip", "plain"] {
        let whole = std::fs::read(fixture(&format!("{name}.parquet"))).unwrap();
        for length in (0..whole.len()).step_by(397) {
            let is_read = survives(&path, &whole[..length], &|| format!("{name} cut to {length}"));
            assert!(!is_read, "{name} cut to {length}");
        }
        for at in (0..whole.len()).step_by(if name == "plain" { 2 } else { 31 }) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at / 3 % 8);
            cases += 1;
            read += usize::from(survives(&path, &bytes, &|| {
                format!("{name} with bit {} of byte {at} changed", at / 3 % 8)
            }));
        }
    }
    // Text that changed is still text; most changes are elsewhere.
    assert!(cases > 1500 && read < cases, "{read} of {cases} were read");
}

#[test]
fn a_struct_of_one_column_is_found() {
    let rows = load(&fixture("verl-snappy.parquet"), "data_source").unwrap();
    assert_eq!(rows[0].prompt, Prompt::Text("sums".into()));
    let columns: Map<String, Value> = rows[0].columns.clone();
    assert!(columns["prompt"].is_array());
}
