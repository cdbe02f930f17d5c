//! The first rows of a run's data, read as `train` reads them: a plan that need not know every row still refuses those
//! that `train` would.

use crate::data::dataset::{count_prompt, drawn_task, is_wanted, pass_rate, training_task};
use plimsoll_base::{Error, Result};
use plimsoll_config::{AnsweredPrompts, ColumnSearch, RunSpec};
use plimsoll_infer::image_rows::{self, PLACEHOLDER};
use plimsoll_infer::text::{Limit, RowRules, TextModel};
use plimsoll_text::{AnsweredRows, FieldCounts, ImageFolder, ImageRow, Part, Task};
use plimsoll_textenv::{ImagesFrom, Kind, RowsFrom, first_episode_rows};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Limits of all files together: the tokenizer takes a second for some 5 MB, a debug build less than ten.
const ROWS_MAX: usize = 4096;
const BYTES_MAX: usize = 2 << 20;

/// Facts that the first rows show.
#[derive(Debug, Default)]
pub(crate) struct FirstRows {
    /// The columns of the first row of each set that is there.
    pub(crate) columns: Vec<Map<String, Value>>,
    /// Files that are not there.
    pub(crate) missing: Vec<String>,
    /// Files that were not read, for people.
    pub(crate) not_checked: Vec<String>,
    /// The path of each file to train on, and how many of its rows have each field.
    pub(crate) counts: Vec<(String, FieldCounts)>,
}

/// Reads the first rows of all sets of a run that samples. Without `text` their prompts are not tokenized.
///
/// Errors: those of reading and tokenizing a data set.
pub(crate) fn first_rows(run: &RunSpec, text: Option<&TextModel>) -> Result<FirstRows> {
    let training = run.data.prompts.iter().flat_map(|sets| sets.sets()).map(|set| (set.path.as_str(), true));
    let held_out = run.eval_sets.iter().map(|(_, path)| (path.as_str(), false));
    let sets: Vec<(&str, bool)> = training.chain(held_out).collect();
    let files = sets.iter().filter(|(path, _)| !path.starts_with("builtin:")).count().max(1);
    let part = Part { rows: ROWS_MAX / files, bytes: BYTES_MAX / files };
    let (mut found, mut search) = (FirstRows::default(), ColumnSearch::new(&run.named_columns));
    for (path, is_training) in sets {
        if path.starts_with("builtin:") {
            let columns = row_of_task(run, path, is_training, text)?;
            search.see(&columns);
            found.columns.push(columns);
        } else if Path::new(path).exists() {
            found.read(run, path, is_training, text, part, &mut search)?;
        } else if !found.missing.iter().any(|known| known == path) {
            found.missing.push(path.to_string());
        }
    }
    found.settle(search)?;
    Ok(found)
}

/// Reads the first rows of the files that begin a run's episodes; also their columns if the run's rewards grade them.
///
/// Errors: those of reading them.
pub(crate) fn first_rows_of_episodes(run: &RunSpec) -> Result<FirstRows> {
    let mut found = FirstRows::default();
    let Some(section) = run.environment() else { return Ok(found) };
    let kind = Kind::parse(&section.env)?;
    let mut search = ColumnSearch::new(&run.named_columns);
    let files = [("environment.rows", &section.rows), ("environment.eval_rows", &section.eval_rows)];
    let count = section.row_files().count().max(1);
    let part = Part { rows: ROWS_MAX / count, bytes: BYTES_MAX / count };
    for (key, file) in files.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?))) {
        if !Path::new(file).exists() {
            found.missing.push(file.clone());
            continue;
        }
        let from = RowsFrom {
            path: Path::new(file),
            key,
            prompt_column: &run.data.prompt_column,
            drops_answers: run.data.answered == AnsweredPrompts::DropTurn,
            ignored: &run.data.ignore,
            images: images_of_episodes(run),
        };
        let mut first = None;
        let more = first_episode_rows(&kind, from, part, |row, images| {
            images.into_iter().flat_map(|of| of.sources).try_for_each(|image| image.map(drop))?;
            if kind.is_graded() {
                search.see(&row.columns);
            }
            first.get_or_insert(row.columns);
            Ok(())
        })?;
        found.columns.extend(first.filter(|_| kind.is_graded()));
        found.not_checked.extend(more.map(|rows| rows_after(rows, file)));
    }
    found.settle(search)?;
    Ok(found)
}

