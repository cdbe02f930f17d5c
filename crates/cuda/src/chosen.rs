//! The rows that a product is computed for: all, or those of a slot of adapters.

use super::{Arg, CudaDevice, count};
use plimsoll_device::AdapterSlots;

/// The rows that a product is computed for.
#[derive(Clone, Copy)]
pub(crate) enum Chosen<'a> {
    All,
    /// Those of a slot.
    Slot(AdapterSlots<'a>, usize),
    /// Those of a slot, with its factor in place of the product's.
    Scaled(AdapterSlots<'a>, usize),
}

impl Chosen<'_> {
    /// Returns the arguments `OF_SLOT` of kernels.
    pub(crate) fn args(&self, dev: &CudaDevice) -> [Arg; 3] {
        match *self {
            Chosen::All => [Arg::Ptr(0), Arg::Ptr(0), count(0)],
            Chosen::Slot(slots, slot) => [dev.arg(slots.of_row), Arg::Ptr(0), count(slot)],
            Chosen::Scaled(slots, slot) => [dev.arg(slots.of_row), dev.arg(slots.scales), count(slot)],
        }
    }
}
