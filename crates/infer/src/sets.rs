//! Evaluation sets of held-out prompts, or of what else has a row a prompt.

use crate::image_rows::{PLACEHOLDER, each_row};
use crate::images::refuse_images;
use crate::text::{Item, Limit, TextModel, no_rows};
use plimsoll_base::Result;
use plimsoll_config::Data;
use plimsoll_text::{AnsweredRows, DrawnTask, ImageFolder, ImageRow, Task};
use std::path::Path;
use std::sync::Arc;

/// Held-out prompts with their name.
#[derive(Clone, Debug, Default)]
pub struct EvalSet {
    /// The name in events, samples and metrics.
    pub name: String,
    pub items: Vec<Item>,
}

/// Reads the rows of a set, given by its path: at most some of them, if a number is given.
pub type ReadItems = fn(&str, &Data, &TextModel, Option<u32>) -> Result<Vec<Item>>;

impl EvalSet {
    /// Opens sets, each given by name and path; at most `max` rows of each.
    ///
    /// Errors: those of `read`.
    pub fn open_all(
        sets: Vec<(String, String)>,
        data: &Data,
        text: &TextModel,
        max: Option<u32>,
        read: ReadItems,
    ) -> Result<Vec<EvalSet>> {
        let open =
            |(name, path): (String, String)| Ok(EvalSet { items: read(&path, data, text, max)?, name });
        sets.into_iter().map(open).collect()
    }
}

/// Returns the fixed test set of a task, or all rows of a file; at most `max` rows.
///
/// Errors: those of reading and tokenizing; `data-prompt-answered`, `prompt-too-long`, `data-empty`.
pub fn test_items(name: &str, data: &Data, text: &TextModel, max: Option<u32>) -> Result<Vec<Item>> {
    let max = max.map_or(usize::MAX, |n| n as usize);
    let limit = Limit::of(data);
    let (mut items, mut answered) = (Vec::new(), AnsweredRows::new(text.rules.answered));
    let mut add = |i: usize, mut of: ImageRow, folder: Option<&Arc<ImageFolder>>| {
        of.row.ignore(&text.rules.ignored);
        if i < max && answered.admit(&mut of.row.prompt, i) {
            let item = text.image_item(of, folder);
            let item = item.map_err(|error| error.fact(format!("row {} of {name}", i + 1)))?;
            items.extend(limit.apply(item, name, i)?);
        }
        Ok(())
    };
    let drawn = DrawnTask::find(name).filter(|_| text.album.is_some());
    if let Some(task) = drawn {
        task.test_rows(PLACEHOLDER).enumerate().try_for_each(|(i, row)| add(i, row, None))?;
    } else if name.starts_with("builtin:") {
        let mut rows = Task::parse(name)?.test_rows().into_iter().enumerate();
        rows.try_for_each(|(i, row)| add(i, ImageRow::of_text(row), None))?;
    } else {
        if text.album.is_none() {
            refuse_images(Path::new(name), data)?;
        }
        each_row(Path::new(name), data, text, add)?
    }
    answered.finish(Path::new(name))?;
    if items.is_empty() { Err(no_rows(name)) } else { Ok(items) }
}
