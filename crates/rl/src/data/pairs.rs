//! Pairs of a chosen and a rejected answer: their rows as tokens, and the two sequences of each pair in a step.

use super::answered_images::with_images;
use plimsoll_base::{Error, Result};
use plimsoll_config::{Auto, Data, RunSpec};
use plimsoll_infer::image_rows::{PLACEHOLDER, columns_of};
use plimsoll_infer::images::refuse_image_row;
use plimsoll_infer::text::{Item, Limit, TextModel, no_rows, prompt_messages, prompt_text};
use plimsoll_text::{
    DrawnTask, FieldCounts, ImageFolder, ImageRow, PairRow, Task, load_pairs, template_variables,
};
use plimsoll_train::Sequence;
use std::path::Path;
use std::sync::Arc;

/// Reads the rows of a file as tokens, and counts what they have.
///
/// Errors: those of reading and tokenizing; `pair-equal`, `pair-empty`.
pub(crate) fn items(
    path: &Path,
    data: &Data,
    text: &TextModel,
    counts: &mut FieldCounts,
) -> Result<Vec<Item>> {
    let images = columns_of(path, data, text.album.is_some())?;
    let (columns, folder) = images.unzip();
    let rows = load_pairs(path, &data.prompt_column, &text.rules.ignored, columns)?;
    let mut one = |of: ImageRow<PairRow>| {
        let row = &of.row;
        refuse_image_row(&row.columns, path, data)?;
        counts.columns(["chosen", "rejected"].into_iter().chain(row.columns.keys().map(String::as_str)));
        for answer in [&row.chosen, &row.rejected] {
            let messages: Vec<_> = row.prompt.messages().iter().chain([answer]).cloned().collect();
            counts.messages(&messages, &template_variables(&row.columns)?, text.template.as_deref())?;
        }
        item(text, of, folder.as_ref())
    };
    let numbered = rows.into_iter().enumerate();
    numbered
        .map(|(i, of)| one(of).map_err(|e| e.fact(format!("row {} of {}", i + 1, path.display()))))
        .collect()
}

/// Converts a row to tokens. `folder`: where names of images are looked for.
///
/// Errors: those of tokenizing; `pair-equal`; those of `with_images`.
pub(crate) fn item(
    text: &TextModel,
    of: ImageRow<PairRow>,
    folder: Option<&Arc<ImageFolder>>,
) -> Result<Item> {
    let ImageRow { place, row, images } = of;
    let pair = text.rows().pair(&row, &template_variables(&row.columns)?)?;
    let item = Item {
        ids: pair.prompt,
        completion: pair.chosen,
        rejected: pair.rejected,
        margin: row.margin,
        text: prompt_text(&row.prompt),
        messages: prompt_messages(&row.prompt),
        columns: row.columns.into(),
        ..Item::default()
    };
    with_images(text, item, images, folder, &place)
}

/// Returns the fixed pairs of a task's test set, or all rows of a file; at most `max`.
///
/// Errors: as `items`; `prompt-too-long`, `data-empty`.
pub(crate) fn test_items(name: &str, data: &Data, text: &TextModel, max: Option<u32>) -> Result<Vec<Item>> {
    let max = max.map_or(usize::MAX, |n| n as usize);
    let rows: Vec<Item> = if let Some(task) = DrawnTask::find(name).filter(|_| text.album.is_some()) {
        task.test_pairs(PLACEHOLDER).take(max).map(|of| item(text, of, None)).collect::<Result<_>>()?
    } else if name.starts_with("builtin:") {
        let pairs = Task::parse(name)?.test_pairs().into_iter().take(max);
        pairs.map(|row| item(text, ImageRow::of_text(row), None)).collect::<Result<_>>()?
    } else {
        items(Path::new(name), data, text, &mut FieldCounts::default())?
    };
    let limit = Limit::of(data);
    let mut kept = Vec::new();
    for (i, item) in rows.into_iter().enumerate().take(max) {
        kept.extend(limit.apply(item, name, i)?);
    }
    if kept.is_empty() { Err(no_rows(name)) } else { Ok(kept) }
}

/// Requires that a pair fits in a micro-batch, where the run file sets its size: the loss needs both halves.
///
/// Errors: `pair-too-long`.
pub(crate) fn check_length(run: &RunSpec, name: &str, items: &[Item]) -> Result<()> {
    let Auto::Value(limit) = run.train().micro_batch_tokens else { return Ok(()) };
    let tokens = |item: &Item| item.ids.len() + item.completion.len() + item.rejected.len();
    let Some(row) = items.iter().position(|item| tokens(item) > limit as usize) else { return Ok(()) };
    let (item, tokens) = (&items[row], tokens(&items[row]));
    let message = format!(
        "{name}: pair {} has {tokens} tokens ({} of the prompt, {} chosen, {} rejected), train.micro_batch_tokens is {limit}",
        row + 1,
        item.ids.len(),
        item.completion.len(),
        item.rejected.len()
    );
    Err(Error::new("pair-too-long", message)
        .fact("both answers of a pair are in one micro-batch, after one prompt")
        .hint(format!("set train.micro_batch_tokens to at least {tokens}, or \"auto\", or take the row out")))
}

/// Returns the chosen and the rejected sequence of each pair, as neighbours that share their prompt.
pub(crate) fn sequences(items: &[Item]) -> Vec<Sequence<'_>> {
    let halves = items.iter().enumerate().flat_map(|(group, item)| {
        [&item.completion, &item.rejected].map(|response| Sequence { group, prompt: &item.ids, response })
    });
    halves.collect()
}
