//! Samples of a run: files, and rows with given words. Files are streamed, newest first; pages name the next start.

use super::tail::{LINE_BYTES_MAX, fill};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use plimsoll_base::open_regular;
use plimsoll_images::{THUMBNAIL_BYTES_MAX, is_thumbnail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek, SeekFrom};
use std::path::{Path, PathBuf};

const FILES_MAX: usize = 4096;
pub const ROWS_MAX: usize = 20;
/// Bytes read for one answer; a search continues where it stopped.
const READ_BYTES_MAX: u64 = 32 << 20;
const TEXT_CHARS_MAX: usize = 16_384;
/// Tokens of a response shown with log-probs.
const TOKENS_MAX: usize = 4096;
/// Turns and messages shown of an episode.
const TURNS_MAX: usize = 64;
/// Images named of a row, and the bytes of those of one answer that are shown.
const IMAGES_MAX: usize = 16;
const IMAGE_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Words in the prompt or the response, ignoring case; empty for all rows.
    pub words: String,
    /// One file; all if empty.
    pub file: String,
    pub reward: Reward,
    /// Position at which the previous answer stopped: a file and the offset of a line.
    pub from: Option<(String, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reward {
    #[default]
    Any,
    Positive,
    NotPositive,
}

impl Reward {
    /// Parses the page's name; anything else is all rows.
    pub fn of(name: &str) -> Reward {
        match name {
            "positive" => Reward::Positive,
            "rest" => Reward::NotPositive,
            _ => Reward::Any,
        }
    }

    fn takes(self, row: &Value) -> bool {
        let positive = row["reward"].as_f64().is_some_and(|reward| reward > 0.0);
        match self {
            Reward::Any => true,
            Reward::Positive => positive,
            Reward::NotPositive => !positive,
        }
    }
}

/// Lists the files with samples, the latest step first; within a step, evaluations first.
pub fn list(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join("samples")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.ends_with(".jsonl") && !name.starts_with('.')).take(FILES_MAX).collect();
    names.sort_by(|a, b| (step_of(b), a).cmp(&(step_of(a), b)));
    names
}

