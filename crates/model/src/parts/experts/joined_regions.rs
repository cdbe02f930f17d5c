//! The regions of experts next to a dense part, and the handles to them.
//!
//! Legend: M rows, k experts of a row, P = M k pairs, h hidden, slots: layers that keep theirs.

use crate::activations::shape::{Life, PassShape, Regions, Rows};
use plimsoll_arch::{LayerSpec, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_memory::Buf;

/// What the router reads, and what experts read.
const INPUT: Rows = Rows { life: Life::Cheap, width: hidden };
/// What each of the two parts gives, before its norm.
const OUT: Rows = Rows { life: Life::Always, width: hidden };

fn hidden(of: &PassShape<'_>, layer: u32) -> u32 {
    if is_joined(of.spec, &of.spec.layer(layer)) { of.spec.hidden } else { 0 }
}

/// Returns whether a layer has experts next to a dense part.
pub(crate) fn is_joined(spec: &ModelSpec, layer: &LayerSpec) -> bool {
    spec.architecture().joins_dense && layer.experts().is_some()
}

/// Handles to the regions of a pass through layers with experts next to a dense part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedRegions<'p> {
    routed: Buf<'p>,
    input: Buf<'p>,
    dense_out: Buf<'p>,
    experts_out: Buf<'p>,
    weights: Buf<'p>,
    pairs: Buf<'p>,
    d_dense: Option<Buf<'p>>,
}

/// Buffers of a layer with experts next to a dense part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedBufs<'p> {
    /// [M, h] e: what the router reads.
    pub(super) routed: Buf<'p>,
    /// [M, h] e: what the experts read.
    pub(super) input: Buf<'p>,
    /// [M, h] f32: what the dense part gives, before its norm.
    pub(super) dense_out: Buf<'p>,
    /// [M, h] f32: what the experts give, before their norm.
    pub(super) experts_out: Buf<'p>,
    /// [M, k] f32: the weights of a row's experts times the experts' numbers.
    pub(super) weights: Buf<'p>,
    /// [P] f32: a number of each pair, in either order.
    pub(super) pairs: Buf<'p>,
    /// [M, h] e: the gradient of `dense_out`.
    pub(super) d_dense: Option<Buf<'p>>,
}

/// Adds the regions, if a layer has such experts: k of each row, whose routes are in `slots` slots.
///
/// Errors: `size-overflow`.
pub(super) fn add_regions(to: &mut Regions<'_>, (slots, k): (usize, usize)) -> Result<()> {
    let (PassShape { spec, mode, limits }, weights) = (to.of, to.weights);
    if !spec.each_layer().any(|layer| is_joined(spec, &layer)) {
        return Ok(());
    }
    to.rows("joined.routed", INPUT, weights)?;
    to.rows("joined.input", INPUT, weights)?;
    to.rows("joined.dense_out", OUT, DType::F32)?;
    to.rows("joined.experts_out", OUT, DType::F32)?;
    to.add(Life::Kept, "joined.weights", &[slots, limits.rows, k], DType::F32)?;
    to.add(Life::Layer, "joined.pairs", &[limits.rows * k], DType::F32)?;
    if mode.recompute().is_some() {
        to.add(Life::Layer, "joined.d_dense", &[limits.rows, spec.hidden as usize], weights)?;
    }
    Ok(())
}

impl<'p> JoinedRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(super) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<JoinedRegions<'p>> {
        let buf = |what: &str| get(&format!("joined.{what}"));
        Some(JoinedRegions {
            routed: buf("routed")?,
            input: buf("input")?,
            dense_out: buf("dense_out")?,
            experts_out: buf("experts_out")?,
            weights: buf("weights")?,
            pairs: buf("pairs")?,
            d_dense: buf("d_dense"),
        })
    }

    /// Returns the first `m` rows of the buffers of a layer, whose routes are in a slot and have k experts a row.
    pub(super) fn layer(
        &self,
        of: &PassShape<'_>,
        (layer, slot, k): (u32, usize, usize),
        m: usize,
    ) -> JoinedBufs<'p> {
        let [routed, input] = [self.routed, self.input].map(|buf| INPUT.layer(of, buf, layer, m));
        let [dense_out, experts_out] =
            [self.dense_out, self.experts_out].map(|buf| OUT.layer(of, buf, layer, m));
        JoinedBufs {
            routed,
            input,
            dense_out,
            experts_out,
            weights: self.weights.slice(slot * of.limits.rows * k, m * k),
            pairs: self.pairs.slice(0, m * k),
            d_dense: self.d_dense.map(|buf| buf.slice(0, m * of.spec.hidden as usize)),
        }
    }
}
