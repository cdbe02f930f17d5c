//! Index arrays of images among rows of text, made on the host.

use crate::pass::PassIndex;
use plimsoll_arch::{SightSpec, image_places};
use plimsoll_base::{Error, Result};

/// An image in a text: vectors `first..first + rows * columns` of the table, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextImage {
    pub first: u32,
    pub rows: u32,
    pub columns: u32,
}

/// Returns the places (time, height, width) of a sequence's rows, and the place of the next token minus the number of
/// rows, which is 0 or less. `ids`: numbers of rows, from `vocab` on of vectors; `images`: those of the sequence, in
/// order. A token has three equal numbers.
///
/// Errors: `image-rows-incomplete` if rows of vectors are not those of whole images in order.
/// Source: transformers `Qwen3VLModel.get_rope_index`.
pub fn text_places(ids: &[u32], vocab: u32, images: &[TextImage]) -> Result<(Vec<[u32; 3]>, i64)> {
    let (mut places, mut next, mut images) = (Vec::with_capacity(ids.len()), 0, images.iter());
    let mut at = 0;
    while at < ids.len() {
        let Some(vector) = ids[at].checked_sub(vocab) else {
            places.push([next; 3]);
            (at, next) = (at + 1, next + 1);
            continue;
        };
        let image = images.next().ok_or_else(|| incomplete(at, vector, "no image is left"))?;
        let count = image.rows as usize * image.columns as usize;
        let rows = &ids[at..ids.len().min(at.saturating_add(count))];
        let is_whole = rows.len() == count
            && rows.iter().zip(image.first..).all(|(id, vector)| id.checked_sub(vocab) == Some(vector));
        if !is_whole || count == 0 {
            let what = format!("its image has vectors {} to {}", image.first, image.first as usize + count);
            return Err(incomplete(at, vector, &what));
        }
        let (own, after) = image_places(next, image.rows, image.columns);
        places.extend(own);
        (at, next) = (at + count, after);
    }
    if let Some(image) = images.next() {
        return Err(incomplete(at, image.first, "the text ends before its image"));
    }
    Ok((places, i64::from(next) - ids.len() as i64))
}

fn incomplete(row: usize, vector: u32, what: &str) -> Error {
    Error::new("image-rows-incomplete", format!("row {row} of a text is vector {vector}: {what}"))
        .hint("cut a prompt before or after an image, never inside of one")
}

/// Rows of a pass that are vectors, and the places of all rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageIndex {
    /// [I], ascending.
    pub rows: Vec<u32>,
    /// [I]
    pub which: Vec<u32>,
    /// [M, 3]
    pub places: Vec<u32>,
}

impl ImageIndex {
    /// Takes rows that are vectors out of a pass: their ids become the image's token. `places`: those of all rows.
    pub fn take(index: &mut PassIndex, sight: &SightSpec, vocab: u32, places: &[[u32; 3]]) -> ImageIndex {
        assert_eq!(index.ids.len(), places.len(), "a place for each row");
        let mut images = ImageIndex { places: places.as_flattened().to_vec(), ..ImageIndex::default() };
        for (row, id) in index.ids.iter_mut().enumerate().filter(|(_, id)| **id >= vocab) {
            images.rows.push(row as u32);
            images.which.push(*id - vocab);
            *id = sight.image_token;
        }
        images
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_after_an_image_follow_its_longer_side() {
        let image = TextImage { first: 4, rows: 2, columns: 3 };
        let ids = [1, 104, 105, 106, 107, 108, 109, 2];
        let (places, delta) = text_places(&ids, 100, &[image]).unwrap();
        assert_eq!(places[1..4], [[1, 1, 1], [1, 1, 2], [1, 1, 3]]);
        assert_eq!((places[6], places[7], delta), ([1, 2, 3], [4, 4, 4], -3));
        let (plain, delta) = text_places(&[1, 2, 3], 100, &[]).unwrap();
        assert_eq!((plain, delta), (vec![[0; 3], [1; 3], [2; 3]], 0));
    }

    #[test]
    fn parts_of_images_are_refused() {
        let image = TextImage { first: 0, rows: 1, columns: 2 };
        for (ids, images) in [
            (&[1, 100][..], &[image][..]),
            (&[100, 1, 101], &[image]),
            (&[101, 100], &[image]),
            (&[100, 101], &[]),
            (&[1], &[image]),
            (&[100, 101, 100], &[image]),
        ] {
            assert_eq!(text_places(ids, 100, images).unwrap_err().slug, "image-rows-incomplete", "{ids:?}");
        }
    }
}
