//! Answers with labels: their rows as tokens, and the sequences of a step.

use super::answered_images::{with_images, with_same_images};
use crate::data::supervised::sft_item;
use plimsoll_base::Result;
use plimsoll_config::Data;
use plimsoll_infer::image_rows::{PLACEHOLDER, columns_of};
use plimsoll_infer::images::refuse_image_row;
use plimsoll_infer::text::{Item, Limit, TextModel, no_rows};
use plimsoll_text::{
    DrawnTask, FieldCounts, ImageFolder, ImageRow, LabelledRow, Task, load_labelled, template_variables,
};
use plimsoll_train::Sequence;
use std::path::Path;
use std::sync::Arc;

/// Reads the rows of a file as tokens, and counts what they have.
///
/// Errors: those of reading and tokenizing; `label-invalid`, `labels-all-equal`.
pub(crate) fn items(
    path: &Path,
    data: &Data,
    text: &TextModel,
    counts: &mut FieldCounts,
) -> Result<Vec<Item>> {
    let images = columns_of(path, data, text.album.is_some())?;
    let (columns, folder) = images.unzip();
    let rows = load_labelled(path, &data.prompt_column, &text.rules.ignored, columns)?;
    let mut one = |of: ImageRow<Vec<LabelledRow>>| {
        for row in &of.row {
            refuse_image_row(&row.columns, path, data)?;
            counts.columns(row.columns.keys().map(String::as_str));
            let (messages, variables) = (row.answer.messages(), template_variables(&row.columns)?);
            counts.messages(&messages, &variables, text.template.as_deref())?;
        }
        items_of(text, of, folder.as_ref())
    };
    let (mut items, mut row) = (Vec::with_capacity(rows.len()), 0);
    for of in rows {
        let answers = of.row.len();
        items.extend(one(of).map_err(|e| e.fact(format!("row {} of {}", row + 1, path.display())))?);
        row += answers;
    }
    Ok(items)
}

/// Converts the answers of a row to tokens; the margin is 1 for a desirable answer, -1 for another. They share the
/// images of the row. `folder`: where names of images are looked for.
///
/// Errors: those of tokenizing, and of `with_images`.
pub(crate) fn items_of(
    text: &TextModel,
    of: ImageRow<Vec<LabelledRow>>,
    folder: Option<&Arc<ImageFolder>>,
) -> Result<Vec<Item>> {
    let ImageRow { place, row, images } = of;
    let mut images = Some(images);
    let mut items: Vec<Item> = Vec::with_capacity(row.len());
    for LabelledRow { answer, is_desirable, columns } in row {
        let margin = if is_desirable { 1.0 } else { -1.0 };
        let item = sft_item(text, &answer, &columns)?;
        let item = Item { margin, columns: columns.into(), ..item };
        items.push(match (images.take(), items.first()) {
            (None, Some(first)) => with_same_images(text, item, &first.images, &place)?,
            (images, _) => with_images(text, item, images.unwrap_or_default(), folder, &place)?,
        });
    }
    Ok(items)
}

/// Converts a row of a task to tokens, as `items_of`.
pub(crate) fn item(text: &TextModel, of: ImageRow<LabelledRow>) -> Result<Item> {
    let ImageRow { place, row, images } = of;
    let mut items = items_of(text, ImageRow { place, row: vec![row], images }, None)?;
    Ok(items.pop().expect("one answer, one item"))
}

/// Returns the test set of a task, or all rows of a file; at most `max`.
///
/// Errors: as `items`; `prompt-too-long`, `data-empty`.
pub(crate) fn test_items(name: &str, data: &Data, text: &TextModel, max: Option<u32>) -> Result<Vec<Item>> {
    let rows: Vec<Item> = if let Some(task) = DrawnTask::find(name).filter(|_| text.album.is_some()) {
        task.test_labels(PLACEHOLDER).map(|of| item(text, of)).collect::<Result<_>>()?
    } else if name.starts_with("builtin:") {
        let rows = Task::parse(name)?.test_labels().into_iter();
        rows.map(|row| item(text, ImageRow::of_text(row))).collect::<Result<_>>()?
    } else {
        items(Path::new(name), data, text, &mut FieldCounts::default())?
    };
    let (limit, max) = (Limit::of(data), max.map_or(usize::MAX, |n| n as usize));
    let mut kept = Vec::new();
    for (i, item) in rows.into_iter().enumerate().take(max) {
        kept.extend(limit.apply(item, name, i)?);
    }
    if kept.is_empty() { Err(no_rows(name)) } else { Ok(kept) }
}

/// Returns the answers to their own prompts, then each prompt with the answer of the next row, the last with the first.
pub(crate) fn sequences(items: &[Item]) -> Vec<Sequence<'_>> {
    let rows = items.len();
    let one = |n: usize| {
        let (prompt, answer) = (n % rows, (n + n / rows) % rows);
        Sequence { group: n, prompt: &items[prompt].ids, response: &items[answer].completion }
    };
    (0..2 * rows).map(one).collect()
}

/// Returns whether the answer of an item is desirable.
pub(crate) fn is_desirable(item: &Item) -> bool {
    item.margin > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prompt_comes_with_its_answer_and_with_that_of_the_next_row() {
        let item = |n: u32| Item { ids: vec![n], completion: vec![10 + n], ..Item::default() };
        let items = [item(0), item(1), item(2)];
        let found: Vec<(u32, u32)> =
            sequences(&items).iter().map(|sequence| (sequence.prompt[0], sequence.response[0])).collect();
        assert_eq!(found, [(0, 10), (1, 11), (2, 12), (0, 11), (1, 12), (2, 10)]);
    }
}
