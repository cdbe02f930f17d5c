//! First rows of tool episodes: files of `environment.rows`, read like those of `data.prompts`.
//!
//! This process holds them once. A worker gets a row when its episode begins.

use crate::{Kind, Settings};
use plimsoll_base::{Error, Result};
use plimsoll_text::{AnsweredPrompt, AnsweredRows, Part, Prompt, first_prompts, first_rows_of};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The rows of training and of evaluation.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    training: Vec<EpisodeRow>,
    /// Empty if evaluation uses the training rows.
    held_out: Vec<EpisodeRow>,
}

/// A row that begins an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeRow {
    /// A string or a list of messages; null if a class gets a row without a prompt.
    pub prompt: Value,
    /// The other columns, for the run's rewards; for a class all columns, which are the arguments of its `reset`.
    pub columns: Map<String, Value>,
}

impl Rows {
    /// Reads the files that the settings name.
    ///
    /// Errors: as `first_episode_rows`.
    pub(crate) fn open(kind: &Kind, settings: &Settings) -> Result<Rows> {
        let read = |path: &Option<PathBuf>, key: &str| -> Result<Vec<EpisodeRow>> {
            let mut rows = Vec::new();
            let Some(path) = path else { return Ok(rows) };
            let from = RowsFrom {
                path,
                key,
                prompt_column: &settings.prompt_column,
                drops_answers: settings.drops_answers,
                ignored: &settings.ignored,
            };
            first_episode_rows(kind, from, Part::WHOLE, |row| rows.push(row))?;
            Ok(rows)
        };
        Ok(Rows {
            training: read(&settings.rows, "environment.rows")?,
            held_out: read(&settings.eval_rows, "environment.eval_rows")?,
        })
    }

    /// Returns the row of the episode with this seed; `None` if there are none.
    pub(crate) fn of(&self, seed: u32, held_out: bool) -> Option<&EpisodeRow> {
        let rows = if held_out && !self.held_out.is_empty() { &self.held_out } else { &self.training };
        rows.get(seed as usize % rows.len().max(1))
    }
}

/// A file of rows.
#[derive(Clone, Copy, Debug)]
pub struct RowsFrom<'a> {
    pub path: &'a Path,
    /// The key of the run file that names it.
    pub key: &'a str,
    pub prompt_column: &'a str,
    /// True if the assistant's last turn is left out of a prompt that ends with it; else such a prompt is refused.
    pub drops_answers: bool,
    /// Columns and fields of messages that are left out.
    pub ignored: &'a [String],
}

/// Calls `visit` with each row of a part of a file. Returns the number of rows read if there may be more.
///
/// Errors: those of `first_prompts`, whose column is optional for a class; `prompt-empty`, `data-prompt-answered`.
pub fn first_episode_rows(
    kind: &Kind,
    from: RowsFrom<'_>,
    part: Part,
    mut visit: impl FnMut(EpisodeRow),
) -> Result<Option<usize>> {
    let RowsFrom { path, key, prompt_column, drops_answers, ignored } = from;
    let policy = if drops_answers { AnsweredPrompt::WithoutAnswer } else { AnsweredPrompt::Refused };
    let mut answered = AnsweredRows::new(policy);
    let more = if kind.is_graded() {
        first_prompts(path, prompt_column, part, |index, mut row| {
            row.ignore(ignored);
            if !answered.admit(&mut row.prompt, index) {
                return Ok(());
            }
            let prompt = match row.prompt {
                Prompt::Text(text) if text.is_empty() => return Err(no_prompt(path, index)),
                Prompt::Text(text) => Value::String(text),
                Prompt::Messages(messages) => messages.iter().map(plimsoll_text::Message::to_json).collect(),
            };
            visit(EpisodeRow { prompt, columns: row.columns });
            Ok(())
        })
    } else {
        first_rows_of(path, part, |_, mut columns| {
            columns.retain(|name, _| !ignored.contains(name));
            let prompt = columns.get(prompt_column).cloned().unwrap_or_default();
            visit(EpisodeRow { prompt, columns });
            Ok(())
        })
    };
    more.and_then(|more| answered.finish(path).map(|()| more)).map_err(|error| of_rows(error, key))
}

fn no_prompt(path: &Path, index: usize) -> Error {
    let message = format!("{}: row {} has an empty prompt", path.display(), index + 1);
    Error::new("prompt-empty", message).hint("give the row a prompt, or take it out of the file")
}

/// Replaces hints about prompts of a run without an environment.
fn of_rows(mut error: Error, key: &str) -> Error {
    let hint = match error.slug {
        "data-missing" => format!(
            "{key} is a JSONL or Parquet file, with a path from where the command runs, or hf:org/name"
        ),
        "data-column-missing" => format!(
            "a row of {key} begins an episode with its prompt: set data.prompt_column to the column that has it"
        ),
        _ => return error.fact(format!("it is in {key}")),
    };
    error.hints.retain(|hint| hint.starts_with("did you mean"));
    error.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prompt: &str) -> EpisodeRow {
        EpisodeRow { prompt: prompt.into(), columns: Map::new() }
    }

    #[test]
    fn a_row_follows_from_the_seed_and_evaluation_may_have_its_own() {
        let mut rows = Rows { training: vec![row("a"), row("b"), row("c")], held_out: Vec::new() };
        let prompt = |rows: &Rows, seed, held_out| rows.of(seed, held_out).map(|row| row.prompt.clone());
        assert_eq!(prompt(&rows, 4, false), Some("b".into()));
        assert_eq!(prompt(&rows, 5, true), Some("c".into()));
        rows.held_out.push(row("d"));
        assert_eq!(prompt(&rows, 5, true), Some("d".into()));
        assert_eq!(prompt(&rows, u32::MAX, false), Some("a".into()));
        assert_eq!(prompt(&Rows::default(), 7, true), None);
    }
}
