//! Responses to the same prompts before and after: from evaluations where there were any, otherwise from the first and
//! the last step.

use plimsoll_base::{Error, Result};
use serde_json::Value;
use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

const PAIRS: usize = 3;
/// Longest text shown, in characters.
const LETTERS_MAX: usize = 600;
/// Longest line that is read; only responses beyond 100,000 tokens are longer with their log-probs.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Two responses to one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    pub before: Shown,
    pub after: Shown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub step: u64,
    /// The prompt, truncated.
    pub prompt: String,
    /// The response, truncated.
    pub response: String,
    pub reward: Option<f64>,
}

/// Returns the first responses of two files of samples; empty where a file is missing.
///
/// Errors: `run-dir-unreadable`.
pub(super) fn pairs(folder: &Path, first: &str, last: &str) -> Result<Vec<Pair>> {
    let (before, after) = (shown(folder, first)?, shown(folder, last)?);
    Ok(before.into_iter().zip(after).map(|(before, after)| Pair { before, after }).collect())
}

/// Returns the first response to each of the first prompts.
fn shown(folder: &Path, name: &str) -> Result<Vec<Shown>> {
    let path = folder.join(format!("{name}.jsonl"));
    let unreadable = |err: &std::io::Error| {
        Error::io("run-dir-unreadable", &path, err)
            .hint("restore the file; a run that is resumed writes it again")
    };
    let file = match File::open(&path) {
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(|err| unreadable(&err))?,
    };
    let (mut reader, mut line, mut found) = (BufReader::new(file), Vec::new(), Vec::<Shown>::new());
    while found.len() < PAIRS {
        line.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(|err| unreadable(&err))? == 0 {
            break;
        }
        let Ok(row) = serde_json::from_slice::<Value>(&line) else { break };
        let text = |key: &str| cut(row[key].as_str().unwrap_or_default());
        let one = Shown {
            step: row["step"].as_u64().unwrap_or(0),
            prompt: text("prompt"),
            response: text("response"),
            reward: row["reward"].as_f64(),
        };
        if found.last().is_none_or(|last| last.prompt != one.prompt) {
            found.push(one);
        }
    }
    Ok(found)
}

/// Truncates a text and removes control characters, which a terminal would obey.
fn cut(text: &str) -> String {
    let clean = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    let mut shown: String = text.chars().take(LETTERS_MAX).map(clean).collect();
    if text.chars().nth(LETTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Formats a table per prompt, with both responses side by side.
pub(super) fn markdown(pairs: &[Pair], title: &str) -> String {
    let mut text = format!("# Before and after\n\n{}\n", cell(title));
    for (i, Pair { before, after }) in pairs.iter().enumerate() {
        let head = |one: &Shown| match one.reward {
            Some(reward) => format!("after step {}, reward {reward:.3}", one.step),
            None => format!("after step {}", one.step),
        };
        let _ = write!(text, "\n## {}\n\n", i + 1);
        let _ = write!(text, "| | {} | {} |\n|---|---|---|\n", head(before), head(after));
        for (name, [a, b]) in
            [("prompt", [&before.prompt, &after.prompt]), ("response", [&before.response, &after.response])]
        {
            let _ = writeln!(text, "| {name} | {} | {} |", cell(a), cell(b));
        }
    }
    text
}

/// Escapes a text for a Markdown table.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("<br>"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' | '$' | '~' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_prompt_is_shown_once_with_both_responses() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, step: u64, word: &str| {
            let rows = (0..8).map(|i| {
                let reward = if i == 2 { Value::Null } else { json!(0.5) };
                json!({"step": step, "prompt": format!("p{}", i / 2), "response": format!("{word}{i}\n|<b>\u{1b}"), "reward": reward})
            });
            let text: String = rows.map(|row| format!("{row}\n")).collect();
            std::fs::write(folder.path().join(format!("{name}.jsonl")), text).unwrap();
        };
        write("a", 0, "x");
        write("b", 9, "y");
        let found = pairs(folder.path(), "a", "b").unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((found[1].before.prompt.as_str(), found[1].after.response.as_str()), ("p1", "y2\n|<b> "));
        let text = markdown(&found, "t");
        assert!(text.contains("| | after step 0, reward 0.500 | after step 9, reward 0.500 |"), "{text}");
        assert!(text.contains("| response | x2<br>\\|&lt;b&gt;  | y2<br>\\|&lt;b&gt;  |"), "{text}");
        assert!(pairs(folder.path(), "a", "c").unwrap().is_empty());
        assert_eq!(cut(&"é".repeat(LETTERS_MAX + 1)).chars().count(), LETTERS_MAX + 1);
    }
}
