//! The partial gradient of a rank's micro-batch. Owners sum a layer's while the next layer is computed, so layers use
//! two slots in turn, and only what is before and after the layers is always there. An embedding that is not also the
//! head has no place: its gradient is the rows of tokens.

use plimsoll_arch::{LayerSet, ModelSpec, ParamKind};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};
use plimsoll_model::{Param, ParamTable, Params};
use std::collections::BTreeSet;

/// Slots of layers: one is written while the contents of the other are summed.
pub const LAYER_SLOTS: usize = 2;

/// Sizes of layers in one model.
const SIZES_MAX: usize = 4;

/// The regions of all parameters' gradients for one of several ranks: `ROLE.grads` for the last norm, the head, and an
/// embedding that is the head or has no head like it; and `ROLE.layer_grads`.
///
/// Errors: `size-overflow`.
pub fn layout(role: &str, table: &ParamTable, pool: Pool, phases: PhaseSet, dtype: DType) -> Result<Layout> {
    let layers = Layers::of(table);
    let mut layout = Layout::new();
    let ends = table.elements - layers.end + layers.before;
    layout.arena(&format!("{role}.grads"), "train", pool, phases, &[ends], dtype)?;
    let slots = [LAYER_SLOTS as u64, layers.widest];
    layout.arena(&format!("{role}.layer_grads"), "train", pool, phases, &slots, dtype)?;
    Ok(layout)
}

/// The layers' places in the flat buffer.
#[derive(Clone, Copy, Debug)]
struct Layers {
    start: u64,
    end: u64,
    /// Elements before the layers that have a place: none if the head has the shape of the embedding.
    before: u64,
    /// First element of a head that is not the embedding.
    head: Option<u64>,
    /// Elements of the largest layers.
    widest: u64,
    /// The layers of each size: with and without experts, and with attention of either kind.
    sizes: [(LayerSet, u64); SIZES_MAX],
    /// True if padding differs between layers.
    differ: bool,
}

impl Layers {
    fn of(table: &ParamTable) -> Layers {
        let (first, end) = (table.layer_run(0), table.head_run().start);
        let head = table.find(ParamKind::Head, 0).map(|head| head.offset);
        let before = if head.is_some() { 0 } else { first.start };
        let layers = table.params.iter().map(|param| param.layer + 1).max().unwrap_or(0);
        let elements = |layer| table.layer_run(layer).elements;
        let widest = (0..layers).map(elements).max().unwrap_or(0);
        let mut sizes = [(LayerSet::default(), 0); SIZES_MAX];
        let found: BTreeSet<u64> = (0..layers).map(elements).collect();
        assert!(found.len() <= SIZES_MAX, "layers of at most {SIZES_MAX} sizes");
        for (of_size, size) in sizes.iter_mut().zip(found) {
            *of_size = (LayerSet::of(layers, |layer| elements(layer) == size), size);
        }
        let ends = |layer: u32| {
            let start = table.layer_run(layer).start;
            let params = table.params.iter().filter(move |param| param.is_of_layer() && param.layer == layer);
            params.map(move |param| (param.offset - start, param.elements))
        };
        let differ = (1..layers).any(|layer| !ends(layer).eq(ends(0)));
        Layers { start: first.start, end, before, head, widest, sizes, differ }
    }

    /// Returns where a layer begins.
    fn start_of(&self, layer: u32) -> u64 {
        let before = |&(layers, size): &(LayerSet, u64)| u64::from(layers.before(layer)) * size;
        self.start + self.sizes.iter().map(before).sum::<u64>()
    }

    /// Returns the layer that holds an element, and where it begins.
    fn layer_at(&self, element: u64) -> (u32, u64) {
        let (mut layer, mut start) = (0, self.start);
        loop {
            let of_layer = self.sizes.iter().find(|(layers, _)| layers.contains(layer));
            let next = start + of_layer.expect("a layer").1;
            if element < next {
                return (layer, start);
            }
            (layer, start) = (layer + 1, next);
        }
    }
}

/// The gradients of a rank's micro-batch, by their places in the flat buffer.
#[derive(Clone, Copy, Debug)]
pub struct Partial<'p> {
    /// All gradients, or those outside of layers.
    ends: Buf<'p>,
    slots: Option<(Buf<'p>, Layers)>,
}

