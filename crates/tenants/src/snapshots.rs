//! Saved adapters that are sampled: each in a slot while responses are drawn with it, and until another needs the slot.

use crate::store::Stores;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_infer::bound::BoundModel;
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
                let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.holders == 0);
                let Some((at, _)) = free.min_by_key(|(_, slot)| slot.used) else { return Ok(None) };
                self.slots[at].store = None;
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

    /// Gives back the slot of a store that a request held.
    pub fn release(&mut self, store: StoreId) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.store == Some(store)) {
            slot.holders = slot.holders.saturating_sub(1);
        }
    }
}
