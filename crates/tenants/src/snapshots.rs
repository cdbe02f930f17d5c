//! Saved adapters that are sampled: each in a slot while responses are drawn with it, and until another needs the slot.

use crate::store::Stores;
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_infer::bound::BoundModel;
use plimsoll_memory::Buf;
use plimsoll_tinker::StoreId;

/// A slot with the store that it has.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    store: Option<StoreId>,
    /// Requests that are drawn with it.
    holders: usize,
    /// When it was used last, in requests.
    used: u64,
}

/// The slots after those that are trained.
pub struct Snapshots<'b, 'a> {
    pub dev: &'b dyn Device,
    pub bound: &'b BoundModel<'a>,
    pub base: &'b OpenModel,
    pub stores: &'b Stores,
    pub staging: Bytes,
    first: usize,
    slots: Vec<Snapshot>,
    requests: u64,
}

impl<'b, 'a> Snapshots<'b, 'a> {
    /// Takes the slots of a model that are not trained.
    pub fn bind(
        (dev, bound): (&'b dyn Device, &'b BoundModel<'a>),
        (base, stores): (&'b OpenModel, &'b Stores),
        staging: Bytes,
    ) -> Snapshots<'b, 'a> {
        let lora = bound.shape.lora.expect("a plan with slots");
        let first = lora.trained_slots as usize;
        let slots = vec![Snapshot::default(); lora.slots as usize - first];
        Snapshots { dev, bound, base, stores, staging, first, slots, requests: 0 }
    }

    /// Holds a store's slot for one request, which `release` gives back; reads the store if no slot has it. None if all
    /// slots are held.
    ///
    /// Errors: those of reading.
    pub fn hold(&mut self, store: StoreId) -> Result<Option<u32>> {
        self.requests += 1;
        let at = match self.slots.iter().position(|slot| slot.store == Some(store)) {
            Some(at) => at,
            None => {
                let Some(at) = self.free_slot() else { return Ok(None) };
                let open = self.stores.read(self.base, store)?;
                let (table, adapters) = self.bound.adapters.as_ref().expect("a plan with slots");
                let slots = adapters.slots.expect("a plan with slots");
                let of = (table, self.bound.layout());
                slots.load(self.dev, of, self.first + at, &open.files, self.staging)?;
                self.slots[at].store = Some(store);
                at
            }
        };
        self.slots[at].holders += 1;
        self.slots[at].used = self.requests;
        Ok(Some((self.first + at) as u32))
    }

    /// Copies the weights of a store that was just saved to a slot, if no request holds all of them: they are sampled
    /// next, and need not be read. The bits are those of the file, whose values are rounded alike.
    pub fn take_copy(&mut self, store: StoreId, weights: Buf<'_>, scale: f32) {
        if weights.dtype() != DType::F32 {
            return;
        }
        let Some(at) = self.free_slot() else { return };
        let (table, adapters) = self.bound.adapters.as_ref().expect("a plan with slots");
        let slots = adapters.slots.expect("a plan with slots");
        self.dev.write_f32(slots.scales, self.first + at, &[scale]);
        self.dev.cast(weights, slots.slot(table, self.first + at));
        self.requests += 1;
        self.slots[at] = Snapshot { store: Some(store), holders: 0, used: self.requests };
    }

    /// Takes its store from the slot that was not used for the longest time. None if all are held.
    fn free_slot(&mut self) -> Option<usize> {
        let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.holders == 0);
        let (at, _) = free.min_by_key(|(_, slot)| slot.used)?;
        self.slots[at].store = None;
        Some(at)
    }

    /// Gives back the slot of a store that a request held.
    pub fn release(&mut self, store: StoreId) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.store == Some(store)) {
            slot.holders = slot.holders.saturating_sub(1);
        }
    }
}
