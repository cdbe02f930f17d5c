//! Index arrays of images among rows of text, made on the host.

use plimsoll_arch::{SightSpec, image_places};
use plimsoll_base::{Error, Result};
use plimsoll_device::{NO_PARENT, SEGMENT_FIELDS};

/// An image in a text: numbers `first..first + rows * columns` of a run's vectors, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextImage {
    pub first: u32,
    pub rows: u32,
    pub columns: u32,
    /// Where the table has its first vector.
    pub at: u32,
}

/// The places (time, height, width) of a text's rows: those of its beginning, and from `next` on a token after the
/// other, with three equal numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextPlaces {
    begins: Vec<[u32; 3]>,
    next: u32,
}

impl TextPlaces {
    /// Returns places with room for a beginning of `rows`, so that `fill` never allocates.
    pub fn with_capacity(rows: usize) -> TextPlaces {
        TextPlaces { begins: Vec::with_capacity(rows), next: 0 }
    }

    /// Returns the places of a text that begins with `ids`, see `fill`.
    ///
    /// Errors: `image-rows-incomplete`.
    pub fn of(ids: &[u32], vocab: u32, images: &[TextImage]) -> Result<TextPlaces> {
        let mut places = TextPlaces::with_capacity(ids.len());
        places.fill(ids, vocab, images)?;
        Ok(places)
    }

    /// Takes a text that begins with `ids`: numbers of rows, from `vocab` on of vectors. `images`: those that there
    /// are, by their first vectors, ascending.
    ///
    /// Errors: `image-rows-incomplete` if rows of vectors are not those of whole images.
    /// Source: transformers `Qwen3VLModel.get_rope_index`.
    pub fn fill(&mut self, ids: &[u32], vocab: u32, images: &[TextImage]) -> Result<()> {
        self.fill_from(0, ids, vocab, images)
    }

    /// Takes rows of a text from one on whose place is `next`, three times; see `fill`.
    fn fill_from(&mut self, mut next: u32, ids: &[u32], vocab: u32, images: &[TextImage]) -> Result<()> {
        self.begins.clear();
        let mut at = 0;
        while at < ids.len() {
            let Some(vector) = ids[at].checked_sub(vocab) else {
                self.begins.push([next; 3]);
                (at, next) = (at + 1, next + 1);
                continue;
            };
            let found = images.binary_search_by_key(&vector, |image| image.first);
            let image = found.map_err(|_| incomplete(at, vector, "no image begins with it"))?;
            let TextImage { rows, columns, .. } = images[image];
            let count = rows as usize * columns as usize;
            let own = &ids[at..ids.len().min(at.saturating_add(count))];
            let follows = |(id, vector): (&u32, u32)| id.checked_sub(vocab) == Some(vector);
            if count == 0 || own.len() != count || !own.iter().zip(vector..).all(follows) {
                let what = format!("its image has vectors {vector} to {}", vector as usize + count);
                return Err(incomplete(at, vector, &what));
            }
            let (own, after) = image_places(next, rows, columns);
            self.begins.extend(own);
            (at, next) = (at + count, after);
        }
        self.next = next;
        Ok(())
    }

    /// Returns the place of a row.
    pub fn at(&self, row: usize) -> [u32; 3] {
        let after = row.wrapping_sub(self.begins.len()) as u32;
        self.begins.get(row).copied().unwrap_or([self.next.wrapping_add(after); 3])
    }
}

fn incomplete(row: usize, vector: u32, what: &str) -> Error {
    Error::new("image-rows-incomplete", format!("row {row} of a text is vector {vector}: {what}"))
        .hint("cut a prompt before or after an image, never inside of one")
}

/// Rows of a pass that are vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageIndex {
    /// [I], ascending.
    pub rows: Vec<u32>,
    /// [I]
    pub which: Vec<u32>,
}

impl ImageIndex {
    /// Returns empty arrays with room for `rows`.
    pub fn with_capacity(rows: usize) -> ImageIndex {
        ImageIndex { rows: Vec::with_capacity(rows), which: Vec::with_capacity(rows) }
    }

    /// Takes rows that are vectors out of a pass's ids, which become the image's token. `images`: those that the table
    /// has, by their first vectors, ascending; panics at a number of none of them, which `TextPlaces` refuses.
    pub fn take(&mut self, ids: &mut [u32], sight: &SightSpec, vocab: u32, images: &[TextImage]) {
        self.rows.clear();
        self.which.clear();
        for (row, id) in ids.iter_mut().enumerate().filter(|(_, id)| **id >= vocab) {
            let vector = *id - vocab;
            let image = images[images.partition_point(|image| image.first <= vector) - 1];
            self.rows.push(row as u32);
            self.which.push(image.at + (vector - image.first));
            *id = sight.image_token;
        }
    }
}

