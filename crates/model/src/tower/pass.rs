//! A tower with its weights, and a pass whose index arrays and pixels are on the device.

use super::index::{TowerIndex, TowerSegments};
use super::params::TowerParams;
use super::regions::{SegmentRegions, TowerRegions, padded};
use plimsoll_arch::{RopeAxes, TowerSpec};
use plimsoll_base::math::{pow, sin_cos};
use plimsoll_device::{
    Adapter, Axes, Batch, ColumnOrder, Columns, Device, Heads, KV_BLOCK, Kv, MoveColumns, Rotation,
};
use plimsoll_memory::Buf;

/// A tower: its shape, weights, and the rotary table of `tower_rope_layout`.
#[derive(Clone, Debug)]
pub struct Tower<'a> {
    pub spec: TowerSpec,
    pub params: TowerParams<'a>,
    /// Filled by `fill_rope`.
    pub rope: Buf<'a>,
}

impl Tower<'_> {
    /// Fills the rotary table. The first half of a head's pairs takes rows, the second columns, at equal speeds.
    pub fn fill_rope(&self, dev: &dyn Device) {
        let pairs = self.spec.head_dim() as usize / 2;
        let speed = |pair: usize| {
            let pair = (pair % (pairs / 2)) as f64;
            1.0 / pow(self.spec.rope_theta, 2.0 * pair / pairs as f64)
        };
        let speeds: Vec<f32> = (0..pairs).map(|pair| speed(pair) as f32).collect();
        let mut row = vec![0.0; 2 * pairs];
        for side in 0..self.rope.len() / (2 * pairs) {
            for (turn, speed) in row.chunks_exact_mut(2).zip(&speeds) {
                // The angle is rounded to f32 first, as in the reference.
                let (sin, cos) = sin_cos(f64::from(side as f32 * speed));
                turn.copy_from_slice(&[cos as f32, sin as f32]);
            }
            dev.write_f32(self.rope, side * 2 * pairs, &row);
        }
    }
}

/// A pass of images through a tower.
#[derive(Clone, Copy, Debug)]
pub struct TowerPass<'p> {
    pub(super) regions: TowerRegions<'p>,
    /// M.
    pub(super) rows: usize,
    whole: Extent,
    windows: Option<Extent>,
}

/// How much of the regions of segments a pass uses.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Words of segments.
    segments: usize,
    /// Blocks of keys.
    blocks: usize,
    keys_max: usize,
}

impl Extent {
    fn upload(dev: &dyn Device, to: SegmentRegions<'_>, of: &TowerSegments) -> Extent {
        dev.write_u32(to.slots, 0, &of.slots);
        dev.write_u32(to.tables, 0, &of.tables);
        dev.write_u32(to.segments, 0, &of.segments);
        Extent { segments: of.segments.len(), blocks: of.tables.len(), keys_max: of.keys_max }
    }
}

