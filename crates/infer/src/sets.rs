//! Evaluation sets of held-out prompts, or of what else has a row a prompt.

use crate::images::{refuse_image_row, refuse_images};
use crate::text::{Item, Limit, TextModel, no_rows};
use plimsoll_base::Result;
use plimsoll_config::Data;
use plimsoll_text::{AnsweredRows, Row, Task, each_prompt};
use std::path::Path;

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
    let mut add = |i: usize, mut row: Row| {
        row.ignore(&text.rules.ignored);
        refuse_image_row(&row, Path::new(name), data)?;
        if i < max && answered.admit(&mut row.prompt, i) {
            let item = text.item(row).map_err(|error| error.fact(format!("row {} of {name}", i + 1)))?;
            items.extend(limit.apply(item, name, i)?);
        }
        Ok(())
    };
    if name.starts_with("builtin:") {
        let mut rows = Task::parse(name)?.test_rows().into_iter().enumerate();
        rows.try_for_each(|(i, row)| add(i, row))?;
    } else {
        refuse_images(Path::new(name), data)?;
        each_prompt(Path::new(name), &data.prompt_column, add)?
    }
    answered.finish(Path::new(name))?;
    if items.is_empty() { Err(no_rows(name)) } else { Ok(items) }
}
