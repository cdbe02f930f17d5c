//! The regions of experts in a pass, and the handles to them.
//!
//! Legend: M rows, E experts of which each row uses k, P = M k pairs, h hidden, L layers with experts.

use super::joined_regions::{self as joined, JoinedBufs, JoinedRegions};
use crate::activations::shape::{Life, PassShape, Regions, Rows};
use crate::parts::shared::regions::{self as shared, SharedBufs, SharedRegions};
use plimsoll_arch::ExpertsSpec;
use plimsoll_base::{DType, Result};
use plimsoll_device::Routes;
use plimsoll_memory::Buf;

/// Counts the layers with experts, whose routes are kept for the backward pass.
const LAYERS: Rows =
    Rows { life: Life::Kept, width: |of, layer| of.spec.layer(layer).experts().is_some().into() };
/// Counts the layers with experts, for what is read after the backward pass.
const ALL_LAYERS: Rows = Rows { life: Life::Always, ..LAYERS };

/// Handles to the regions of a pass through layers with experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertRegions<'p> {
    /// [slots, M, E] f32: router logits.
    logits: Buf<'p>,
    /// [slots, M, k] u32.
    chosen: Buf<'p>,
    /// [slots, M, k] f32.
    weights: Buf<'p>,
    /// [slots, P] u32.
    pairs: Buf<'p>,
    /// [slots, M, k] u32.
    places: Buf<'p>,
    /// [slots, E + 1] u32; of all layers in passes with gradients.
    pub(super) starts: Buf<'p>,
    /// [P, h] f32: the experts' output per pair, and the gradient of their input.
    out: Buf<'p>,
    pub(super) gradients: Option<GradientRegions<'p>>,
    shared: Option<SharedRegions<'p>>,
    joined: Option<JoinedRegions<'p>>,
}

/// Handles that only passes with gradients have.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientRegions<'p> {
    /// [P] f32: gradients of the pairs' weights.
    pub(super) d_weights: Buf<'p>,
    /// [M, E] e.
    pub(super) d_logits: Buf<'p>,
    /// [L, M] f32, layers with experts: each row's term of the load balancing loss.
    pub(super) balance: Buf<'p>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertBufs<'p> {
    pub(super) experts: ExpertsSpec,
    pub(super) logits: Buf<'p>,
    pub(super) routes: Routes<'p>,
    pub(super) out: Buf<'p>,
    pub(super) gradients: Option<GradientRegions<'p>>,
    pub(super) shared: Option<SharedBufs<'p>>,
    pub(crate) joined: Option<JoinedBufs<'p>>,
}

/// Adds the regions.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    let (PassShape { spec, mode, limits }, weights) = (to.of, to.weights);
    let Some(experts) = spec.each_layer().find_map(|layer| layer.experts()) else { return Ok(()) };
    let (m, e, k) = (limits.rows, experts.count as usize, experts.chosen as usize);
    let (slots, all) = (LAYERS.slots(&to.of).0, ALL_LAYERS.slots(&to.of).0);
    to.add(Life::Kept, "experts.logits", &[slots, m, e], DType::F32)?;
    to.add(Life::Kept, "experts.chosen", &[slots, m, k], DType::U32)?;
    to.add(Life::Kept, "experts.weights", &[slots, m, k], DType::F32)?;
    to.add(Life::Kept, "experts.pairs", &[slots, m * k], DType::U32)?;
    to.add(Life::Kept, "experts.places", &[slots, m, k], DType::U32)?;
    to.add(Life::Always, "experts.starts", &[all, e + 1], DType::U32)?;
    to.add(Life::Layer, "experts.out", &[m * k, spec.hidden as usize], DType::F32)?;
    if mode.recompute().is_some() {
        to.add(Life::Layer, "experts.d_weights", &[m * k], DType::F32)?;
        to.add(Life::Layer, "experts.d_logits", &[m, e], weights)?;
        to.add(Life::Always, "experts.balance", &[all, m], DType::F32)?;
    }
    shared::add_regions(to)?;
    joined::add_regions(to, (slots, k))
}

impl<'p> ExpertRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<ExpertRegions<'p>> {
        let buf = |what: &str| get(&format!("experts.{what}"));
        Some(ExpertRegions {
            logits: buf("logits")?,
            chosen: buf("chosen")?,
            weights: buf("weights")?,
            pairs: buf("pairs")?,
            places: buf("places")?,
            starts: buf("starts")?,
            out: buf("out")?,
            gradients: buf("d_weights").map(|d_weights| GradientRegions {
                d_weights,
                d_logits: buf("d_logits").expect("gradients of logits"),
                balance: buf("balance").expect("a number for each row of each layer"),
            }),
            shared: SharedRegions::bind(get),
            joined: JoinedRegions::bind(get),
        })
    }

    /// Returns the first `m` rows of the buffers of a layer with experts.
    pub(crate) fn layer(
        &self,
        of: &PassShape<'_>,
        experts: ExpertsSpec,
        layer: u32,
        m: usize,
    ) -> ExpertBufs<'p> {
        let (e, k, all) = (experts.count as usize, experts.chosen as usize, of.limits.rows);
        let (slot, index) = (LAYERS.before(of, layer), ALL_LAYERS.before(of, layer));
        let rows = |buf: Buf<'p>, width: usize| buf.slice(slot * all * width, m * width);
        ExpertBufs {
            experts,
            logits: rows(self.logits, e),
            routes: Routes {
                experts: rows(self.chosen, k),
                weights: rows(self.weights, k),
                pairs: rows(self.pairs, k),
                places: rows(self.places, k),
                starts: self.starts.part(index, e + 1),
            },
            out: self.out.slice(0, m * k * of.spec.hidden as usize),
            gradients: self.gradients.map(|grads| GradientRegions {
                d_weights: grads.d_weights.slice(0, m * k),
                d_logits: grads.d_logits.slice(0, m * e),
                balance: grads.balance.slice(index * all, m),
            }),
            shared: self.shared.and_then(|shared| shared.layer(of, layer, m)),
            joined: self.joined.map(|joined| joined.layer(of, (layer, slot, k), m)),
        }
    }
}
