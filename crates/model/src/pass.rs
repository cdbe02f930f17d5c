//! A pass: its index arrays, made on the host, and what they are on the device.

use crate::activations::Activations;
use crate::activations::bufs::HeadBufs;
use crate::parts::attention::regions::WindowRegions;
use crate::parts::delta::places::{PLACE_FIELDS, push_any};
use crate::parts::experts::load::ExpertLoad;
use plimsoll_device::{ALL_KEYS, Batch, Device, HeadOut, KV_BLOCK, NO_PARENT, SEGMENT_FIELDS};
use plimsoll_memory::Buf;

/// Index arrays of one pass, made on the host with capacity for the limits.
///
/// A row at position p of segment s attends to keys 0..=p of the segment's block table.
#[derive(Clone, Debug, Default)]
pub struct PassIndex {
    pub ids: Vec<u32>,
    pub positions: Vec<u32>,
    /// [M] block * 16 + slot.
    pub slots: Vec<u32>,
    /// [S, 5], see `plimsoll_device::Batch`.
    pub segments: Vec<u32>,
    /// Block tables, one after the other.
    pub tables: Vec<u32>,
    /// [C, 3] source block, destination block, slots: copied after the rows' own keys are written.
    pub copies: Vec<u32>,
    /// [R] rows that go through the head.
    pub head_rows: Vec<u32>,
    /// [R] what they predict; not used by the sampler.
    pub targets: Vec<u32>,
    /// [S, 2] where the states of linear attention are, see `plimsoll_device::Places`; empty where no layer has any.
    pub places: Vec<u32>,
    /// Where rows are in the cache of the layers with windows; empty where these have none of their own.
    pub window: WindowIndex,
    /// Positions stay below it while passes follow without the host; 0 where none do.
    pub keys_max: usize,
}

/// Where rows are in a second cache. Its tables begin where those of the pass do; entries of keys that no row sees are of any block.
#[derive(Clone, Debug, Default)]
pub struct WindowIndex {
    /// As those of `PassIndex`.
    pub slots: Vec<u32>,
    pub tables: Vec<u32>,
    pub copies: Vec<u32>,
}

impl WindowIndex {
    fn with_capacity(limits: &crate::PassLimits) -> WindowIndex {
        match limits.window_blocks {
            0 => WindowIndex::default(),
            _ => WindowIndex {
                slots: Vec::with_capacity(limits.rows),
                tables: Vec::with_capacity(limits.table_entries),
                copies: Vec::with_capacity(limits.copies * 3),
            },
        }
    }

    fn clear(&mut self) {
        [&mut self.slots, &mut self.tables, &mut self.copies].into_iter().for_each(Vec::clear);
    }
}

impl PassIndex {
    /// Empty arrays with room for `limits`, so that filling them never allocates.
    pub fn with_capacity(limits: &crate::PassLimits) -> PassIndex {
        PassIndex {
            ids: Vec::with_capacity(limits.rows),
            positions: Vec::with_capacity(limits.rows),
            slots: Vec::with_capacity(limits.rows),
            segments: Vec::with_capacity(limits.segments * SEGMENT_FIELDS),
            tables: Vec::with_capacity(limits.table_entries),
            copies: Vec::with_capacity(limits.copies * 3),
            head_rows: Vec::with_capacity(limits.head_rows),
            targets: Vec::with_capacity(limits.head_rows),
            places: Vec::with_capacity(if limits.places > 0 { limits.segments * PLACE_FIELDS } else { 0 }),
            window: WindowIndex::with_capacity(limits),
            keys_max: 0,
        }
    }

    /// Empties the arrays and keeps their room.
    pub fn clear(&mut self) {
        for array in [
            &mut self.ids,
            &mut self.positions,
            &mut self.slots,
            &mut self.segments,
            &mut self.tables,
            &mut self.copies,
            &mut self.head_rows,
            &mut self.targets,
            &mut self.places,
        ] {
            array.clear();
        }
        self.window.clear();
        self.keys_max = 0;
    }