/// Appends the places of a pass's rows, three numbers each: a segment without a parent is a whole text, or the
/// beginning of those of its children, which may have images too. `segments` as in `PassIndex`, `images` as in
/// `TextPlaces::fill`.
///
/// Errors: `image-rows-incomplete`.
pub fn place_rows(
    (ids, segments): (&[u32], &[u32]),
    vocab: u32,
    images: &[TextImage],
    places: &mut Vec<u32>,
) -> Result<()> {
    let mut of_texts: Vec<(u32, TextPlaces)> = Vec::new();
    for segment in segments.as_chunks::<SEGMENT_FIELDS>().0 {
        let [first, rows, position, _, parent] = *segment;
        let ids = &ids[first as usize..][..rows as usize];
        if parent == NO_PARENT {
            assert_eq!(position, 0, "a text from its beginning");
            of_texts.push((first, TextPlaces::of(ids, vocab, images)?));
        }
        let root = if parent == NO_PARENT { first } else { parent };
        let text = of_texts.iter().rev().find(|(row, _)| *row == root).expect("a parent comes first");
        if parent != NO_PARENT && ids.iter().any(|id| *id >= vocab) {
            let mut own = TextPlaces::default();
            own.fill_from(text.1.at(position as usize)[0], ids, vocab, images)?;
            places.extend((0..ids.len()).flat_map(|row| own.at(row)));
        } else {
            places.extend((position..position + rows).flat_map(|row| text.1.at(row as usize)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_after_an_image_follow_its_longer_side() {
        let image = TextImage { first: 4, rows: 2, columns: 3, at: 4 };
        let places = TextPlaces::of(&[1, 104, 105, 106, 107, 108, 109, 2], 100, &[image]).unwrap();
        let of = |rows: std::ops::Range<usize>| rows.map(|row| places.at(row)).collect::<Vec<_>>();
        assert_eq!(of(0..4), [[0; 3], [1, 1, 1], [1, 1, 2], [1, 1, 3]]);
        assert_eq!(of(6..10), [[1, 2, 3], [4; 3], [5; 3], [6; 3]]);
        assert_eq!(TextPlaces::of(&[1, 2, 3], 100, &[]).unwrap().at(9), [9; 3]);
    }

    #[test]
    fn parts_of_images_are_refused() {
        let image = TextImage { first: 0, rows: 1, columns: 2, at: 0 };
        for (ids, images) in [
            (&[1, 100][..], &[image][..]),
            (&[100, 1, 101], &[image]),
            (&[101, 100], &[image]),
            (&[100, 101], &[]),
            (&[100, 101, 101], &[image]),
        ] {
            assert_eq!(
                TextPlaces::of(ids, 100, images).unwrap_err().slug,
                "image-rows-incomplete",
                "{ids:?}"
            );
        }
        // Twice the same one.
        assert_eq!(TextPlaces::of(&[100, 101, 100, 101], 100, &[image]).unwrap().at(3), [2, 2, 3]);
    }

    #[test]
    fn responses_go_on_from_their_own_prompts() {
        let image = TextImage { first: 0, rows: 2, columns: 1, at: 0 };
        let ids = [7, 100, 101, 8, 9, 5, 8, 6, 100, 101, 4];
        let segments = [
            [0, 3, 0, 0, NO_PARENT],
            [3, 2, 3, 0, 0],
            [5, 1, 0, 0, NO_PARENT],
            [6, 1, 1, 0, 5],
            [7, 4, 3, 0, 0],
        ]
        .concat();
        let mut places = Vec::new();
        place_rows((&ids, &segments), 100, &[image], &mut places).unwrap();
        let expect = [[0; 3], [1, 1, 1], [1, 2, 1], [3; 3], [4; 3], [0; 3], [1; 3]];
        assert_eq!(places[..21], expect.concat());
        // An image of the response's own.
        assert_eq!(places[21..], [[3; 3], [4, 4, 4], [4, 5, 4], [6; 3]].concat());
    }

    #[test]
    fn an_image_after_a_prompt_has_the_places_of_one_text() {
        let image = |first| TextImage { first, rows: 1, columns: 3, at: 0 };
        let (images, ids) = ([image(0), image(3)], [7, 100, 101, 102, 8, 9, 103, 104, 105, 5, 6]);
        let places = |segments: &[[u32; SEGMENT_FIELDS]]| {
            let mut places = Vec::new();
            place_rows((&ids, &segments.concat()), 100, &images, &mut places).unwrap();
            places
        };
        let whole = places(&[[0, 11, 0, 0, NO_PARENT]]);
        assert_eq!(places(&[[0, 5, 0, 0, NO_PARENT], [5, 6, 5, 0, 0]]), whole);
    }
}