/// Returns where the rows of a run's episodes have their images, if they have some.
pub(crate) fn images_of_episodes(run: &RunSpec) -> Option<ImagesFrom<'_>> {
    let folder = run.data.image_folder.as_deref().map(Path::new);
    let from = |column| ImagesFrom { column, folder, placeholder: PLACEHOLDER };
    run.data.images.as_deref().map(from)
}

/// Names the rows of a file that were not read, for people.
fn rows_after(rows: usize, path: &str) -> String {
    format!("rows after {rows} of {path}")
}

impl FirstRows {
    /// Requires that the named columns are there, unless they may be in a file that is not.
    ///
    /// Errors: `data-column-missing`.
    fn settle(&self, search: ColumnSearch<'_>) -> Result<()> {
        if self.missing.is_empty() { search.finish() } else { Ok(()) }
    }

    fn read(
        &mut self,
        run: &RunSpec,
        path: &str,
        is_training: bool,
        text: Option<&TextModel>,
        part: Part,
        search: &mut ColumnSearch<'_>,
    ) -> Result<()> {
        let (mut first, mut counts) = (None, FieldCounts::default());
        let rules = RowRules::of(&run.data);
        let mut answered = AnsweredRows::new(rules.answered);
        let sees = run.data.images.is_some();
        let more = image_rows::first_rows(Path::new(path), &run.data, sees, part, |i, mut of, folder| {
            of.row.ignore(&rules.ignored);
            let row = &mut of.row;
            let rate = if is_training { pass_rate(row, &run.data, Path::new(path), i)? } else { None };
            if is_wanted(rate, &run.data) && answered.admit(&mut row.prompt, i) {
                let of_row = |error: Error| error.fact(format!("row {} of {path}", i + 1));
                if let Some(text) = text {
                    count_prompt(&mut counts, row, text, &run.data).map_err(of_row)?;
                }
                search.see(&row.columns);
                first.get_or_insert_with(|| row.columns.clone());
                fits(run, (of, folder), path, i, text).map_err(of_row)?;
            }
            Ok(())
        })?;
        answered.finish(Path::new(path))?;
        if is_training {
            self.counts.push((path.to_string(), counts));
        }
        self.columns.extend(first);
        self.not_checked.extend(more.map(|rows| rows_after(rows, path)));
        Ok(())
    }
}

/// Returns the columns of a task's first row.
fn row_of_task(
    run: &RunSpec,
    path: &str,
    is_training: bool,
    text: Option<&TextModel>,
) -> Result<Map<String, Value>> {
    let drawn = text.and_then(|text| drawn_task(path, text));
    let of = match drawn {
        Some(task) => task.train_row(run.seed, 0, PLACEHOLDER),
        None => {
            let task = if is_training { training_task(path, &run.data)? } else { Task::parse(path)? };
            ImageRow::of_text(task.train_row(run.seed, 0))
        }
    };
    let columns = of.row.columns.clone();
    fits(run, (of, None), path, 0, text)?;
    Ok(columns)
}

/// Requires that a prompt has tokens, and no more than the run file allows.
fn fits(
    run: &RunSpec,
    (of, folder): (ImageRow, Option<&Arc<ImageFolder>>),
    path: &str,
    index: usize,
    text: Option<&TextModel>,
) -> Result<()> {
    let Some(text) = text else { return Ok(()) };
    Limit::of(&run.data).apply(text.image_item(of, folder)?, path, index).map(drop)
}