    /// Fills in a pass of `rows` rows like real ones of that size: sequences of up to `length` tokens, all in one
    /// block, the first `heads` rows through the head. For running every shape once before it is needed. No pass has more
    /// than `limits.segments` times `length` rows.
    pub fn rehearse(
        &mut self,
        limits: &crate::PassLimits,
        rows: usize,
        length: usize,
        heads: usize,
        block: u32,
    ) {
        assert!(rows <= limits.segments * length, "{rows} rows in {} sequences of {length}", limits.segments);
        self.clear();
        let mut place = 0;
        for row in 0..rows {
            let position = (row % length) as u32;
            if position == 0 {
                let (first, table) = (row as u32, self.tables.len() as u32);
                let count = length.min(rows - row);
                self.segments.extend_from_slice(&[first, count as u32, 0, table, NO_PARENT]);
                self.tables.resize(self.tables.len() + count.div_ceil(KV_BLOCK), block);
                if limits.places > 0 {
                    push_any(&mut self.places, &mut place, count, limits.places);
                }
            }
            self.ids.push(0);
            self.positions.push(position);
            self.slots.push(block * KV_BLOCK as u32 + position % KV_BLOCK as u32);
        }
        if let Some(block) = (limits.window_blocks as u32).checked_sub(1) {
            self.window.tables.resize(self.tables.len(), block);
            let slot = |&position: &u32| block * KV_BLOCK as u32 + position % KV_BLOCK as u32;
            self.window.slots.extend(self.positions.iter().map(slot));
        }
        self.head_rows.extend(0..heads as u32);
        self.targets.resize(heads, 0);
    }

    pub fn num_segments(&self) -> usize {
        self.segments.len() / SEGMENT_FIELDS
    }

    /// Heap bytes of arrays made for `limits`.
    pub fn bytes(limits: &crate::PassLimits) -> u64 {
        let words = 3 * limits.rows
            + limits.segments * SEGMENT_FIELDS
            + limits.table_entries
            + 3 * limits.copies
            + 2 * limits.head_rows
            + if limits.places > 0 { limits.segments * PLACE_FIELDS } else { 0 };
        let window =
            if limits.window_blocks > 0 { limits.rows + limits.table_entries + 3 * limits.copies } else { 0 };
        4 * (words + window) as u64
    }
}

/// Sizes that cover every pass of sequences of up to `length` tokens: products choose their algorithms by
/// powers of two.
pub fn rehearsal_sizes(limits: &crate::PassLimits, length: usize) -> impl Iterator<Item = usize> {
    let most = limits.rows.min(limits.segments.saturating_mul(length));
    std::iter::successors(Some(most), |&n| (n > 16).then(|| n.div_ceil(2).next_power_of_two().min(n - 1)))
}

/// A pass whose index arrays are on the device.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'p> {
    pub(crate) acts: Activations<'p>,
    pub(crate) batch: Batch<'p>,
    pub(crate) ids: Buf<'p>,
    pub(crate) copies: Option<Buf<'p>>,
    /// Of the layers with windows, where they have a cache of their own.
    pub(crate) window: Option<Cache<'p>>,
    pub(crate) rows: usize,
    pub(crate) head_rows: usize,
    /// The derivative of the loss by the probability of an expert that all rows of its segment chose.
    pub(crate) balance: f32,
}

/// A cache as a pass sees it: where its rows are, and what is copied after their keys are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache<'p> {
    pub(crate) batch: Batch<'p>,
    pub(crate) copies: Option<Buf<'p>>,
}

