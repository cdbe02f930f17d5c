//! A pass: its index arrays, built on the host, and their device buffers.

use crate::activations::Activations;
use crate::activations::bufs::HeadBufs;
use crate::activations::taught::TeacherHead;
use crate::adapters::SlotRows;
use crate::cache_index::{CacheIndex, Place};
use crate::images::Images;
use crate::parts::delta::places::{PLACE_FIELDS, push_any};
use crate::parts::experts::load::ExpertLoad;
use plimsoll_arch::{CACHES, Cache};
use plimsoll_device::{
    ALL_KEYS, Batch, Device, HeadOut, KV_BLOCK, ListedTokens, NO_PARENT, NO_STATE, SEGMENT_FIELDS, SLOT_ROWS,
    most_slots,
};
use plimsoll_memory::Buf;

/// Index arrays of one pass, built on the host, with capacity for the limits.
///
/// A row at position p of segment s attends to keys 0..=p of the segment's block table.
#[derive(Clone, Debug, Default)]
pub struct PassIndex {
    pub ids: Vec<u32>,
    pub positions: Vec<u32>,
    /// [M] slots of adapters, or `NO_SLOT`, where rows choose among several; else empty.
    pub adapters: Vec<u32>,
    /// [M, 3] places (time, height, width), where images may be among the rows; else empty.
    pub places: Vec<u32>,
    /// [S, 5], see `plimsoll_device::Batch`.
    pub segments: Vec<u32>,
    /// [R] rows that go through the head.
    pub head_rows: Vec<u32>,
    /// [R] tokens to predict; not used by the sampler.
    pub targets: Vec<u32>,
    /// By kind of cache, see `plimsoll_arch::Cache`; empty if there is none.
    pub caches: [CacheIndex; CACHES],
    /// Upper bound of positions while passes run without the host; 0 if none do.
    pub keys_max: usize,
}

impl PassIndex {
    /// Returns empty arrays with room for `limits`, so that filling them never allocates.
    pub fn with_capacity(limits: &crate::PassLimits) -> PassIndex {
        let mut index = PassIndex {
            ids: Vec::with_capacity(limits.rows),
            positions: Vec::with_capacity(limits.rows),
            segments: Vec::with_capacity(limits.segments * SEGMENT_FIELDS),
            head_rows: Vec::with_capacity(limits.head_rows),
            targets: Vec::with_capacity(limits.head_rows),
            ..PassIndex::default()
        };
        for cache in limits.caches.each() {
            let arrays = index.caches[cache.index()].arrays().into_iter();
            arrays
                .zip(CacheIndex::words(cache, limits))
                .for_each(|(array, words)| array.reserve_exact(words));
        }
        index
    }

    /// Empties the arrays and keeps their capacity.
    pub fn clear(&mut self) {
        let own = [
            &mut self.ids,
            &mut self.positions,
            &mut self.adapters,
            &mut self.places,
            &mut self.segments,
            &mut self.head_rows,
            &mut self.targets,
        ];
        own.into_iter().chain(self.caches.iter_mut().flat_map(CacheIndex::arrays)).for_each(Vec::clear);
        self.keys_max = 0;
    }

    /// Returns the most adapters among `SLOT_ROWS` rows that the pass is computed for. Devices choose kernels by it,
    /// and passes that run without the host are recorded, so those have one, or as many as there may be.
    fn most_adapters(&self) -> usize {
        match most_slots(&self.adapters) {
            2.. if self.keys_max > 0 => SLOT_ROWS,
            most => most.max(1),
        }
    }

    /// True if rows next to each other have several adapters: such a pass has a recording of its own.
    pub fn mixes_adapters(&self) -> bool {
        most_slots(&self.adapters) > 1
    }

    /// Adds the cache positions of a spare row: a sequence of its own without a state, its key in the last block of
    /// every cache, with tables of `stride` entries.
    pub fn push_spare(&mut self, limits: &crate::PassLimits, stride: usize) {
        for cache in limits.caches.each() {
            let to = &mut self.caches[cache.index()];
            if cache.has_blocks() {
                let block = limits.last(cache);
                to.slots.push(block * KV_BLOCK as u32);
                to.tables.resize(to.tables.len() + stride, block);
            } else {
                to.slots.extend([NO_STATE; PLACE_FIELDS]);
            }
        }
    }

