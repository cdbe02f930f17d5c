//! Rows with images, where a model reads none: they are refused before anything is allocated.

use plimsoll_base::{Error, Result};
use plimsoll_config::Data;
use plimsoll_text::{ImageColumns, each_row_s_images};
use serde_json::{Map, Value};
use std::path::Path;

/// Columns with images in sets for TRL, verl, slime and ms-swift.
const COLUMNS: [&str; 2] = ["images", "image"];
/// Ends of the names of images.
const ENDS: [&str; 6] = [".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"];

/// Refuses a file whose rows have images in the column that `data.images` names, for a model that reads none.
///
/// Errors: `model-takes-no-images`; those of reading the file.
pub fn refuse_images(path: &Path, data: &Data) -> Result<()> {
    data.images.as_ref().map_or(Ok(()), |column| refuse(path, data, column))
}

/// Refuses the file of a row that has images although `data.images` names no column: the prompt would be read without
/// them.
///
/// Errors: those of `refuse_images`.
pub fn refuse_image_row(columns: &Map<String, Value>, path: &Path, data: &Data) -> Result<()> {
    let is_read = |name: &&&str| !data.ignore.iter().any(|ignored| ignored == **name);
    let has = |name: &&&str| columns.get(**name).is_some_and(holds_images);
    let found = COLUMNS.iter().filter(is_read).find(has);
    match found.filter(|_| data.images.is_none()) {
        Some(column) => refuse(path, data, column),
        None => Ok(()),
    }
}

fn holds_images(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            let name = text.to_ascii_lowercase();
            name.starts_with("data:image/") || ENDS.iter().any(|end| name.ends_with(end))
        }
        Value::Object(fields) => ["bytes", "path"].iter().all(|name| fields.contains_key(*name)),
        Value::Array(list) => !list.is_empty() && list.iter().all(holds_images),
        _ => false,
    }
}

fn refuse(path: &Path, data: &Data, column: &str) -> Result<()> {
    let (mut rows, mut with_images) = (0, 0);
    let columns = ImageColumns { prompt: &data.prompt_column, images: column, placeholder: "" };
    each_row_s_images(path, columns, |row| {
        rows += 1;
        with_images += u64::from(!row.images.is_empty());
        Ok(())
    })?;
    if with_images == 0 {
        return Ok(());
    }
    let message = format!("{}: {with_images} of {rows} rows have images (column `{column}`)", path.display());
    Err(Error::new("model-takes-no-images", message)
        .fact("the model reads text alone, or by a tower that is not built")
        .hint("count them: plimsoll plan RUN --images")
        .hint(format!("or train on the text alone: data.ignore = [\"{column}\"], without data.images")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_holds_images_is_known_by_its_form() {
        for (value, expected) in [
            (json!("a/b.JPG"), true),
            (json!("data:image/png;base64,AAAA"), true),
            (json!([{"bytes": null, "path": "a"}]), true),
            (json!(["a.png", "b.png"]), true),
            (json!("a picture of a cat"), false),
            (json!([]), false),
            (json!(3), false),
            (json!({"path": "a"}), false),
        ] {
            assert_eq!(holds_images(&value), expected, "{value}");
        }
    }
}
