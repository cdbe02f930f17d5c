//! Responses to the same prompts before and after: from evaluations, if any, else from the first and last steps.

use plimsoll_base::{Error, Result, open_regular, shown_places};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

const PAIRS: usize = 3;
/// Prompts of a file that are compared.
const PROMPTS_MAX: usize = 1 << 14;
/// Longest text shown, in characters.
const LETTERS_MAX: usize = 600;
/// Longest line read; only responses beyond 100,000 tokens exceed it with their log-probs.
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
    pub prompt: String,
    pub response: String,
    pub reward: Option<f64>,
}

/// Returns responses from two files of samples to their first common prompts; `None` if a file is missing.
///
/// Errors: `run-dir-unreadable`.
pub(super) fn pairs(folder: &Path, first: &str, last: &str) -> Result<Option<Vec<Pair>>> {
    let (first, last) = (folder.join(format!("{first}.jsonl")), folder.join(format!("{last}.jsonl")));
    if !first.exists() || !last.exists() {
        return Ok(None);
    }
    let mut of_last = HashSet::new();
    each(&last, |prompt, _| {
        of_last.insert(prompt.to_string());
        of_last.len() < PROMPTS_MAX
    })?;
    let (mut prompts, mut before): (Vec<String>, Vec<Shown>) = (Vec::new(), Vec::new());
    each(&first, |prompt, row| {
        if of_last.contains(prompt) && !prompts.iter().any(|known| known == prompt) {
            prompts.push(prompt.to_string());
            before.push(shown(row));
        }
        prompts.len() < PAIRS
    })?;
    let mut after: Vec<Option<Shown>> = vec![None; prompts.len()];
    each(&last, |prompt, row| {
        if let Some(at) = prompts.iter().position(|known| known == prompt) {
            after[at].get_or_insert_with(|| shown(row));
        }
        after.iter().any(Option::is_none)
    })?;
    let both = before.into_iter().zip(after);
    Ok(Some(both.filter_map(|(before, after)| Some(Pair { before, after: after? })).collect()))
}

/// Calls `look` with each row and its whole prompt, system prompt included, while it returns true.
fn each(path: &Path, mut look: impl FnMut(&str, &Value) -> bool) -> Result<()> {
    let unreadable = |err: &std::io::Error| {
        Error::io("run-dir-unreadable", path, err)
            .hint("restore the file; a run that is resumed writes it again")
    };
    let file = match open_regular(path) {
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|err| unreadable(&err))?,
    };
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    loop {
        line.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(|err| unreadable(&err))? == 0 {
            return Ok(());
        }
        let Ok(row) = serde_json::from_slice::<Value>(&line) else { return Ok(()) };
        let part = |key: &str| row[key].as_str().unwrap_or_default();
        if !look(&format!("{}\n{}", part("system_prompt"), part("prompt")), &row) {
            return Ok(());
        }
    }
}

fn shown(row: &Value) -> Shown {
    let text = |key: &str| cut(row[key].as_str().unwrap_or_default());
    Shown {
        step: row["step"].as_u64().unwrap_or(0),
        prompt: text("prompt"),
        response: text("response"),
        reward: row["reward"].as_f64(),
    }
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

/// Formats a table per prompt, with both responses side by side, or a note if there is no such prompt.
pub(super) fn markdown(pairs: &[Pair], title: &str) -> String {
    let mut text = format!("# Before and after\n\n{}\n", cell(title));
    if pairs.is_empty() {
        text += "\nThe first and the last step have no prompt in common. A run that evaluates (`[eval]`) shows its held-out prompts here.\n";
    }
    for (i, Pair { before, after }) in pairs.iter().enumerate() {
        let head = |one: &Shown| match one.reward {
            Some(reward) => format!("after step {}, reward {}", one.step, shown_places(reward, 3)),
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
        let found = pairs(folder.path(), "a", "b").unwrap().unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((found[1].before.prompt.as_str(), found[1].after.response.as_str()), ("p1", "y2\n|<b> "));
        let text = markdown(&found, "t");
        assert!(text.contains("| | after step 0, reward 0.500 | after step 9, reward 0.500 |"), "{text}");
        assert!(text.contains("| response | x2<br>\\|&lt;b&gt;  | y2<br>\\|&lt;b&gt;  |"), "{text}");
        assert_eq!(pairs(folder.path(), "a", "c").unwrap(), None);
        assert_eq!(cut(&"é".repeat(LETTERS_MAX + 1)).chars().count(), LETTERS_MAX + 1);
    }

    #[test]
    fn only_prompts_of_both_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, step: u64, prompts: &[(&str, &str)]| {
            let row = |(system, prompt): &(&str, &str)| json!({"step": step, "prompt": prompt, "system_prompt": system, "response": format!("{name}-{prompt}")});
            let text: String = prompts.iter().map(|prompt| format!("{}\n", row(prompt))).collect();
            std::fs::write(folder.path().join(format!("{name}.jsonl")), text).unwrap();
        };
        write("first", 1, &[("", "a"), ("", "b"), ("", "b"), ("", "c"), ("x", "d")]);
        write("last", 9, &[("", "c"), ("y", "d"), ("", "e"), ("", "b"), ("", "c")]);
        write("other", 9, &[("", "z")]);
        let found = pairs(folder.path(), "first", "last").unwrap().unwrap();
        let shown: Vec<[&str; 4]> = found
            .iter()
            .map(|Pair { before, after }| {
                [&before.prompt, &after.prompt, &before.response, &after.response].map(String::as_str)
            })
            .collect();
        assert_eq!(shown, [["b", "b", "first-b", "last-b"], ["c", "c", "first-c", "last-c"]]);
        let none = pairs(folder.path(), "first", "other").unwrap().unwrap();
        assert!(none.is_empty());
        assert!(markdown(&none, "t").contains("no prompt in common"));
    }
}
