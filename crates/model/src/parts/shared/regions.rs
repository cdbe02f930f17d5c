//! The regions of shared experts in a pass, and the handles to them.
//!
//! Legend: M rows, f feed-forward width of a shared expert, slots: layers that keep theirs.

use crate::activations::shape::{Life, PassShape, Regions, Rows};
use plimsoll_base::{DType, Result};
use plimsoll_memory::Buf;

const GATE_UP: Rows = Rows { life: Life::Kept, width: |of, layer| 2 * width(of, layer) };
const PRODUCT: Rows = Rows { life: Life::Layer, width };
const LOGITS: Rows = Rows { life: Life::Kept, width: |of, layer| u32::from(is_gated(of, layer)) };

/// Returns f, 0 in a layer without a shared expert.
fn width(of: &PassShape<'_>, layer: u32) -> u32 {
    of.spec.layer(layer).experts().and_then(|experts| experts.shared).unwrap_or(0)
}

/// Returns whether what the shared expert of a layer gives is multiplied by a sigmoid.
fn is_gated(of: &PassShape<'_>, layer: u32) -> bool {
    of.spec.layer(layer).experts().is_some_and(|experts| experts.shared.is_some() && experts.gates_shared)
}

/// Handles to the regions of a pass through layers with shared experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedRegions<'p> {
    /// [slots, M] f32, if there are gates.
    logits: Option<Buf<'p>>,
    /// [slots, M, 2f] e.
    gate_up: Buf<'p>,
    /// [M, f] e.
    product: Buf<'p>,
    /// [M] e, in passes with gradients.
    d_logits: Option<Buf<'p>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBufs<'p> {
    pub(super) width: usize,
    pub(super) logits: Option<Buf<'p>>,
    pub(super) gate_up: Buf<'p>,
    pub(crate) product: Buf<'p>,
    pub(super) d_logits: Option<Buf<'p>>,
}

/// Adds the regions.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    let (PassShape { spec, mode, limits }, weights) = (to.of, to.weights);
    to.rows("shared.logits", LOGITS, DType::F32)?;
    to.rows("shared.gate_up", GATE_UP, weights)?;
    to.rows("shared.product", PRODUCT, weights)?;
    let has_any = (0..spec.layers.len()).any(|layer| is_gated(&to.of, layer));
    if has_any && mode.recompute().is_some() {
        to.add(Life::Layer, "shared.d_logits", &[limits.rows], weights)?;
    }
    Ok(())
}

impl<'p> SharedRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<SharedRegions<'p>> {
        let buf = |what: &str| get(&format!("shared.{what}"));
        Some(SharedRegions {
            logits: buf("logits"),
            gate_up: buf("gate_up")?,
            product: buf("product")?,
            d_logits: buf("d_logits"),
        })
    }

    /// Returns the first `m` rows of the buffers of a layer; none if it has no shared expert.
    pub(crate) fn layer(&self, of: &PassShape<'_>, layer: u32, m: usize) -> Option<SharedBufs<'p>> {
        let width = width(of, layer) as usize;
        (width > 0).then(|| SharedBufs {
            width,
            logits: self.logits.map(|logits| LOGITS.layer(of, logits, layer, m)),
            gate_up: GATE_UP.layer(of, self.gate_up, layer, m),
            product: PRODUCT.layer(of, self.product, layer, m),
            d_logits: self.d_logits.map(|buf| buf.slice(0, m)),
        })
    }
}
