//! Supervised rows as tokens.

use super::answered_images::with_images;
use plimsoll_base::Result;
use plimsoll_config::{Data, TrainOn};
use plimsoll_infer::image_rows::columns_of;
use plimsoll_infer::images::refuse_image_row;
use plimsoll_infer::text::{Item, TextModel, prompt_text};
use plimsoll_text::{FieldCounts, ImageRow, SftRow, SftTokens, SupervisedRow, load_sft, template_variables};
use serde_json::{Map, Value};
use std::path::Path;

/// Reads the rows of a file as tokens, and counts what they have.
///
/// Errors: those of reading and tokenizing.
pub(super) fn items(
    path: &Path,
    data: &Data,
    text: &TextModel,
    counts: &mut FieldCounts,
) -> Result<Vec<Item>> {
    let (every_turn, images) =
        (data.train_on == TrainOn::Assistant, columns_of(path, data, text.album.is_some())?);
    let (columns, folder) = images.unzip();
    let rows = load_sft(path, &data.prompt_column, every_turn, &text.rules.ignored, columns)?;
    let of_answers = [data.prompt_column.as_str(), "completion"];
    let mut one = |of: ImageRow<SupervisedRow>| {
        let ImageRow { place, row: SupervisedRow { row, columns, is_conversation }, images } = of;
        refuse_image_row(&columns, path, data)?;
        let read = if is_conversation { &["messages"][..] } else { &of_answers };
        counts.columns(read.iter().copied().chain(columns.keys().map(String::as_str)));
        counts.messages(&row.messages(), &template_variables(&columns)?, text.template.as_deref())?;
        with_images(text, sft_item(text, &row, &columns)?, images, folder.as_ref(), &place)
    };
    let rows = rows.into_iter().enumerate();
    rows.map(|(i, of)| one(of).map_err(|e| e.fact(format!("row {} of {}", i + 1, path.display())))).collect()
}

/// Returns a completion as tokens. `columns`: the other columns of its row.
///
/// Errors: those of tokenizing.
pub(crate) fn sft_item(model: &TextModel, row: &SftRow, columns: &Map<String, Value>) -> Result<Item> {
    let SftTokens { prompt: ids, completion, learnt } =
        model.rows().sft(row, &template_variables(columns)?)?;
    let text = match row {
        SftRow::Answer { prompt, .. } => prompt_text(prompt),
        // The message before the first that is learnt.
        SftRow::Turns(messages) => {
            let first = messages.iter().position(|m| m.role == "assistant").unwrap_or(0);
            first.checked_sub(1).map_or_else(String::new, |before| messages[before].content.clone())
        }
    };
    Ok(Item { ids, text, completion, learnt, ..Item::default() })
}
