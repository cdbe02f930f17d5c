//! Attention whose heads have output gates: its regions in a pass, and the handles to them.

use plimsoll_arch::ModelSpec;
use plimsoll_base::{DType, Result};
use plimsoll_memory::{Buf, Turn};

/// Handles to the regions of a pass through layers with gates, which all of them share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateRegions<'p> {
    /// [M, (a + 2k) d] e: q, k and v without the gates.
    pub(crate) qkv: Buf<'p>,
    /// [M, a d] e: heads times their gates.
    pub(crate) out: Buf<'p>,
    /// [M, (a + 2k) d] e: the gradient of `qkv`.
    pub(crate) d_qkv: Option<Buf<'p>>,
}

/// Adds the regions, for passes of `m` rows.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(
    spec: &ModelSpec,
    weights: DType,
    m: usize,
    has_gradients: bool,
    add: &mut impl FnMut(Turn, &str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    if !spec.attention.gated {
        return Ok(());
    }
    let (turn, qkv) = (if has_gradients { Turn::Layers } else { Turn::Whole }, width(spec));
    add(turn, "gates.qkv", &[m, qkv], weights)?;
    add(turn, "gates.out", &[m, spec.q_width() as usize], weights)?;
    if has_gradients { add(turn, "gates.d_qkv", &[m, qkv], weights) } else { Ok(()) }
}

/// Elements of q, k and v of a row.
fn width(spec: &ModelSpec) -> usize {
    (spec.q_width() + 2 * spec.kv_width()) as usize
}

impl<'p> GateRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<GateRegions<'p>> {
        let (qkv, out) = (get("gates.qkv")?, get("gates.out")?);
        Some(GateRegions { qkv, out, d_qkv: get("gates.d_qkv") })
    }

    /// The first `m` rows.
    pub(crate) fn rows(&self, spec: &ModelSpec, m: usize) -> GateRegions<'p> {
        GateRegions {
            qkv: self.qkv.slice(0, m * width(spec)),
            out: self.out.slice(0, m * spec.q_width() as usize),
            d_qkv: self.d_qkv.map(|d_qkv| d_qkv.slice(0, m * width(spec))),
        }
    }
}
