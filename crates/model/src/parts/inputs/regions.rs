//! The regions of the layers' own inputs in a pass, and the handles to them.
//!
//! Legend: M rows, L layers, h hidden, w elements of an input.

use crate::activations::shape::{Life, PassShape, Regions, Rows};
use plimsoll_base::{DType, Result};
use plimsoll_memory::Buf;

/// Gates next to inputs.
const GATE_UP: Rows = Rows { life: Life::Always, width: |of, _| 2 * of.spec.inputs.unwrap_or(0) };
/// What is added, before its norm.
const OUT: Rows =
    Rows { life: Life::Always, width: |of, _| if of.spec.inputs.is_some() { of.spec.hidden } else { 0 } };

/// Handles to the regions of a pass through layers with inputs of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRegions<'p> {
    /// [M, L w] f32: the inputs of all layers.
    pub(super) rows: Buf<'p>,
    /// [M, L w] f32: what embeddings give to them.
    pub(super) context: Buf<'p>,
    /// [M, h] e: a layer's residual.
    pub(super) x: Buf<'p>,
    gate: Buf<'p>,
    gate_up: Buf<'p>,
    product: Buf<'p>,
    out: Buf<'p>,
}

/// Buffers of a layer's own input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputBufs<'p> {
    /// [M, L w] f32: the inputs of all layers.
    pub(super) rows: Buf<'p>,
    /// [M, h] e
    pub(super) x: Buf<'p>,
    /// [M, w] e: gates, or their gradient.
    pub(super) gate: Buf<'p>,
    /// [M, 2w] e: gates and inputs, or their gradient.
    pub(super) gate_up: Buf<'p>,
    /// [M, w] e: gated inputs, or their gradient.
    pub(super) product: Buf<'p>,
    /// [M, h] f32: what is added, before its norm.
    pub(super) out: Buf<'p>,
    /// w.
    pub(super) width: usize,
}

/// Adds the regions, if layers have such inputs.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    let (PassShape { spec, limits, .. }, weights) = (to.of, to.weights);
    let Some(width) = spec.inputs.map(|width| width as usize) else { return Ok(()) };
    let (m, all) = (limits.rows, spec.layers.len() as usize * width);
    to.add(Life::Pass, "inputs.rows", &[m, all], DType::F32)?;
    to.add(Life::Layer, "inputs.context", &[m, all], DType::F32)?;
    to.add(Life::Layer, "inputs.x", &[m, spec.hidden as usize], weights)?;
    to.add(Life::Layer, "inputs.gate", &[m, width], weights)?;
    to.add(Life::Layer, "inputs.product", &[m, width], weights)?;
    to.rows("inputs.gate_up", GATE_UP, weights)?;
    to.rows("inputs.out", OUT, DType::F32)
}

impl<'p> InputRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<InputRegions<'p>> {
        let buf = |what: &str| get(&format!("inputs.{what}"));
        Some(InputRegions {
            rows: buf("rows")?,
            context: buf("context")?,
            x: buf("x")?,
            gate: buf("gate")?,
            gate_up: buf("gate_up")?,
            product: buf("product")?,
            out: buf("out")?,
        })
    }

    /// Returns the first `m` rows of a layer's buffers.
    pub(crate) fn layer(&self, of: &PassShape<'_>, layer: u32, m: usize) -> InputBufs<'p> {
        let width = of.spec.inputs.expect("layers with inputs of their own") as usize;
        InputBufs {
            rows: self.rows.slice(0, m * of.spec.layers.len() as usize * width),
            x: self.x.slice(0, m * of.spec.hidden as usize),
            gate: self.gate.slice(0, m * width),
            gate_up: GATE_UP.layer(of, self.gate_up, layer, m),
            product: self.product.slice(0, m * width),
            out: OUT.layer(of, self.out, layer, m),
            width,
        }
    }
}
