//! A decoder that streams its layers from the device's host memory or from other ranks: embedding, final norm and head
//! once per phase, then the layers one by one through two slots, the next one while one is computed.
//!
//! It computes what a resident decoder computes, with the same operations.

use crate::adapters::Adapters;
use crate::decoder::{Decoder, Layers, Way};
use crate::params::ParamTable;
use crate::weights::{LayerParams, Params};
use plimsoll_arch::{ModelSpec, ParamKind};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{Device, MatrixLayout, Run, portions};
use plimsoll_memory::{Buf, InPhase, Layout, Pool, Turn};
use std::ops::Range;

/// Slots of layers; the slot after them is that of the two ends.
const LAYER_SLOTS: usize = 2;

/// The storage of a flat buffer: its consecutive runs, in order.
pub type Source<'p> = Vec<(Run, Buf<'p>)>;

/// Returns the buffers that stream the weights of `role`.
///
/// Errors: `size-overflow`.
pub fn layout(
    role: &str,
    table: &ParamTable,
    weights: DType,
    pool: Pool,
    phases: PhaseSet,
) -> Result<Layout> {
    let mut layout = Layout::new();
    let ends: u64 = ends(table).map(|end| end.end - end.start).iter().sum();
    layout.arena(&format!("{role}.ends"), "model", pool, phases, &[ends], weights)?;
    // Layers with experts are larger than those without.
    let last = table.params.iter().map(|param| param.layer).max().unwrap_or(0);
    let layers = (0..=last).map(|index| table.layer_run(index).elements);
    let slots = [LAYER_SLOTS as u64, layers.max().unwrap_or(0)];
    layout
        .arena_in_turn(&format!("{role}.layers"), "model", pool, phases, Turn::Layers, &slots, weights)
        .map(|()| layout)
}

/// Returns the elements of a layer in the flat buffer.
fn layer(table: &ParamTable, index: u32) -> Range<u64> {
    let run = table.layer_run(index);
    run.start..run.end()
}

/// Returns the elements before the first layer and after the last.
fn ends(table: &ParamTable) -> [Range<u64>; 2] {
    let last = table.find(ParamKind::FinalNorm, 0).expect("every decoder has one").offset;
    [0..layer(table, 0).start, last..table.elements]
}

/// A decoder that streams its layers in a phase; embedding, final norm and head are resident.
#[derive(Debug)]
pub struct Streamed<'p> {
    ends: Decoder<'p>,
    source: &'p Source<'p>,
    /// [2, the largest layer's elements].
    slots: Buf<'p>,
    table: &'p ParamTable,
    adapters: Option<&'p Adapters<'p>>,
}

/// Weights that are streamed, where they lie, and the adapters on top of them, which are resident.
#[derive(Clone, Copy, Debug)]
pub struct StreamedWeights<'p> {
    pub spec: ModelSpec,
    pub table: &'p ParamTable,
    pub source: &'p Source<'p>,
    pub rope: Buf<'p>,
    pub adapters: Option<&'p Adapters<'p>>,
}

impl<'p> Streamed<'p> {
    /// Starts to copy the two ends; later operations wait for them.
    pub fn begin(dev: &dyn Device, of: StreamedWeights<'p>, phase: &InPhase<'p>, role: &str) -> Streamed<'p> {
        let StreamedWeights { spec, table, source, rope, adapters } = of;
        let (slots, buf) = (phase.buf(&format!("{role}.layers")), phase.buf(&format!("{role}.ends")));
        let [first, last] = ends(table);
        let parts = [(first.clone(), 0), (last.clone(), first.end)].into_iter().flat_map(|(part, at)| {
            let len = (part.end - part.start) as usize;
            copies(source, part, buf.slice(at as usize, len))
        });
        dev.offload_begin();
        bring(dev, LAYER_SLOTS, parts);
        dev.offload_wait(LAYER_SLOTS);
        let dtype = buf.dtype();
        let params = Params::bind_ends(spec, table, dtype, buf, first.end..last.start);
        let params = params.with_adapters(adapters);
        Streamed { ends: Decoder { spec, dtype, params, rope }, source, slots, table, adapters }
    }

    fn slot(&self, index: usize) -> Buf<'p> {
        let len = self.slots.len() / LAYER_SLOTS;
        self.slots.part(index % LAYER_SLOTS, len)
    }

    fn bring(&self, dev: &dyn Device, index: usize) {
        let part = layer(self.table, index as u32);
        bring(dev, index % LAYER_SLOTS, copies(self.source, part, self.slot(index)));
    }

    fn layer_params(&self, index: usize) -> LayerParams<'p> {
        let start = layer(self.table, index as u32).start;
        let layout = MatrixLayout::of_weights(self.table.device, self.slots.dtype());
        let bound = LayerParams::bind(self.table, layout, index as u32, |param| {
            self.slot(index).slice((param.offset - start) as usize, param.elements as usize)
        });
        let adapters = self.adapters.map(|all| all.layers[index]).unwrap_or_default();
        LayerParams { adapters, ..bound }
    }
}

impl<'p> Layers<'p> for Streamed<'p> {
    fn decoder(&self) -> &Decoder<'p> {
        &self.ends
    }

    fn layer(&self, dev: &dyn Device, index: usize, way: Way) -> LayerParams<'p> {
        let (below, above) = (
            index.checked_sub(1),
            Some(index + 1).filter(|above| *above < self.ends.spec.layers.len() as usize),
        );
        let (before, next) = if way == Way::Forward { (below, above) } else { (above, below) };
        match before {
            // The operations of the layer before are all issued: after them its slot is free.
            Some(before) => dev.offload_out(before % LAYER_SLOTS, &mut std::iter::empty()),
            None => {
                // The slots may still hold data from the head's turn.
                dev.offload_begin();
                self.bring(dev, index);
            }
        }
        next.inspect(|next| self.bring(dev, *next));
        dev.offload_wait(index % LAYER_SLOTS);
        self.layer_params(index)
    }
}

/// Starts copies into a slot; those from other hosts' ranks run a portion at a time.
fn bring<'p>(dev: &dyn Device, slot: usize, copies: impl Iterator<Item = (Buf<'p>, Buf<'p>)>) {
    let copies: Vec<_> = copies.collect();
    for portion in portions(&copies, |(from, _)| from.bytes()) {
        dev.prefetch(&mut portion.iter().map(|(from, _)| *from));
        dev.offload_in(slot, &mut portion.iter().copied());
    }
}

/// Returns the copies that bring a part of the flat buffer to `to`.
fn copies<'p>(
    source: &Source<'p>,
    part: Range<u64>,
    to: Buf<'p>,
) -> impl Iterator<Item = (Buf<'p>, Buf<'p>)> + Clone {
    let first = source.partition_point(|(run, _)| run.end() <= part.start);
    source[first..].iter().take_while(move |(run, _)| run.start < part.end).map(move |(run, buf)| {
        let (start, end) = (run.start.max(part.start), run.end().min(part.end));
        let len = (end - start) as usize;
        (buf.slice((start - run.start) as usize, len), to.slice((start - part.start) as usize, len))
    })
}
