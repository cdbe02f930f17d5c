//! Supervised rows as tokens.

use plimsoll_base::Result;
use plimsoll_infer::text::{Item, TextModel, prompt_text};
use plimsoll_text::{SftRow, SftTokens, template_variables};
use serde_json::{Map, Value};

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
