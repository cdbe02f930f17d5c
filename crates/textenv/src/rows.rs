//! First rows of tool episodes: files of `environment.rows`, read like those of `data.prompts`.
//!
//! This process holds them once. A worker gets a row when its episode begins.

use crate::{Kind, Settings};
use plimsoll_base::{Error, Result};
use plimsoll_text::{
    AnsweredPrompt, AnsweredRows, ImageColumns, ImageFolder, ImageRow, ImageSource, Part, Prompt, Row,
    first_prompts, first_prompts_with_images, first_rows_of,
};
use plimsoll_worker::SampleImage;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// The images of the prompt, which a class gets with the columns, where rows may have some.
    pub images: Option<Arc<[SampleImage]>>,
}

/// Where rows have their images.
#[derive(Clone, Copy, Debug)]
pub struct ImagesFrom<'a> {
    /// The column with one image or a list of them.
    pub column: &'a str,
    /// The folder that names are relative to; that of the file of rows if absent.
    pub folder: Option<&'a Path>,
    /// What the model's chat template writes for an image.
    pub placeholder: &'a str,
}

/// The images of a row, in the order of the placeholders of its prompt.
#[derive(Debug)]
pub struct EpisodeImages {
    /// The file and the line, for errors.
    pub place: String,
    /// The images, or what is wrong with one.
    pub sources: Vec<Result<ImageSource>>,
    pub folder: Arc<ImageFolder>,
}

/// Takes the images of the rows of episodes.
pub struct ImageTaker<'t> {
    pub from: ImagesFrom<'t>,
    /// Takes those of a row, and returns them as an environment gets them. It is called for all rows in the order of
    /// `Hosts::row_of`.
    pub take: &'t mut dyn FnMut(EpisodeImages) -> Result<Arc<[SampleImage]>>,
}

impl Rows {
    /// Reads the files that the settings name. `images`: takes the images of rows, if they have any.
    ///
    /// Errors: as `first_episode_rows`; those of taking images.
    pub(crate) fn open(kind: &Kind, settings: &Settings, mut images: Option<ImageTaker<'_>>) -> Result<Rows> {
        let mut read = |path: &Option<PathBuf>, key: &str| -> Result<Vec<EpisodeRow>> {
            let mut rows = Vec::new();
            let Some(path) = path else { return Ok(rows) };
            let from = RowsFrom {
                path,
                key,
                prompt_column: &settings.prompt_column,
                drops_answers: settings.drops_answers,
                ignored: &settings.ignored,
                images: images.as_ref().map(|images| images.from),
            };
            first_episode_rows(kind, from, Part::WHOLE, |mut row, found| {
                if let (Some(images), Some(found)) = (&mut images, found) {
                    row.images = Some((images.take)(found)?);
                }
                rows.push(row);
                Ok(())
            })?;
            Ok(rows)
        };
        Ok(Rows {
            training: read(&settings.rows, "environment.rows")?,
            held_out: read(&settings.eval_rows, "environment.eval_rows")?,
        })
    }

    /// Returns the row of the episode with this seed; `None` if there are none.
    pub(crate) fn of(&self, seed: u32, held_out: bool) -> Option<&EpisodeRow> {
        let number = self.number_of(seed, held_out)?;
        self.training.get(number).or_else(|| self.held_out.get(number - self.training.len()))
    }

    /// Returns the number of the row of the episode with this seed among all, those of training first.
    pub(crate) fn number_of(&self, seed: u32, held_out: bool) -> Option<usize> {
        let (rows, first) = if held_out && !self.held_out.is_empty() {
            (&self.held_out, self.training.len())
        } else {
            (&self.training, 0)
        };
        (!rows.is_empty()).then(|| first + seed as usize % rows.len())
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
    /// Where their images are, if rows have some.
    pub images: Option<ImagesFrom<'a>>,
}

/// Calls `visit` with each row of a part of a file, and with its images where rows have some. Returns the number of
/// rows read if there may be more.
///
/// Errors: those of `first_prompts`, whose column is optional for a class without images; `prompt-empty`,
/// `data-prompt-answered`; those of `visit`.
pub fn first_episode_rows(
    kind: &Kind,
    from: RowsFrom<'_>,
    part: Part,
    mut visit: impl FnMut(EpisodeRow, Option<EpisodeImages>) -> Result<()>,
) -> Result<Option<usize>> {
    let RowsFrom { path, key, prompt_column, drops_answers, ignored, images } = from;
    let policy = if drops_answers { AnsweredPrompt::WithoutAnswer } else { AnsweredPrompt::Refused };
    let mut answered = AnsweredRows::new(policy);
    let row = |prompt, columns| EpisodeRow { prompt, columns, images: None };
    if kind.plays_tasks() {
        // Workers read the tasks of the folder.
        let folder = path.to_string_lossy().into_owned();
        visit(row(Value::Null, Map::from_iter([("tasks".to_string(), folder.into())])), None)?;
        return Ok(None);
    }
    let more = match images {
        Some(of) => with_images(from, of, part, |index, mut found, folder| {
            found.row.ignore(ignored);
            if kind.is_graded() && !answered.admit(&mut found.row.prompt, index) {
                return Ok(());
            }
            let ImageRow { place, row: Row { prompt, mut columns }, images: sources } = found;
            let prompt = prompt_of(prompt, path, index)?;
            if !kind.is_graded() {
                columns.insert(prompt_column.to_string(), prompt.clone());
            }
            visit(row(prompt, columns), Some(EpisodeImages { place, sources, folder: folder.clone() }))
        }),
        None if kind.is_graded() => first_prompts(path, prompt_column, part, |index, mut found| {
            found.ignore(ignored);
            if !answered.admit(&mut found.prompt, index) {
                return Ok(());
            }
            visit(row(prompt_of(found.prompt, path, index)?, found.columns), None)
        }),
        None => first_rows_of(path, part, |_, mut columns| {
            columns.retain(|name, _| !ignored.contains(name));
            let prompt = columns.get(prompt_column).cloned().unwrap_or_default();
            visit(row(prompt, columns), None)
        }),
    };
    more.and_then(|more| answered.finish(path).map(|()| more)).map_err(|error| of_rows(error, key))
}

/// Calls `visit` with the rows of a part of a file that have images, and the folder in which their names are.
fn with_images(
    from: RowsFrom<'_>,
    of: ImagesFrom<'_>,
    part: Part,
    mut visit: impl FnMut(usize, ImageRow, &Arc<ImageFolder>) -> Result<()>,
) -> Result<Option<usize>> {
    let folder = Arc::new(ImageFolder::of(from.path, of.folder)?);
    let columns = ImageColumns { prompt: from.prompt_column, images: of.column, placeholder: of.placeholder };
    first_prompts_with_images(from.path, columns, part, |index, row| visit(index, row, &folder))
}

/// Returns the prompt of a row as its environment gets it.
fn prompt_of(prompt: Prompt, path: &Path, index: usize) -> Result<Value> {
    match prompt {
        Prompt::Text(text) if text.is_empty() => Err(no_prompt(path, index)),
        Prompt::Text(text) => Ok(Value::String(text)),
        Prompt::Messages(messages) => Ok(messages.iter().map(plimsoll_text::Message::to_json).collect()),
    }
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
        EpisodeRow { prompt: prompt.into(), columns: Map::new(), images: None }
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
        assert_eq!([rows.number_of(4, false), rows.number_of(4, true)], [Some(1), Some(3)]);
        assert_eq!(prompt(&Rows::default(), 7, true), None);
    }
}