impl<'p> Partial<'p> {
    /// Resolves the regions of a role.
    pub fn bind(phase: &InPhase<'p>, role: &str, table: &ParamTable) -> Partial<'p> {
        let (ends, slots) = (format!("{role}.grads"), format!("{role}.layer_grads"));
        Partial::over(phase.buf(&ends), phase.get(&slots), table)
    }

    /// Returns the gradients in regions that are already resolved.
    pub fn over(ends: Buf<'p>, slots: Option<Buf<'p>>, table: &ParamTable) -> Partial<'p> {
        Partial { ends, slots: slots.map(|slots| (slots, Layers::of(table))) }
    }

    /// Returns elements of the flat buffer, of one layer or outside. An embedding without a place has the head's.
    pub fn place(&self, start: u64, elements: u64) -> Buf<'p> {
        let slice = |buf: Buf<'p>, start: u64| buf.slice(start as usize, elements as usize);
        let Some((slots, layers @ Layers { start: first, end, before, head, widest, .. })) = self.slots
        else {
            return slice(self.ends, start);
        };
        match (start, head) {
            (start, Some(head)) if start < first => slice(self.ends, start + head - end),
            (start, None) if start < first => slice(self.ends, start),
            (start, _) if start >= end => slice(self.ends, start - end + before),
            (start, _) => {
                let (layer, begin) = layers.layer_at(start);
                assert!(start + elements <= layers.start_of(layer + 1), "elements of one layer");
                slice(slots, u64::from(layer) % LAYER_SLOTS as u64 * widest + start - begin)
            }
        }
    }

    /// True if another layer uses the same memory for this element of the flat buffer.
    pub(crate) fn is_repeated(&self, start: u64) -> bool {
        let again = |layers: Layers| layers.start_of(LAYER_SLOTS as u32)..layers.end;
        self.slots.is_some_and(|(_, layers)| again(layers).contains(&start))
    }

    /// True if a layer's slot may hold another's values where this one has padding.
    pub(crate) fn layers_differ(&self) -> bool {
        self.slots.is_some_and(|(_, layers)| layers.differ)
    }

    /// Returns the gradients in the shape of the weights.
    pub fn params(&self, spec: &ModelSpec, table: &ParamTable, weights: DType) -> Params<'p> {
        let place = |param: &Param| self.place(param.offset, param.elements);
        Params::bind_where(spec, table, weights, self.ends, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Phase;
    use plimsoll_memory::{Arena, ArenaMap};

    #[test]
    fn what_exists_at_once_has_places_of_its_own() {
        for (name, is_critic) in
            [("qwen2.5-0.5b", false), ("qwen2.5-7b", false), ("qwen2.5-7b", true), ("qwen3-30b-a3b", false)]
        {
            let mut shape = ModelSpec::preset(name).unwrap().file_shape();
            // Layers of two sizes.
            let layers = LayerSet::all_but_every(3, shape.layers);
            shape.experts.iter_mut().for_each(|experts| experts.layers = layers);
            let spec = shape.spec();
            let of = if is_critic { ParamTable::critic } else { ParamTable::new };
            let table = of(&spec, &plimsoll_cuda::LAYOUTS, DType::Bf16);
            let phases = PhaseSet::of(&[Phase::Update]);
            let layout = layout("x", &table, Pool::Device, phases, DType::Bf16).unwrap();
            let mut arena = Arena::new(ArenaMap::new(&layout, 0));
            let (_, mut overlay) = arena.split();
            let phase = overlay.enter(Phase::Update);
            let partial = Partial::bind(&phase, "x", &table);
            let last = spec.layers.len() - 1;
            let at_once = table.params.iter().filter(|param| {
                let is_of_layer = (table.layer_run(0).start..table.head_run().start).contains(&param.offset);
                let exists = !is_of_layer || param.layer + LAYER_SLOTS as u32 > last;
                exists && (param.kind != ParamKind::Embed || table.find(ParamKind::Head, 0).is_none())
            });
            let mut places: Vec<_> = at_once
                .map(|param| partial.place(param.offset, param.elements))
                .map(|buf| (buf.offset(), buf.offset() + buf.len() as u64 * 2))
                .collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{name} {is_critic}");
            let whole = layout.sum(|_| true).0;
            assert!(whole < table.elements * 2 * 35 / 100, "{name} {is_critic}: {whole}");
            // A layer and the one after the next share a slot.
            let of = |layer| partial.place(table.layer_run(layer).start, 1).offset();
            assert!(of(0) == of(2) && of(0) != of(1));
            assert!(
                partial.is_repeated(table.layer_run(2).start)
                    && !partial.is_repeated(table.layer_run(1).start)
            );
        }
    }
}
