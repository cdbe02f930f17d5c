//! How a language model takes images: the tower that makes its vectors, and where they are among its tokens.

use super::spec::TowerSpec;
use crate::TokenRun;

/// How the pairs of a rotated head take the three numbers of a row's place: time, height and width.
///
/// A token has three equal numbers, so a text is rotated as by one position a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeAxes {
    /// The first pairs take time, the next height, the others width.
    Runs([u32; 3]),
    /// Pair 3n + 1 takes height and pair 3n + 2 width, for each n below the number of the two; the others take time.
    Woven([u32; 3]),
}

impl RopeAxes {
    /// Returns the numbers of pairs that take time, height and width.
    pub const fn pairs(self) -> [u32; 3] {
        match self {
            RopeAxes::Runs(pairs) | RopeAxes::Woven(pairs) => pairs,
        }
    }

    /// Returns which of the three numbers a pair takes.
    pub const fn of(self, pair: u32) -> usize {
        match self {
            RopeAxes::Runs([time, height, _]) => (pair >= time) as usize + (pair >= time + height) as usize,
            RopeAxes::Woven([_, height, width]) => match pair % 3 {
                1 if pair < 3 * height => 1,
                2 if pair < 3 * width => 2,
                _ => 0,
            },
        }
    }
}

/// What a language model that takes images has besides its text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SightSpec {
    /// The tower. Its further features are added after the text's first layers, one after each.
    pub tower: TowerSpec,
    /// How heads take places.
    pub axes: RopeAxes,
    /// The token that stands for a vector of an image.
    pub image_token: u32,
    /// The tokens before the first vector of an image and after its last.
    pub around: [u32; 2],
    /// Tokens that stand for vectors, of images and of what else a model sees: no policy samples them.
    pub placeholders: TokenRun,
}

impl SightSpec {
    /// Returns it with other tokens: before an image, for one of its vectors, and after it.
    pub fn with_tokens(self, [start, image_token, end]: [u32; 3], placeholders: TokenRun) -> SightSpec {
        SightSpec { image_token, around: [start, end], placeholders, ..self }
    }
}

/// Returns the places of an image's vectors in a text, each time, height and width, row by row; and the place of the
/// next token. `first`: the place of the image; `rows`, `columns`: its vectors.
pub fn image_places(first: u32, rows: u32, columns: u32) -> (impl Iterator<Item = [u32; 3]>, u32) {
    let places =
        (0..rows).flat_map(move |row| (0..columns).map(move |column| [first, first + row, first + column]));
    (places, first + rows.max(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_take_time_height_and_width_in_runs_or_woven() {
        let axes = |axes: RopeAxes, pairs: u32| (0..pairs).map(|pair| axes.of(pair)).collect::<Vec<_>>();
        assert_eq!(axes(RopeAxes::Runs([1, 2, 2]), 5), [0, 1, 1, 2, 2]);
        assert_eq!(axes(RopeAxes::Woven([4, 2, 2]), 8), [0, 1, 2, 0, 1, 2, 0, 0]);
        // As published: time also has the last four pairs.
        let of_qwen3 = axes(RopeAxes::Woven([24, 20, 20]), 64);
        assert_eq!([0, 1, 2].map(|axis| of_qwen3.iter().filter(|&&of| of == axis).count()), [24, 20, 20]);
        assert_eq!(of_qwen3[57..], [0, 1, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn an_image_takes_as_many_places_as_its_longer_side() {
        let (places, next) = image_places(7, 2, 3);
        assert_eq!(places.collect::<Vec<_>>()[..4], [[7, 7, 7], [7, 7, 8], [7, 7, 9], [7, 8, 7]]);
        assert_eq!(next, 10);
    }
}