    /// Fills in a pass of `rows` rows like a real one, to run every shape once before it is needed: sequences of up to
    /// `length` tokens, all in the last block of every cache, the first `heads` rows through the head. A pass has at
    /// most `limits.segments` times `length` rows.
    pub fn rehearse(&mut self, limits: &crate::PassLimits, rows: usize, length: usize, heads: usize) {
        assert!(rows <= limits.segments * length, "{rows} rows in {} sequences of {length}", limits.segments);
        self.clear();
        let (mut place, mut table) = (0, 0);
        for first in (0..rows).step_by(length) {
            let count = length.min(rows - first);
            self.segments.extend_from_slice(&[first as u32, count as u32, 0, table, NO_PARENT]);
            self.ids.resize(first + count, 0);
            self.positions.extend(0..count as u32);
            table += count.div_ceil(KV_BLOCK) as u32;
            for cache in limits.caches.each() {
                let to = &mut self.caches[cache.index()];
                if cache.has_blocks() {
                    let block = limits.last(cache);
                    to.tables.resize(table as usize, block);
                    to.slots.extend((0..count).map(|p| (block as usize * KV_BLOCK + p % KV_BLOCK) as u32));
                } else {
                    push_any(&mut to.slots, &mut place, count, limits.caches.units(cache.index()));
                }
            }
        }
        self.head_rows.extend(0..heads as u32);
        self.targets.resize(heads, 0);
    }

    pub fn num_segments(&self) -> usize {
        self.segments.len() / SEGMENT_FIELDS
    }

    /// Returns the heap bytes of arrays made for `limits`.
    pub fn bytes(limits: &crate::PassLimits) -> u64 {
        let own = 2 * limits.rows + limits.segments * SEGMENT_FIELDS + 2 * limits.head_rows;
        let caches = limits.caches.each().flat_map(|cache| CacheIndex::words(cache, limits));
        4 * (own + caches.sum::<usize>()) as u64
    }
}

/// Returns sizes that cover every pass of sequences of up to `length` tokens: products pick algorithms by power of two.
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
    /// Position in the cache of layers with windows, if they have their own.
    pub(crate) window: Option<Place<'p>>,
    pub(crate) rows: usize,
    pub(crate) head_rows: usize,
    /// Derivative of the loss with respect to the probability of an expert that all rows of its segment chose.
    pub(crate) balance: f32,
    /// The teacher whose head its rows are compared with, if there is one.
    pub(crate) teacher: Option<TeacherHead<'p>>,
    /// Its images, if rows of it are vectors or come after them.
    pub(crate) images: Option<Images<'p>>,
    /// The slot of each row, where rows choose among several adapters.
    pub(crate) slot_rows: Option<SlotRows<'p>>,
    /// True if head rows may have masks, in a pass that is not drawn from.
    pub(crate) is_masked: bool,
}

impl<'p> Pass<'p> {
    /// Uploads the index arrays. Panics if they exceed a limit: batches are made within limits.
    pub fn upload(dev: &dyn Device, acts: Activations<'p>, index: &PassIndex) -> Pass<'p> {
        let (rows, head_rows) = (index.ids.len(), index.head_rows.len());
        dev.write_u32(acts.ids, 0, &index.ids);
        dev.write_u32(acts.positions, 0, &index.positions);
        dev.write_u32(acts.segments, 0, &index.segments);
        dev.write_u32(acts.head_rows, 0, &index.head_rows);
        if let Some(regions) = acts.parts.delta {
            regions.upload(dev, &index.caches[Cache::STATE].slots, &index.segments, &acts.limits);
        }
        if let Some(targets) = acts.targets {
            assert_eq!(index.targets.len(), head_rows, "one target a head row");
            dev.write_u32(targets, 0, &index.targets);
        }
        let keys_max = index.positions.iter().max().map_or(0, |&p| p as usize + 1).max(index.keys_max);
        let [whole, ring] = [Cache::PAGED, Cache::RING].map(|kind| &index.caches[kind]);
        let Place { batch, copies } = acts.whole.upload(dev, whole, |slots, tables| Batch {
            positions: acts.positions.slice(0, rows),
            segments: acts.segments.slice(0, index.segments.len()),
            slots,
            tables,
            keys_max,
        });
        let window = acts.parts.attention.and_then(|regions| regions.window);
        let window = window.map(|of| {
            assert_eq!(ring.slots.len(), whole.slots.len(), "a place in every cache");
            assert_eq!(ring.tables.len(), whole.tables.len(), "tables of one length");
            of.at.upload(dev, ring, |slots, tables| Batch { slots, tables, ..batch })
        });
        let ids = acts.ids.slice(0, rows);
        let slot_rows = acts.adapt.rows.map(|slots| upload_slots(dev, slots, index));
        Pass {
            acts,
            batch,
            ids,
            copies,
            window,
            rows,
            head_rows,
            balance: 0.0,
            teacher: None,
            images: None,
            slot_rows,
            is_masked: false,
        }
    }

    /// Returns the number of its rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a load balancing loss by its derivative, for the probability of an expert that all rows of a segment chose.
    pub fn with_balance(self, factor: f32) -> Pass<'p> {
        Pass { balance: factor, ..self }
    }

