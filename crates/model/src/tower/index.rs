//! Index arrays of a pass through a tower, made on the host: which rows are of one image, where each is in it, and
//! which learned positions it lies between.

use plimsoll_arch::TowerSpec;
use plimsoll_device::{KV_BLOCK, NO_PARENT};

/// Patches of an image, in rows and columns; both are multiples of a vector's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchGrid {
    pub rows: u32,
    pub columns: u32,
}

impl PatchGrid {
    /// Returns the number of patches.
    pub fn patches(self) -> usize {
        self.rows as usize * self.columns as usize
    }

    /// Iterates over the places (row, column) of its patches in their order: vectors row by row, and the patches of a
    /// vector row by row.
    fn places(self, merge: u32) -> impl Iterator<Item = [u32; 2]> {
        let of_vector = move |row: u32, column: u32| {
            (0..merge).flat_map(move |y| (0..merge).map(move |x| [row * merge + y, column * merge + x]))
        };
        (0..self.rows / merge)
            .flat_map(move |row| (0..self.columns / merge).flat_map(move |column| of_vector(row, column)))
    }
}

/// Index arrays of the images of a pass.
#[derive(Clone, Debug, Default)]
pub struct TowerIndex {
    /// [M, 3]: 0, row and column of each patch.
    pub places: Vec<u32>,
    /// [4, M]: learned positions around each patch.
    pub corners: Vec<u32>,
    /// [4, M]: their weights.
    pub weights: Vec<f32>,
    /// [M]: where keys are kept.
    pub slots: Vec<u32>,
    /// [I, 5], see `plimsoll_device::Batch`.
    pub segments: Vec<u32>,
    /// Blocks of all images, one image after the other.
    pub tables: Vec<u32>,
    /// Patches of the largest image.
    pub keys_max: usize,
}

impl TowerIndex {
    /// Makes the arrays of images. Panics if a grid is not of whole vectors.
    pub fn of(spec: &TowerSpec, images: &[PatchGrid]) -> TowerIndex {
        let mut index = TowerIndex::default();
        let patches: usize = images.iter().map(|image| image.patches()).sum();
        if let Some(side) = spec.positions {
            index.corners = vec![0; 4 * patches];
            index.weights = vec![0.0; 4 * patches];
            let places = images.iter().flat_map(|image| image.places(spec.merge).map(move |at| (*image, at)));
            for (m, (image, [row, column])) in places.enumerate() {
                let [y, x] = [between(row, image.rows, side), between(column, image.columns, side)];
                for corner in 0..4 {
                    let ((y, by_y), (x, by_x)) = (y[corner / 2], x[corner % 2]);
                    index.corners[corner * patches + m] = y * side + x;
                    index.weights[corner * patches + m] = by_y * by_x;
                }
            }
        }
        for image in images {
            let whole = [image.rows, image.columns].iter().all(|side| side.is_multiple_of(spec.merge));
            assert!(
                whole && image.patches() > 0,
                "{image:?} is of whole vectors of {} patches a side",
                spec.merge
            );
            index.push(*image, spec.merge);
        }
        index
    }

    fn push(&mut self, image: PatchGrid, merge: u32) {
        let (first, block, n) = (self.slots.len(), self.tables.len(), image.patches());
        self.segments.extend_from_slice(&[first as u32, n as u32, 0, block as u32, NO_PARENT]);
        self.places.extend(image.places(merge).flat_map(|[row, column]| [0, row, column]));
        self.slots.extend((block * KV_BLOCK..block * KV_BLOCK + n).map(|slot| slot as u32));
        self.tables.extend((block..block + n.div_ceil(KV_BLOCK)).map(|block| block as u32));
        self.keys_max = self.keys_max.max(n);
    }

    /// Returns M.
    pub fn patches(&self) -> usize {
        self.slots.len()
    }
}

/// Returns the two learned positions that place `at` of `count` lies between, with their weights: the ends of the two
/// sides coincide.
/// Source: transformers `Qwen3VLVisionModel.fast_pos_embed_interpolate` (linspace over the table's side).
fn between(at: u32, count: u32, side: u32) -> [(u32, f32); 2] {
    let (along, steps) = (u64::from(at) * u64::from(side - 1), u64::from((count - 1).max(1)));
    let (floor, part) = ((along / steps) as u32, (along % steps) as f32 / steps as f32);
    [(floor, 1.0 - part), ((floor + 1).min(side - 1), part)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_of_a_vector_are_neighbours() {
        let places: Vec<_> = PatchGrid { rows: 2, columns: 4 }.places(2).collect();
        assert_eq!(places, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]);
    }

    #[test]
    fn the_ends_of_an_image_are_those_of_the_table() {
        assert_eq!(between(0, 10, 6), [(0, 1.0), (1, 0.0)]);
        assert_eq!(between(9, 10, 6), [(5, 1.0), (5, 0.0)]);
        assert_eq!(between(0, 1, 6)[0], (0, 1.0));
        let [(low, by_low), (high, by_high)] = between(3, 10, 6);
        assert_eq!((low, high), (1, 2));
        assert!((by_high - 2.0 / 3.0).abs() < 1e-6 && (by_low + by_high - 1.0).abs() < 1e-6);
    }
}
