//! Rows with images, as TRL, verl, slime and ms-swift write them: a column names or holds the images, and the prompt
//! says where they are. Here are only names and bytes; nothing is decoded.

mod answered;
mod marks;
mod place;
mod source;

pub(crate) use answered::each_answered;
pub use answered::each_row_s_images;
pub use place::{IMAGE_BYTES_MAX, ImageFolder};
pub use source::{ImageSource, sent_image};
pub(crate) use source::{data_uri, sources};

use crate::data::{Part, Place, Row, each_object_with, prompt_of, take};
use marks::{Mark, marked};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use source::source;
use std::path::Path;

/// Most images of a row.
const ROW_IMAGES_MAX: usize = 256;

/// Where rows have their prompts and images.
#[derive(Clone, Copy, Debug)]
pub struct ImageColumns<'a> {
    /// The column with the prompt.
    pub prompt: &'a str,
    /// The column with one image or a list of them, which a row may lack.
    pub images: &'a str,
    /// What the model's chat template writes for an image.
    pub placeholder: &'a str,
}

/// A row whose texts have a placeholder for each image.
#[derive(Clone, Debug)]
pub struct ImageRow<T = Row> {
    /// The file and the line, for errors.
    pub place: String,
    /// The prompt and the columns without the images, or what else a row is.
    pub row: T,
    /// The images in the order of their placeholders, or what is wrong with one. A number of images that is not that
    /// of the placeholders is an error more.
    pub images: Vec<Result<ImageSource>>,
}

impl<T> ImageRow<T> {
    /// Returns a row without images.
    pub fn of_text(row: T) -> ImageRow<T> {
        ImageRow { place: String::new(), row, images: Vec::new() }
    }
}

/// Calls `visit` with each row of JSON lines or Parquet, with its images, and its index.
///
/// Errors: those of `each_prompt`; those of `visit`. What is wrong with images (`image-url`, `image-source-invalid`,
/// `image-count`) is given to `visit`.
pub fn each_prompt_with_images(
    path: &Path,
    columns: ImageColumns,
    visit: impl FnMut(usize, ImageRow) -> Result<()>,
) -> Result<()> {
    first_prompts_with_images(path, columns, Part::WHOLE, visit).map(drop)
}

/// Calls `visit` with the rows in a part of the file, with their images. Returns the number of rows read if there may
/// be more. Bytes of images count as the text that holds them.
///
/// Errors: those of `each_prompt_with_images`.
pub fn first_prompts_with_images(
    path: &Path,
    columns: ImageColumns,
    part: Part,
    mut visit: impl FnMut(usize, ImageRow) -> Result<()>,
) -> Result<Option<usize>> {
    let mut index = 0;
    let is_whole = each_object_with(path, part, Some(columns.images), |object, place| {
        visit(index, image_row(object, columns, place)?)?;
        index += 1;
        Ok(())
    })?;
    Ok((!is_whole).then_some(index))
}

fn image_row(mut object: Map<String, Value>, columns: ImageColumns, place: Place) -> Result<ImageRow> {
    let words = place.words();
    let named = sources(object.shift_remove(columns.images).unwrap_or(Value::Null));
    let value = take(&mut object, columns.prompt, place)?;
    let (value, marks) = marked(value, columns.placeholder, named.len());
    let images = placed(ordered(named, marks), &words);
    let prompt = prompt_of(value, columns.prompt, place)?;
    Ok(ImageRow { place: words, row: Row { prompt, columns: object }, images })
}

/// Says of what is wrong with an image in which row it is.
fn placed(images: Vec<Result<ImageSource>>, words: &str) -> Vec<Result<ImageSource>> {
    let at = |(i, image): (usize, Result<ImageSource>)| {
        image.map_err(|mut error| {
            error.message = format!("{words}: image {}: {}", i + 1, error.message);
            error
        })
    };
    images.into_iter().enumerate().map(at).collect()
}

/// Gives each mark of the prompt its image: what a part holds itself, else the next of the column.
fn ordered(named: Vec<Result<ImageSource>>, marks: Vec<Mark>) -> Vec<Result<ImageSource>> {
    let (count, places) = (named.len(), marks.iter().filter(|mark| matches!(mark, Mark::Next)).count());
    let mut named = named.into_iter();
    let mut images: Vec<Result<ImageSource>> = marks
        .into_iter()
        .filter_map(|mark| match mark {
            Mark::Next => named.next(),
            Mark::Own(part) => Some(source(part)),
        })
        .collect();
    images.extend(named);
    if count != places {
        let message = format!("{places} places for {count} images of the column");
        images.push(Err(Error::new("image-count", message).hint(
            "write one <image>, or one part {\"type\": \"image\"}, for each image of the row, or none at all",
        )));
    }
    if images.len() > ROW_IMAGES_MAX {
        let message = format!("{} images; a row has at most {ROW_IMAGES_MAX}", images.len());
        images = vec![Err(Error::new("image-count", message).hint("give the row fewer images"))];
    }
    images
}
