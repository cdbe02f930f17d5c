//! The products of a layer, and which of its linear layers each consists of.

use plimsoll_base::{LoraShape, LoraTarget, ModelSpec};

/// A product of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    Qkv,
    Output,
    GateUp,
    Down,
}

impl Site {
    pub const ALL: [Site; 4] = [Site::Qkv, Site::Output, Site::GateUp, Site::Down];

    /// Returns the linear layers that it consists of, by their outputs.
    pub(crate) fn layers(self) -> &'static [LoraTarget] {
        match self {
            Site::Qkv => &[LoraTarget::Q, LoraTarget::K, LoraTarget::V],
            Site::Output => &[LoraTarget::O],
            Site::GateUp => &[LoraTarget::Gate, LoraTarget::Up],
            Site::Down => &[LoraTarget::Down],
        }
    }

    /// Returns those that have an adapter, each with the first of its outputs; in a layer of experts, of each of these.
    pub(super) fn targets(
        self,
        spec: &ModelSpec,
        lora: LoraShape,
        layer: u32,
    ) -> impl Iterator<Item = (LoraTarget, usize)> {
        let mut first = 0;
        let each = self.layers().iter().map(move |&target| {
            let start = first;
            first += target.widths(spec, layer).1 as usize;
            (target, start)
        });
        each.filter(move |(target, _)| lora.targets.contains(*target))
    }

    /// Returns S r, the width of u; 0 without an adapter.
    pub(super) fn width(self, lora: LoraShape) -> usize {
        self.layers().iter().filter(|target| lora.targets.contains(**target)).count() * lora.rank as usize
    }

    /// True if a layer with experts has it once for each of them.
    pub(crate) fn is_of_experts(self) -> bool {
        matches!(self, Site::GateUp | Site::Down)
    }

    /// Returns the name of its region of u.
    pub(super) fn region(self) -> &'static str {
        match self {
            Site::Qkv => "adapt.qkv",
            Site::Output => "adapt.output",
            Site::GateUp => "adapt.gate_up",
            Site::Down => "adapt.down",
        }
    }
}
