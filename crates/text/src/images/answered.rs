//! Rows with answers and images: a conversation, a prompt with its completion, or a pair of answers. Images are those
//! of the prompt; an answer that has one is refused where its tokens are known.

use super::marks::{Mark, marked, marked_where_it_says};
use super::source::{ImageSource, sources};
use super::{ImageColumns, ImageRow, ordered, placed};
use crate::data::{Part, Place, each_object_with};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// The images of the worse answer, as ms-swift names them.
const REJECTED_IMAGES: &str = "rejected_images";

/// Reads rows, each with its images, whose placeholders are in its texts; without `columns` rows have none. `begin`
/// writes a row in the form that it is read in.
///
/// Errors: those of `each_prompt`, and of `row`.
pub(crate) fn each_answered<T>(
    path: &Path,
    columns: Option<ImageColumns>,
    begin: impl Fn(&mut Map<String, Value>),
    row: impl Fn(Map<String, Value>, Place) -> Result<T>,
) -> Result<Vec<ImageRow<T>>> {
    let mut rows = Vec::new();
    each_object_with(path, Part::WHOLE, columns.map(|columns| columns.images), |mut object, place| {
        begin(&mut object);
        let (place_words, images) = match columns {
            Some(columns) => (place.words(), images_of_answers(&mut object, columns, place)),
            None => (String::new(), Vec::new()),
        };
        rows.push(ImageRow { place: place_words, row: row(object, place)?, images });
        Ok(())
    })?;
    Ok(rows)
}

/// Calls `visit` with the images of each row of a file, of whichever form, and the row's place.
///
/// Errors: those of reading; those of `visit`.
pub fn each_row_s_images(
    path: &Path,
    columns: ImageColumns,
    mut visit: impl FnMut(ImageRow<()>) -> Result<()>,
) -> Result<()> {
    each_object_with(path, Part::WHOLE, Some(columns.images), |mut object, place| {
        let images = images_of_answers(&mut object, columns, place);
        visit(ImageRow { place: place.words(), row: (), images })
    })
    .map(drop)
}

/// Writes placeholders into the texts of a row, and returns its images in their order, or what is wrong with one.
///
/// The texts are those of `chosen` and `rejected`, of `messages`, or of the prompt and `completion`.
pub(crate) fn images_of_answers(
    object: &mut Map<String, Value>,
    columns: ImageColumns,
    place: Place,
) -> Vec<Result<ImageSource>> {
    let column = object.shift_remove(columns.images).unwrap_or(Value::Null);
    let of_rejected = object.shift_remove(REJECTED_IMAGES).filter(|value| !value.is_null());
    let differs = of_rejected.is_some_and(|of_rejected| of_rejected != column);
    let named = sources(column);
    let mut texts = Texts { object, placeholder: columns.placeholder, count: named.len() };
    let found = if texts.has("chosen") && texts.has("rejected") {
        texts.of_pair(columns.prompt)
    } else if texts.has("messages") {
        Ok(texts.begin("messages"))
    } else {
        let mut marks = texts.begin(columns.prompt);
        marks.extend(texts.mark("completion"));
        Ok(marks)
    };
    let images = match found {
        Ok(_) if differs => vec![Err(other_images())],
        Ok(marks) => ordered(named, marks),
        Err(error) => vec![Err(error)],
    };
    placed(images, &place.words())
}

fn other_images() -> Error {
    Error::new("image-count", "the answers of the pair have other images than each other")
        .hint("both answers of a pair are to one prompt: give it its images once")
}

/// The texts of a row, with `count` images in its column.
struct Texts<'o> {
    object: &'o mut Map<String, Value>,
    placeholder: &'o str,
    count: usize,
}

impl Texts<'_> {
    fn has(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// Marks a text that begins a row: without a place all images come before it.
    fn begin(&mut self, name: &str) -> Vec<Mark> {
        self.with(name, marked)
    }

    /// Marks a text only where it has places.
    fn mark(&mut self, name: &str) -> Vec<Mark> {
        self.with(name, |text, placeholder, count| marked_where_it_says(text, placeholder, count > 0))
    }

    fn with(&mut self, name: &str, of: impl Fn(Value, &str, usize) -> (Value, Vec<Mark>)) -> Vec<Mark> {
        let Some(value) = self.object.get_mut(name) else { return Vec::new() };
        let (text, marks) = of(value.take(), self.placeholder, self.count);
        *value = text;
        marks
    }

    /// Marks a pair: answers that begin with the prompt have its images both.
    fn of_pair(&mut self, prompt: &str) -> Result<Vec<Mark>> {
        let is_whole = |name: &str| {
            let list = self.object[name].as_array();
            list.is_some_and(|list| list.iter().any(|message| message["role"] == "user"))
        };
        if self.has(prompt) && !(is_whole("chosen") && is_whole("rejected")) {
            let mut marks = self.begin(prompt);
            // An answer has no image, which its tokens show.
            marks.extend(self.mark("chosen"));
            self.mark("rejected");
            return Ok(marks);
        }
        self.mark(prompt);
        let (chosen, rejected) = (self.begin("chosen"), self.begin("rejected"));
        if chosen == rejected { Ok(chosen) } else { Err(other_images()) }
    }
}
