//! Inputs of layers that wait for the backward pass in the device's host memory: `Recompute::Offload`.
//!
//! Three are in the arena at a time. On the way forward the input of a layer leaves while later layers are computed; on the way back it
//! comes while they are computed again. The last two never leave. The bits are those of `Recompute::Layer`.

use plimsoll_device::{Device, INPUT_SLOTS, OFFLOAD_SLOTS};
use plimsoll_memory::Buf;
use std::iter;

/// Inputs that leave, the first ones of as many layers.
pub(crate) fn leaving(layers: u32) -> usize {
    (layers as usize).saturating_sub(INPUT_SLOTS - 1)
}

/// Their region, of passes whose regions begin with `prefix`.
pub(crate) fn region(prefix: &str) -> String {
    format!("offload.{prefix}.resid")
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'p> {
    /// [3, M, h]: in the arena.
    pub(crate) slots: Buf<'p>,
    /// [leaving, M, h]: in the host's memory.
    pub(crate) host: Buf<'p>,
    /// Elements that a slot has, and those of them in use.
    pub(crate) each: (usize, usize),
}

impl<'p> Kept<'p> {
    fn in_arena(&self, layer: usize) -> Buf<'p> {
        self.slots.slice(layer % INPUT_SLOTS * self.each.0, self.each.1)
    }

    fn in_host(&self, layer: usize) -> Buf<'p> {
        self.host.slice(layer * self.each.0, self.each.1)
    }

    fn leaves(&self, layer: usize) -> bool {
        layer < self.host.len() / self.each.0
    }

    /// Before layer `layer` of a forward pass, which writes where an earlier input was.
    pub(crate) fn before_forward(&self, dev: &dyn Device, layer: usize) {
        if let Some(earlier) = (layer + 1).checked_sub(INPUT_SLOTS) {
            dev.offload_in(slot(earlier), &mut iter::empty());
            dev.offload_wait(slot(earlier));
        }
    }

    /// After it: its input leaves.
    pub(crate) fn after_forward(&self, dev: &dyn Device, layer: usize) {
        if self.leaves(layer) {
            let copy = (self.in_arena(layer), self.in_host(layer));
            dev.offload_out(slot(layer), &mut iter::once(copy));
        }
    }

    /// Before layer `layer` of a backward pass: its input must be there, and the one before the last takes the place of the one after.
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

/// The device's slot of a layer's input, next to those of weights and states.
fn slot(layer: usize) -> usize {
    OFFLOAD_SLOTS + layer % INPUT_SLOTS
}
