//! Rows of tasks that draw as tokens, of whichever kind a method learns from.

use super::answered_images::with_images;
use super::supervised::sft_item;
use super::{labels, pairs};
use plimsoll_base::Result;
use plimsoll_config::LearnsFrom;
use plimsoll_infer::image_rows::PLACEHOLDER;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_text::{DrawnTask, ImageRow};
use serde_json::Map;

/// Returns row `index` of a task that draws as tokens, of whichever kind.
///
/// Errors: those of tokenizing.
pub(super) fn drawn_item(
    task: &DrawnTask,
    rows: LearnsFrom,
    text: &TextModel,
    (seed, index): (u64, u64),
) -> Result<Item> {
    match rows {
        LearnsFrom::Samples => text.image_item(task.train_row(seed, index, PLACEHOLDER), None),
        LearnsFrom::Completions => {
            let ImageRow { place, row, images } = task.answer_row(seed, index, PLACEHOLDER);
            with_images(text, sft_item(text, &row, &Map::new())?, images, None, &place)
        }
        LearnsFrom::Pairs => pairs::item(text, task.pair_row(seed, index, PLACEHOLDER), None),
        LearnsFrom::Labels => labels::item(text, task.labelled_row(seed, index, PLACEHOLDER)),
    }
}
