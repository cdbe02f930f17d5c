//! Positions of a pass in each cache: index arrays, built on the host, and their device buffers.

use crate::activations::shape::PassLimits;
use crate::parts::delta::places::PLACE_FIELDS;
use plimsoll_arch::Cache;
use plimsoll_device::{Batch, Device};
use plimsoll_memory::Buf;

/// Positions of a pass in one cache.
#[derive(Clone, Debug, Default)]
pub struct CacheIndex {
    /// [M] block * 16 + slot; [S, 2] for states, see `plimsoll_device::Places`.
    pub slots: Vec<u32>,
    /// Block tables, end to end, at the same offsets in all caches. Entries whose keys no row sees hold any block.
    pub tables: Vec<u32>,
    /// [C, 3] source block, destination block, slots: copied after the rows' own keys are written.
    pub copies: Vec<u32>,
}

impl CacheIndex {
    /// Returns the words of each array for `limits`.
    pub(crate) fn words(cache: Cache, limits: &PassLimits) -> [usize; 3] {
        match (cache.has_blocks(), limits.caches.units(cache.index())) {
            (_, 0) => [0; 3],
            (true, _) => [limits.rows, limits.table_entries, limits.copies * 3],
            (false, _) => [limits.segments * PLACE_FIELDS, 0, 0],
        }
    }

    pub(crate) fn arrays(&mut self) -> [&mut Vec<u32>; 3] {
        [&mut self.slots, &mut self.tables, &mut self.copies]
    }
}

/// A pass's rows in a cache, and the copies to make after their keys are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'p> {
    pub(crate) batch: Batch<'p>,
    pub(crate) copies: Option<Buf<'p>>,
}

/// The arrays of `CacheIndex` on the device, for a cache of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheRegions<'p> {
    slots: Buf<'p>,
    tables: Buf<'p>,
    copies: Option<Buf<'p>>,
}

impl<'p> CacheRegions<'p> {
    /// Resolves the handles, if the pass has such regions. Their names begin with `prefix`.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>, prefix: &str) -> Option<CacheRegions<'p>> {
        let get = |what: &str| get(&format!("{prefix}{what}"));
        Some(CacheRegions { slots: get("slots")?, tables: get("tables")?, copies: get("copies") })
    }

    /// Uploads the arrays. `batch` makes a batch of slots and tables.
    pub(crate) fn upload(
        &self,
        dev: &dyn Device,
        index: &CacheIndex,
        batch: impl Fn(Buf<'p>, Buf<'p>) -> Batch<'p>,
    ) -> Place<'p> {
        let send = |buf: Buf<'p>, words: &[u32]| {
            dev.write_u32(buf, 0, words);
            buf.slice(0, words.len())
        };
        let copies = (!index.copies.is_empty())
            .then(|| send(self.copies.expect("a layout with copies"), &index.copies));
        Place { batch: batch(send(self.slots, &index.slots), send(self.tables, &index.tables)), copies }
    }
}
