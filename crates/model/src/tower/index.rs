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

    /// Iterates over its windows of `side` times `side` vectors, row by row; the last of each may be smaller.
    /// Without a side the image is one window.
    fn windows(self, merge: u32, side: Option<u32>) -> impl Iterator<Item = Window> {
        let (rows, columns) = (self.rows / merge, self.columns / merge);
        let side = side.unwrap_or(rows.max(columns)).max(1);
        let begins = move |end: u32| (0..end).step_by(side as usize);
        begins(rows).flat_map(move |row| {
            begins(columns).map(move |column| Window {
                row,
                column,
                rows: side.min(rows - row),
                columns: side.min(columns - column),
            })
        })
    }

    /// Iterates over the vectors (row, column) of its windows, row by row in each.
    fn vectors(self, merge: u32, side: Option<u32>) -> impl Iterator<Item = [u32; 2]> {
        self.windows(merge, side).flat_map(|window| {
            let Window { row, column, rows, columns } = window;
            (row..row + rows).flat_map(move |row| (column..column + columns).map(move |column| [row, column]))
        })
    }

    /// Iterates over the places (row, column) of its patches in the order of `vectors`, the patches of a vector row by
    /// row.
    fn places(self, merge: u32, side: Option<u32>) -> impl Iterator<Item = [u32; 2]> {
        let of_vector = move |[row, column]: [u32; 2]| {
            (0..merge).flat_map(move |y| (0..merge).map(move |x| [row * merge + y, column * merge + x]))
        };
        self.vectors(merge, side).flat_map(of_vector)
    }
}

/// Vectors of an image that see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    row: u32,
    column: u32,
    rows: u32,
    columns: u32,
}

/// Which rows of a pass see each other, and where their keys are kept.
#[derive(Clone, Debug, Default)]
pub struct TowerSegments {
    /// [M]: where keys are kept.
    pub slots: Vec<u32>,
    /// [segments, 5], see `plimsoll_device::Batch`.
    pub segments: Vec<u32>,
    /// Blocks of all segments, one segment after the other.
    pub tables: Vec<u32>,
    /// Rows of the largest segment.
    pub keys_max: usize,
}

impl TowerSegments {
    fn push(&mut self, rows: usize) {
        let (first, block) = (self.slots.len(), self.tables.len());
        self.segments.extend_from_slice(&[first as u32, rows as u32, 0, block as u32, NO_PARENT]);
        self.slots.extend((block * KV_BLOCK..block * KV_BLOCK + rows).map(|slot| slot as u32));
        self.tables.extend((block..block + rows.div_ceil(KV_BLOCK)).map(|block| block as u32));
        self.keys_max = self.keys_max.max(rows);
    }
}

/// Index arrays of the images of a pass, whose rows are the patches of each window, window by window.
#[derive(Clone, Debug, Default)]
pub struct TowerIndex {
    /// [M, 3]: 0, row and column of each patch.
    pub places: Vec<u32>,
    /// [4, M]: learned positions around each patch.
    pub corners: Vec<u32>,
    /// [4, M]: their weights.
    pub weights: Vec<f32>,
    /// Images.
    pub whole: TowerSegments,
    /// Windows, for a tower of which some layers see these alone.
    pub windows: Option<TowerSegments>,
    /// [n], with windows: which vector of the pass's images, row by row in each, vector i of the pass is.
    pub order: Vec<u32>,
}