impl<'p> Pass<'p> {
    /// Sends the index arrays to the device. Panics where a limit is exceeded: batches are made within them.
    pub fn upload(dev: &dyn Device, acts: Activations<'p>, index: &PassIndex) -> Pass<'p> {
        let (rows, head_rows) = (index.ids.len(), index.head_rows.len());
        dev.write_u32(acts.ids, 0, &index.ids);
        dev.write_u32(acts.positions, 0, &index.positions);
        dev.write_u32(acts.kv_slots, 0, &index.slots);
        dev.write_u32(acts.segments, 0, &index.segments);
        dev.write_u32(acts.tables, 0, &index.tables);
        dev.write_u32(acts.head_rows, 0, &index.head_rows);
        if let Some(regions) = acts.delta {
            regions.upload(dev, &index.places, &index.segments, &acts.limits);
        }
        if let Some(targets) = acts.targets {
            assert_eq!(index.targets.len(), head_rows, "one target a head row");
            dev.write_u32(targets, 0, &index.targets);
        }
        let copies = (!index.copies.is_empty()).then(|| {
            let buf = acts.copies.expect("a layout with copies");
            dev.write_u32(buf, 0, &index.copies);
            buf.slice(0, index.copies.len())
        });
        let keys_max = index.positions.iter().max().map_or(0, |&p| p as usize + 1).max(index.keys_max);
        let batch = acts.batch(rows, index.num_segments(), index.tables.len(), keys_max);
        let window = acts.attention.and_then(|regions| regions.window);
        let window = window.map(|bufs| upload_window(dev, &index.window, bufs, batch));
        Pass { acts, batch, ids: acts.ids.slice(0, rows), copies, window, rows, head_rows, balance: 0.0 }
    }

    /// The same with a loss of balance: its derivative by the probability of an expert that all rows of its segment chose.
    pub fn with_balance(self, factor: f32) -> Pass<'p> {
        Pass { balance: factor, ..self }
    }

    /// Adds what its experts got to `load`, after the backward pass.
    pub fn add_load(&self, dev: &dyn Device, load: &mut ExpertLoad) {
        let regions = self.acts.experts.expect("a pass through experts");
        load.add(dev, &regions, self.rows);
    }

    /// The cache of a layer that sees `window` keys.
    pub(crate) fn cache(&self, window: usize) -> Cache<'p> {
        let own = self.window.filter(|_| window != ALL_KEYS);
        own.unwrap_or(Cache { batch: self.batch, copies: self.copies })
    }

    /// [R] u32: what the last `draw` drew.
    pub fn tokens(&self) -> Buf<'p> {
        self.acts.sampler.expect("only the rollout samples").1.slice(0, self.head_rows)
    }

    /// [R] log-probabilities, log-sum-exps and entropies of the last `head` or `sample`. Panics for a pass that ends in values.
    pub fn head_out(&self) -> HeadOut<'p> {
        let (out, r) = (self.vocabulary().0, self.head_rows);
        HeadOut {
            logprobs: out.logprobs.slice(0, r),
            lse: out.lse.slice(0, r),
            entropy: out.entropy.slice(0, r),
        }
    }

    /// [R] f32: what the last `values` gave. Panics for one over a vocabulary.
    pub fn values(&self) -> Buf<'p> {
        match self.acts.head {
            HeadBufs::Values(values) => values.slice(0, self.head_rows),
            HeadBufs::Vocabulary { .. } => panic!("this pass ends in a vocabulary"),
        }
    }

    /// What the head over the vocabulary writes, and its tile.
    pub(crate) fn vocabulary(&self) -> (HeadOut<'p>, Buf<'p>) {
        match self.acts.head {
            HeadBufs::Vocabulary { out, tile } => (out, tile),
            HeadBufs::Values(_) => panic!("this pass ends in values"),
        }
    }
}

/// Sends the index arrays of the layers with windows.
fn upload_window<'p>(
    dev: &dyn Device,
    index: &WindowIndex,
    bufs: WindowRegions<'p>,
    batch: Batch<'p>,
) -> Cache<'p> {
    assert_eq!(index.slots.len(), batch.slots.len(), "a place in every cache");
    assert_eq!(index.tables.len(), batch.tables.len(), "tables of one length");
    dev.write_u32(bufs.slots, 0, &index.slots);
    dev.write_u32(bufs.tables, 0, &index.tables);
    let copies = (!index.copies.is_empty()).then(|| {
        let buf = bufs.copies.expect("a layout with copies");
        dev.write_u32(buf, 0, &index.copies);
        buf.slice(0, index.copies.len())
    });
    let (slots, tables) = (bufs.slots.slice(0, index.slots.len()), bufs.tables.slice(0, index.tables.len()));
    Cache { batch: Batch { slots, tables, ..batch }, copies }
}