/// Returns the step of a file: `step-000010.jsonl` and `eval-000010-math.jsonl` are of step 10.
fn step_of(name: &str) -> u64 {
    let digits =
        name.split(['-', '.']).find(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Returns the next rows and where the ones after them begin. Files that are not in the list are not served.
pub fn find(dir: &Path, query: &Query) -> Value {
    let mut found = find_rows(dir, query);
    if let Some(rows) = found["rows"].as_array_mut() {
        with_images(dir, rows);
    }
    found
}

fn find_rows(dir: &Path, query: &Query) -> Value {
    let files = list(dir);
    let names = files.iter().filter(|name| query.file.is_empty() || **name == query.file);
    let (mut rows, mut left) = (Vec::new(), READ_BYTES_MAX);
    let mut started = query.from.is_none();
    for name in names {
        let offset = match &query.from {
            Some((file, offset)) if !started && file == name => *offset,
            _ if !started => continue,
            _ => 0,
        };
        started = true;
        if let Some(next) = read(dir, name, offset, query, &mut left, &mut rows) {
            return json!({ "rows": rows, "next": { "file": name, "offset": next } });
        }
    }
    json!({ "rows": rows, "next": null })
}

/// Puts the content of small copies into rows, as data URLs; those beyond the limit of an answer stay names.
fn with_images(dir: &Path, rows: &mut [Value]) {
    let mut left = IMAGE_BYTES_MAX;
    for image in rows.iter_mut().filter_map(|row| row["images"].as_array_mut()).flatten() {
        let Some(png) = image["file"].as_str().and_then(|file| small_copy(dir, file)) else { continue };
        if png.len() <= left {
            left -= png.len();
            image["data"] = json!(format!("data:image/png;base64,{}", BASE64.encode(png)));
        }
    }
}

/// Reads a small copy next to the samples; nothing else is read, whatever a row names.
fn small_copy(dir: &Path, file: &str) -> Option<Vec<u8>> {
    let open = open(&dir.join("samples").join(Some(file).filter(|file| is_thumbnail(file))?))?;
    let mut png = Vec::new();
    open.take(THUMBNAIL_BYTES_MAX as u64 + 1).read_to_end(&mut png).ok()?;
    (png.len() <= THUMBNAIL_BYTES_MAX && png.starts_with(b"\x89PNG")).then_some(png)
}

/// Reads rows of one file from `offset` on. Returns where it stopped, if that is before the end.
fn read(
    dir: &Path,
    name: &str,
    offset: u64,
    query: &Query,
    left: &mut u64,
    rows: &mut Vec<Value>,
) -> Option<u64> {
    let mut file = open(&dir.join("samples").join(name))?;
    let words = query.words.to_lowercase();
    let (mut at, mut buffer) = (offset, vec![0; LINE_BYTES_MAX]);
    loop {
        let filled = file.seek(SeekFrom::Start(at)).and_then(|_| fill(&mut file, &mut buffer)).ok()?;
        if filled == 0 {
            return None;
        }
        // A row without its end is too long or half-written: it is skipped.
        let end = buffer[..filled].iter().rposition(|&b| b == b'\n').map_or(filled, |at| at + 1);
        for line in buffer[..end].split_inclusive(|&b| b == b'\n') {
            if rows.len() == ROWS_MAX || *left == 0 {
                return Some(at);
            }
            at += line.len() as u64;
            *left = left.saturating_sub(line.len() as u64);
            let Ok(row) = serde_json::from_slice::<Value>(line) else { continue };
            if query.reward.takes(&row) && holds(&row, &words) {
                rows.push(shown(name, &row));
            }
        }
    }
}

fn open(path: &PathBuf) -> Option<File> {
    let meta = fs::symlink_metadata(path).ok()?;
    meta.is_file().then(|| open_regular(path)).and_then(io::Result::ok)
}

fn holds(row: &Value, words: &str) -> bool {
    let texts = [&row["prompt"], &row["response"], &row["set"]];
    words.is_empty()
        || texts.iter().filter_map(|text| text.as_str()).any(|text| text.to_lowercase().contains(words))
}

/// Returns a row in the page's form, in bounded size.
fn shown(file: &str, row: &Value) -> Value {
    let mut out = json!({ "file": file });
    const SHORT: [&str; 9] = [
        "step",
        "set",
        "prompt_index",
        "sample",
        "reward",
        "rewards",
        "response_tokens",
        "finish",
        "policy_version",
    ];
    for key in SHORT {
        out[key] = row[key].clone();
    }
    for key in ["prompt", "response", "ground_truth", "system_prompt"] {
        out[key] = text(&row[key]);
    }
    if row["images"].is_array() {
        let image = |image: &Value| {
            let number = |key: &str| image[key].as_u64();
            json!({
                "name": text(&image["name"]), "file": text(&image["file"]),
                "width": number("width"), "height": number("height"), "tokens": number("tokens"),
            })
        };
        out["images"] = first(&row["images"], IMAGES_MAX, image);
    }
    for key in ["logprobs", "token_chars", "policy_versions"] {
        out[key] = first(&row[key], TOKENS_MAX, Value::clone);
    }
    if row["turns"].is_array() {
        let message =
            |message: &Value| json!({ "role": text(&message["role"]), "content": text(&message["content"]) });
        out["messages"] = first(&row["messages"], TURNS_MAX, message);
        let turn = |turn: &Value| {
            json!({
                "response": text(&turn["response"]),
                "reward": turn["reward"],
                "logprobs": first(&turn["logprobs"], TOKENS_MAX, Value::clone),
                "said": first(&turn["said"], TURNS_MAX, message),
            })
        };
        out["turns"] = first(&row["turns"], TURNS_MAX, turn);
    }
    out
}

fn first(list: &Value, count: usize, each: impl Fn(&Value) -> Value) -> Value {
    list.as_array().map_or(Value::Null, |list| list.iter().take(count).map(each).collect())
}

fn text(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return Value::Null };
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => json!(text),
        Some((end, _)) => {
            json!(format!("{}… ({} more characters)", &text[..end], text[end..].chars().count()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("samples")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join("samples").join(name), text).unwrap();
        }
        folder
    }

    fn row(prompt: &str, response: &str, reward: f64) -> String {
        format!(
            "{}\n",
            json!({ "prompt": prompt, "response": response, "reward": reward, "logprobs": [-0.5] })
        )
    }

    #[test]
    fn files_stand_latest_first_and_others_are_no_samples() {
        let files = [
            "step-000005.jsonl",
            "eval-000010.jsonl",
            "step-000010.jsonl",
            "side_by_side.md",
            ".x.jsonl.part",
        ];
        let folder = dir(&files.map(|name| (name, "")));
        assert_eq!(list(folder.path()), ["eval-000010.jsonl", "step-000010.jsonl", "step-000005.jsonl"]);
        assert_eq!(list(Path::new("/nonexistent")), [""; 0]);
    }

    #[test]
    fn rows_are_found_by_words_and_reward_and_a_page_says_where_the_next_begins() {
        let many: String = (0..50).map(|i| row(&format!("Prompt {i}"), "x", f64::from(i % 2))).collect();
        let folder =
            dir(&[("step-000002.jsonl", &many), ("step-000001.jsonl", &row("old prompt", "Äpfel", 1.0))]);
        let find = |query: &Query| super::find(folder.path(), query);
        let (mut query, mut seen) = (Query::default(), Vec::new());
        loop {
            let found = find(&query);
            let rows = found["rows"].as_array().unwrap();
            assert!(rows.len() <= ROWS_MAX);
            seen.extend(rows.iter().map(|row| row["prompt"].as_str().unwrap().to_string()));
            let Some(file) = found["next"]["file"].as_str() else { break };
            query.from = Some((file.to_string(), found["next"]["offset"].as_u64().unwrap()));
        }
        assert_eq!(seen.len(), 51);
        assert_eq!((seen[0].as_str(), seen[50].as_str()), ("Prompt 0", "old prompt"));
        let count = |words: &str, file: &str, reward: Reward| {
            let query = Query { words: words.into(), file: file.into(), reward, from: None };
            find(&query)["rows"].as_array().unwrap().len()
        };
        assert_eq!(count("äPFEL", "", Reward::Any), 1);
        assert_eq!(count("prompt 4", "", Reward::Any), 11);
        assert_eq!(count("prompt 4", "", Reward::Positive), 5);
        assert_eq!(count("prompt 4", "", Reward::NotPositive), 6);
        assert_eq!(count("", "step-000001.jsonl", Reward::Any), 1);
        assert_eq!(count("", "../../etc/passwd", Reward::Any), 0);
    }

    #[test]
    fn small_copies_are_shown_and_no_other_file_is() {
        let png = "image-0123456789abcdef.png";
        let line = |file: &str| {
            let image = json!({ "name": "cat.jpg", "width": 64, "height": 32, "tokens": 2, "file": file });
            format!("{}\n", json!({ "prompt": "p", "response": "r", "images": vec![image; 17] }))
        };
        let names = [png, "image-1123456789abcdef.png", "image-2123456789abcdef.png", "../events.jsonl"];
        let text: String = names.map(line).concat();
        let folder =
            dir(&[("step-000001.jsonl", &text), (png, "\u{89}"), ("image-2123456789abcdef.png", "<svg>")]);
        let samples = folder.path().join("samples");
        std::fs::write(samples.join(png), b"\x89PNG123").unwrap();
        std::os::unix::fs::symlink(samples.join(png), samples.join(names[1])).unwrap();
        std::fs::write(folder.path().join("events.jsonl"), b"\x89PNG").unwrap();
        let found = find(folder.path(), &Query::default());
        let rows = found["rows"].as_array().unwrap();
        let shown: Vec<usize> = rows
            .iter()
            .map(|row| {
                row["images"].as_array().unwrap().iter().filter(|image| image["data"].is_string()).count()
            })
            .collect();
        assert_eq!(shown, [IMAGES_MAX, 0, 0, 0]);
        let image = &rows[0]["images"][0];
        assert_eq!((&image["width"], &image["name"]), (&json!(64), &json!("cat.jpg")));
        assert_eq!(image["data"], "data:image/png;base64,iVBORzEyMw==");
        // Beyond the limit of an answer they are names.
        std::fs::write(samples.join(png), [&b"\x89PNG"[..], &vec![0; THUMBNAIL_BYTES_MAX - 4]].concat())
            .unwrap();
        std::fs::write(samples.join("step-000001.jsonl"), line(png).repeat(4)).unwrap();
        let found = find(folder.path(), &Query::default()).to_string();
        assert_eq!(found.matches("data:image").count(), IMAGE_BYTES_MAX / THUMBNAIL_BYTES_MAX);
    }

    #[test]
    fn damaged_rows_and_links_are_passed_over_and_long_texts_are_cut() {
        let long = "é".repeat(TEXT_CHARS_MAX + 5);
        let text = format!("{{\"torn\n{}not json\n{{\"prompt\":\"tor", row("p", &long, f64::NAN));
        let folder = dir(&[("step-000001.jsonl", &text)]);
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("samples/step-000002.jsonl")).unwrap();
        let found = find(folder.path(), &Query::default());
        let rows = found["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &found["next"]), (1, &Value::Null));
        assert!(rows[0]["response"].as_str().unwrap().ends_with("… (5 more characters)"));
        assert_eq!(rows[0]["reward"], Value::Null);
    }
}
