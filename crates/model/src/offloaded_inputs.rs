//! Layer inputs offloaded to the device's host memory until the backward pass: `Recompute::Offload`.
//!
//! The arena holds three at a time. The forward pass copies a layer's input out while later layers run; the backward
//! pass copies it in while they are recomputed. The last two stay. The bits are those of `Recompute::Layer`.

use plimsoll_device::{Device, INPUT_SLOTS, OFFLOAD_SLOTS};
use plimsoll_memory::Buf;
use std::iter;

/// Returns the number of inputs that are offloaded: those of the first layers.
pub(crate) fn leaving(layers: u32) -> usize {
    (layers as usize).saturating_sub(INPUT_SLOTS - 1)
}

/// Returns the name of their region, in passes with this `prefix`.
pub(crate) fn region(prefix: &str) -> String {
    format!("offload.{prefix}.resid")
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OffloadedInputs<'p> {
    /// [3, M, h], in the arena.
    pub(crate) slots: Buf<'p>,
    /// [leaving, M, h], in host memory.
    pub(crate) host: Buf<'p>,
    /// Elements per slot, and how many of them are in use.
    pub(crate) each: (usize, usize),
}

impl<'p> OffloadedInputs<'p> {
    fn in_arena(&self, layer: usize) -> Buf<'p> {
        self.slots.slice(layer % INPUT_SLOTS * self.each.0, self.each.1)
    }

    fn in_host(&self, layer: usize) -> Buf<'p> {
        self.host.slice(layer * self.each.0, self.each.1)
    }

    fn leaves(&self, layer: usize) -> bool {
        layer < self.host.len() / self.each.0
    }

    /// Runs before layer `layer` of a forward pass, whose output overwrites an earlier input.
    pub(crate) fn before_forward(&self, dev: &dyn Device, layer: usize) {
        if let Some(earlier) = (layer + 1).checked_sub(INPUT_SLOTS) {
            dev.offload_in(slot(earlier), &mut iter::empty());
            dev.offload_wait(slot(earlier));
        }
    }

    /// Runs after layer `layer` of a forward pass: starts to copy its input out.
    pub(crate) fn after_forward(&self, dev: &dyn Device, layer: usize) {
        if self.leaves(layer) {
            let copy = (self.in_arena(layer), self.in_host(layer));
            dev.offload_out(slot(layer), &mut iter::once(copy));
        }
    }

    /// Runs before layer `layer` of a backward pass: copies in the input two layers down, waits for this one's.
    pub(crate) fn before_backward(&self, dev: &dyn Device, layer: usize) {
        if let Some(next) = layer.checked_sub(INPUT_SLOTS - 1) {
            dev.offload_out(slot(next), &mut iter::empty());
            dev.offload_in(slot(next), &mut iter::once((self.in_host(next), self.in_arena(next))));
        }
        if self.leaves(layer) {
            dev.offload_wait(slot(layer));
        }
    }
}

/// Returns the device's slot of a layer's input, next to the slots of weights and states.
fn slot(layer: usize) -> usize {
    OFFLOAD_SLOTS + layer % INPUT_SLOTS
}