impl TowerIndex {
    /// Makes the arrays of images. Panics if a grid is not of whole vectors.
    pub fn of(spec: &TowerSpec, images: &[PatchGrid]) -> TowerIndex {
        let mut index = TowerIndex::default();
        let patches: usize = images.iter().map(|image| image.patches()).sum();
        let side = spec.window_side();
        if let Some(table) = spec.positions {
            index.corners = vec![0; 4 * patches];
            index.weights = vec![0.0; 4 * patches];
            let of_image = |image: &PatchGrid| {
                image.places(spec.merge, side).map({
                    let image = *image;
                    move |at| (image, at)
                })
            };
            for (m, (image, [row, column])) in images.iter().flat_map(of_image).enumerate() {
                let [y, x] = [between(row, image.rows, table), between(column, image.columns, table)];
                for corner in 0..4 {
                    let ((y, by_y), (x, by_x)) = (y[corner / 2], x[corner % 2]);
                    index.corners[corner * patches + m] = y * table + x;
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
            index.push(*image, spec.merge, side);
        }
        index
    }

    fn push(&mut self, image: PatchGrid, merge: u32, side: Option<u32>) {
        self.places.extend(image.places(merge, side).flat_map(|[row, column]| [0, row, column]));
        self.whole.push(image.patches());
        if side.is_none() {
            return;
        }
        let windows = self.windows.get_or_insert_default();
        for window in image.windows(merge, side) {
            windows.push((window.rows * window.columns * merge * merge) as usize);
        }
        let (first, columns) = (self.order.len() as u32, image.columns / merge);
        self.order.extend(image.vectors(merge, side).map(|[row, column]| first + row * columns + column));
    }

    /// Returns M.
    pub fn patches(&self) -> usize {
        self.whole.slots.len()
    }

    /// Calls `each` with runs of vectors that are neighbours in the pass and row by row: the first in the pass, the
    /// first row by row, and their number. Without windows nothing is called: the two orders are one.
    pub(super) fn each_run(&self, mut each: impl FnMut(usize, usize, usize)) {
        let mut at = 0;
        while at < self.order.len() {
            let first = self.order[at];
            let run = self.order[at..].iter().zip(first..).take_while(|(which, next)| *which == next).count();
            each(at, first as usize, run);
            at += run;
        }
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
    use plimsoll_arch::{DeepLayers, Gelu, LayerSet, TowerMlp, TowerNorm, TowerWindow};

    const WINDOW: TowerWindow = TowerWindow { pixels: 16, whole: LayerSet::every(2, 2) };
    const SPEC: TowerSpec = TowerSpec {
        depth: 2,
        hidden: 16,
        heads: 2,
        ffn: 24,
        patch: 4,
        merge: 2,
        frames: 2,
        out: 32,
        positions: None,
        patch_bias: true,
        norm: TowerNorm::Layer,
        eps: 1e-6,
        mlp: TowerMlp::Plain(Gelu::Tanh),
        window: None,
        rope_theta: 1e4,
        deep: DeepLayers::NONE,
    };

    #[test]
    fn patches_of_a_vector_are_neighbours() {
        let places: Vec<_> = PatchGrid { rows: 2, columns: 4 }.places(2, None).collect();
        assert_eq!(places, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]);
    }

    #[test]
    fn windows_at_the_edges_are_smaller_and_runs_lead_back() {
        let grid = PatchGrid { rows: 6, columns: 10 };
        let sizes: Vec<_> = grid.windows(2, Some(2)).map(|window| window.rows * window.columns).collect();
        assert_eq!(sizes, [4, 4, 2, 2, 2, 1]);
        let vectors: Vec<_> = grid.vectors(2, Some(2)).collect();
        assert_eq!(vectors[..5], [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]);
        let spec = TowerSpec { window: Some(WINDOW), ..SPEC };
        let index = TowerIndex::of(&spec, &[PatchGrid { rows: 2, columns: 2 }, grid]);
        assert_eq!(index.order[..6], [0, 1, 2, 6, 7, 3]);
        let windows = index.windows.as_ref().unwrap();
        assert_eq!(windows.segments.len(), 5 * spec.windows_max(index.patches(), 2).min(7));
        assert_eq!((windows.keys_max, index.whole.keys_max, index.patches()), (16, 60, 64));
        // The fourth has 8 patches and a block of its own.
        assert_eq!(windows.segments[15..25], [36, 8, 0, 3, NO_PARENT, 44, 8, 0, 4, NO_PARENT]);
        let mut back = vec![0; 16];
        index.each_run(|at, first, run| (0..run).for_each(|i| back[first + i] = at + i));
        assert!((0..16).all(|vector| index.order[back[vector]] == vector as u32), "{back:?}");
        assert!(TowerIndex::of(&SPEC, &[grid]).windows.is_none());
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
