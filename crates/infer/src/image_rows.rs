//! Rows of a file, with their images where a model sees.

use crate::images::refuse_image_row;
use crate::text::TextModel;
use plimsoll_base::Result;
use plimsoll_config::Data;
use plimsoll_text::{ImageColumns, ImageFolder, ImageRow, Part, first_prompts, first_prompts_with_images};
use std::path::Path;
use std::sync::Arc;

pub use plimsoll_images::PLACEHOLDER;

/// Calls `visit` with each prompt of a file, its images and the folder in which their names are looked for; of a text
/// without an album, prompts have none.
///
/// Errors: those of reading; `model-takes-no-images` for a row that has images which nothing reads; those of `visit`.
pub fn each_row(
    path: &Path,
    data: &Data,
    text: &TextModel,
    visit: impl FnMut(usize, ImageRow, Option<&Arc<ImageFolder>>) -> Result<()>,
) -> Result<()> {
    first_rows(path, data, text.album.is_some(), Part::WHOLE, visit).map(drop)
}

/// Calls `visit` as `each_row` does with the rows in a part of the file; `sees`: whether images are read. Returns the
/// number of rows read if there may be more.
///
/// Errors: those of `each_row`.
pub fn first_rows(
    path: &Path,
    data: &Data,
    sees: bool,
    part: Part,
    mut visit: impl FnMut(usize, ImageRow, Option<&Arc<ImageFolder>>) -> Result<()>,
) -> Result<Option<usize>> {
    let Some((columns, folder)) = columns_of(path, data, sees)? else {
        return first_prompts(path, &data.prompt_column, part, |i, row| {
            refuse_image_row(&row.columns, path, data)?;
            visit(i, ImageRow::of_text(row), None)
        });
    };
    first_prompts_with_images(path, columns, part, |i, row| visit(i, row, Some(&folder)))
}

/// Returns where the rows of a file have their images, and the folder in which their names are looked for; none if no
/// column is named, or nothing `sees`.
///
/// Errors: those of `ImageFolder::of`.
pub fn columns_of<'d>(
    path: &Path,
    data: &'d Data,
    sees: bool,
) -> Result<Option<(ImageColumns<'d>, Arc<ImageFolder>)>> {
    let Some(images) = data.images.as_ref().filter(|_| sees) else { return Ok(None) };
    let folder = Arc::new(ImageFolder::of(path, data.image_folder.as_deref().map(Path::new))?);
    Ok(Some((ImageColumns { prompt: &data.prompt_column, images, placeholder: PLACEHOLDER }, folder)))
}