impl<'p> TowerPass<'p> {
    /// Uploads the index arrays and the patches, [M, 3 frames p^2]: image by image, vectors row by row. Panics if they
    /// exceed a limit: images are put together within limits.
    pub fn upload(
        dev: &dyn Device,
        regions: TowerRegions<'p>,
        index: &TowerIndex,
        patches: &[f32],
    ) -> TowerPass<'p> {
        let rows = index.patches();
        let capacity = regions.positions.len();
        assert!(rows > 0 && rows <= capacity, "{rows} patches, room for {capacity}");
        assert_eq!(patches.len(), rows * (regions.pixels.len() / capacity), "numbers of each patch");
        dev.write_u32(regions.places, 0, &index.places);
        dev.write_u32(regions.positions, 0, &(0..rows as u32).collect::<Vec<_>>());
        let whole = Extent::upload(dev, regions.whole, &index.whole);
        if let Some((corners, weights)) = regions.corners {
            for corner in 0..4 {
                let own = corner * rows..(corner + 1) * rows;
                dev.write_u32(corners, corner * capacity, &index.corners[own.clone()]);
                dev.write_f32(weights, corner * capacity, &index.weights[own]);
            }
        }
        let windows = regions.windows.zip(index.windows.as_ref()).map(|(to, windows)| {
            dev.write_u32(to.order, 0, &index.order);
            Extent::upload(dev, to.of, windows)
        });
        if windows.is_none() {
            dev.write_f32(regions.pixels, 0, patches);
        }
        // Neighbours in a row of a window are neighbours in the image, so a run is one write.
        let of_vector = patches.len() / index.order.len().max(1);
        index.each_run(|at, first, run| {
            dev.write_f32(regions.pixels, at * of_vector, &patches[first * of_vector..][..run * of_vector]);
        });
        TowerPass { regions, rows, whole, windows }
    }

    /// Returns the first M rows of a region of rows.
    pub(super) fn rows_of(&self, buf: Buf<'p>) -> Buf<'p> {
        buf.slice(0, buf.len() / self.regions.positions.len() * self.rows)
    }

    /// Returns u of a product's adapters for some rows. Panics if the plan has no adapters of a tower.
    pub(super) fn u(&self, rows: usize, adapter: &Adapter<'_>) -> Buf<'p> {
        self.regions.u.expect("a pass with adapters has their u").slice(0, rows * adapter.a.n)
    }

    /// Returns learned position `corner` of each patch and its weight, [M] each.
    pub(super) fn corner(&self, corner: usize) -> Option<(Buf<'p>, Buf<'p>)> {
        let own = |buf: Buf<'p>| buf.part(corner, self.regions.positions.len()).slice(0, self.rows);
        self.regions.corners.map(|(corners, weights)| (own(corners), own(weights)))
    }

    /// Returns the input of layer `layer`, which is the output of the layer before it: [M, h] f32.
    pub(super) fn resid(&self, layer: usize) -> Buf<'p> {
        let r = &self.regions;
        let each = r.mid.len();
        let at = if r.back.is_some() { layer } else { 0 };
        self.rows_of(r.resid.part(at, each))
    }

    /// Returns a region of [M, h] f32 that nothing has written yet when patches become rows.
    pub(super) fn spare(&self) -> Buf<'p> {
        self.rows_of(self.regions.spare)
    }

    /// Returns the rows of a merger's region, [n, s^2 h].
    pub(super) fn merged(&self, spec: &TowerSpec, buf: Buf<'p>) -> Buf<'p> {
        buf.slice(0, self.rows / spec.rows_per_vector() as usize * spec.merged() as usize)
    }

    /// Returns the buffer of a layer's residual between its two parts.
    pub(super) fn mid(&self, layer: usize) -> Buf<'p> {
        if self.regions.back.is_some() { self.rows_of(self.regions.mid) } else { self.resid(layer) }
    }

    /// Returns what the rows of a layer see.
    fn view(&self, spec: &TowerSpec, layer: usize) -> (SegmentRegions<'p>, Extent) {
        match self.regions.windows.zip(self.windows) {
            Some((regions, extent)) if spec.sees_windows(layer as u32) => (regions.of, extent),
            _ => (self.regions.whole, self.whole),
        }
    }

    pub(super) fn kv(&self, spec: &TowerSpec, layer: usize) -> Kv<'p> {
        let (heads, d) = (spec.heads as usize, padded(spec));
        let used = self.view(spec, layer).1.blocks * KV_BLOCK * heads * d;
        let [keys, values] = [self.regions.keys, self.regions.values].map(|buf| buf.slice(0, used));
        Kv { keys, values, kv_heads: heads, head_dim: d }
    }

    pub(super) fn heads(&self, spec: &TowerSpec) -> Heads {
        let heads = spec.heads as usize;
        Heads { heads, kv_heads: heads, head_dim: padded(spec) }
    }

    pub(super) fn batch(&self, spec: &TowerSpec, layer: usize) -> Batch<'p> {
        let (regions, extent) = self.view(spec, layer);
        Batch {
            positions: self.rows_of(self.regions.positions),
            slots: self.rows_of(regions.slots),
            segments: regions.segments.slice(0, extent.segments),
            tables: regions.tables.slice(0, extent.blocks),
            keys_max: extent.keys_max,
        }
    }

    /// Returns where the vectors of a tower with windows are in the order of the pass, [n, H] f32, and which each is.
    pub(super) fn windowed(&self, spec: &TowerSpec) -> Option<(Buf<'p>, Buf<'p>)> {
        let count = self.rows / spec.rows_per_vector() as usize;
        let regions = self.regions.windows?;
        Some((regions.vectors.slice(0, count * spec.out as usize), regions.order.slice(0, count)))
    }

    pub(super) fn rotation(&self, tower: &Tower<'p>) -> Rotation<'p> {
        let (d, wide) = (tower.spec.head_dim() as usize, padded(&tower.spec));
        let quarter = d as u32 / 4;
        let places = self.regions.places.slice(0, 3 * self.rows);
        Rotation {
            width: Some(d),
            // Attention divides scores by the root of the padded width.
            q_scale: if wide == d { 1.0 } else { (wide as f32 / d as f32).sqrt() },
            axes: Some(Axes { places, of: RopeAxes::Runs([0, quarter, quarter]) }),
            ..Rotation::new(tower.rope)
        }
    }

    /// Copies heads of d elements to padded ones, the padding zero, or back; `per_row`: heads of a row.
    pub(super) fn move_heads(
        &self,
        dev: &dyn Device,
        spec: &TowerSpec,
        per_row: usize,
        from: Buf<'_>,
        to: Buf<'_>,
    ) {
        let (columns, rows) = (spec.head_dim() as usize, self.rows);
        let of = |buf: Buf<'_>| buf.len() / (rows * per_row);
        if of(to) > columns {
            dev.zero(to);
        }
        let from = Columns { buf: from, first: 0, row: per_row * of(from), head: of(from) };
        let to = Columns { buf: to, first: 0, row: per_row * of(to), head: of(to) };
        let order = ColumnOrder::Same;
        dev.move_columns(MoveColumns { from, to, rows, heads: per_row, columns, order, add: false });
    }
}
