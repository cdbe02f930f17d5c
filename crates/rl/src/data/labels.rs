//! Answers with labels: their rows as tokens, and the sequences of a step.

use crate::data::supervised::sft_item;
use plimsoll_base::Result;
use plimsoll_config::Data;
use plimsoll_infer::text::{Item, Limit, TextModel, no_rows};
use plimsoll_text::{FieldCounts, LabelledRow, Task, load_labelled, template_variables};
use plimsoll_train::Sequence;
use std::path::Path;

/// Reads the rows of a file as tokens, and counts what they have.
///
/// Errors: those of reading and tokenizing; `label-invalid`, `labels-all-equal`.
pub(crate) fn items(
    path: &Path,
    data: &Data,
    text: &TextModel,
    counts: &mut FieldCounts,
) -> Result<Vec<Item>> {
    let rows = load_labelled(path, &data.prompt_column, &text.rules.ignored)?.into_iter().enumerate();
    let mut one = |row: LabelledRow| {
        counts.columns(row.columns.keys().map(String::as_str));
        let (messages, variables) = (row.answer.messages(), template_variables(&row.columns)?);
        counts.messages(&messages, &variables, text.template.as_deref())?;
        item(text, row)
    };
    rows.map(|(i, row)| one(row).map_err(|e| e.fact(format!("row {} of {}", i + 1, path.display()))))
        .collect()
}

/// Converts a row to tokens; the margin is 1 for a desirable answer, -1 for another.
///
/// Errors: those of tokenizing.
pub(crate) fn item(text: &TextModel, row: LabelledRow) -> Result<Item> {
    let margin = if row.is_desirable { 1.0 } else { -1.0 };
    let item = sft_item(text, &row.answer, &row.columns)?;
    Ok(Item { margin, columns: row.columns.into(), ..item })
}

/// Returns the test set of a task, or all rows of a file; at most `max`.
///
/// Errors: as `items`; `prompt-too-long`, `data-empty`.
pub(crate) fn test_items(name: &str, data: &Data, text: &TextModel, max: Option<u32>) -> Result<Vec<Item>> {
    let rows: Vec<Item> = if name.starts_with("builtin:") {
        let rows = Task::parse(name)?.test_labels().into_iter();
        rows.map(|row| item(text, row)).collect::<Result<_>>()?
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