    /// Adds images, whose index arrays are those of the same rows.
    pub fn with_images(self, images: Images<'p>) -> Pass<'p> {
        Pass { images: Some(images), ..self }
    }

    /// Adds the pass's expert load to `load`, after the backward pass.
    pub fn add_load(&self, dev: &dyn Device, load: &mut ExpertLoad) {
        let regions = self.acts.parts.experts.expect("a pass through experts");
        load.add(dev, &regions, self.rows);
    }

    /// Returns the pass's place in the cache of a layer that sees `window` keys.
    pub(crate) fn place(&self, window: usize) -> Place<'p> {
        let own = self.window.filter(|_| window != ALL_KEYS);
        own.unwrap_or(Place { batch: self.batch, copies: self.copies })
    }

    /// Returns [R] u32: the tokens of the last `draw`.
    pub fn tokens(&self) -> Buf<'p> {
        self.acts.sampler.expect("only the rollout samples").1.slice(0, self.head_rows)
    }

    /// Returns [R] log-probabilities, log-sum-exps and entropies of the last `head` or `sample`. Panics for values.
    pub fn head_out(&self) -> HeadOut<'p> {
        let (out, r) = (self.vocabulary().0, self.head_rows);
        HeadOut {
            logprobs: out.logprobs.slice(0, r),
            lse: out.lse.slice(0, r),
            entropy: out.entropy.slice(0, r),
        }
    }

    /// Returns the listed tokens of each head row; none where none are listed.
    pub fn listed(&self) -> Option<ListedTokens<'p>> {
        let HeadBufs::Vocabulary { listed, .. } = self.acts.head else { return None };
        let n = self.head_rows * self.acts.limits.listed;
        listed.map(|of| ListedTokens { ids: of.ids.slice(0, n), logprobs: of.logprobs.slice(0, n) })
    }

    /// Uploads how the divergence of each head row follows from its logits, before `backward`. `slopes`: [R, K], by the
    /// logits of listed tokens; `rest`: [R], by any other, divided by its probability.
    pub fn set_divergence(&self, dev: &dyn Device, slopes: &[f32], rest: &[f32]) {
        let listed = self.acts.backward.and_then(|back| back.divergence());
        let bufs = listed.expect("an update with listed tokens");
        assert_eq!(
            (slopes.len(), rest.len()),
            (self.head_rows * self.acts.limits.listed, self.head_rows),
            "numbers of each head row"
        );
        dev.write_f32(bufs.slopes, 0, slopes);
        dev.write_f32(bufs.rest, 0, rest);
    }

    /// Returns [R] f32: the results of the last `values`. Panics for a pass over a vocabulary.
    pub fn values(&self) -> Buf<'p> {
        match self.acts.head {
            HeadBufs::Values(values) => values.slice(0, self.head_rows),
            HeadBufs::Vocabulary { .. } => panic!("this pass ends in a vocabulary"),
        }
    }

    /// Returns the outputs and the tile of the head over the vocabulary.
    pub(crate) fn vocabulary(&self) -> (HeadOut<'p>, Buf<'p>) {
        match self.acts.head {
            HeadBufs::Vocabulary { out, tile, .. } => (out, tile),
            HeadBufs::Values(_) => panic!("this pass ends in values"),
        }
    }
}

/// Uploads the slot of each row; a pass that names none has the first adapter in all rows.
fn upload_slots<'p>(dev: &dyn Device, slots: Buf<'p>, index: &PassIndex) -> SlotRows<'p> {
    let of_row = slots.slice(0, index.ids.len());
    if index.adapters.is_empty() {
        dev.zero(of_row);
        return SlotRows { of_row, most: 1 };
    }
    assert_eq!(index.adapters.len(), index.ids.len(), "a slot a row");
    dev.write_u32(of_row, 0, &index.adapters);
    SlotRows { of_row, most: index.most_adapters() }
}
