//! Experts next to the dense part of each layer, as in Gemma 4.

use super::keys::{Config, EXPERT_WIDTH, FFN_MAX};
use plimsoll_arch::{Architecture, EXPERTS_MAX, ExpertsSpec, FileShape, LayerSet, LayersWith};
use plimsoll_base::Result;
use serde_json::{Map, Value};

/// The key that says whether layers have experts.
const ENABLED: &str = "enable_moe_block";
/// The key of the number of experts that compute a row.
pub(super) const CHOSEN: &str = "top_k_experts";

/// The key of the number of experts.
pub(super) const COUNT: &str = "num_experts";

impl Config<'_> {
    /// Returns whether layers have experts, in a family where a file says so.
    pub(super) fn asks_for_experts(&self, architecture: &Architecture) -> Result<bool> {
        if architecture.joins_dense { self.flag(ENABLED) } else { Ok(true) }
    }

    /// Reads the experts of a decoder of `layers` layers, if it has them.
    pub(super) fn joined_experts(&self, layers: u32) -> Result<Option<LayersWith<ExpertsSpec>>> {
        if !self.flag(ENABLED)? {
            return Ok(None);
        }
        let each = ExpertsSpec {
            count: self.size(COUNT, EXPERTS_MAX as u64)?,
            chosen: self.size(CHOSEN, EXPERTS_MAX as u64)?,
            ffn: self.size(EXPERT_WIDTH, FFN_MAX)?,
            normalizes: true,
            sigmoid: None,
            // Files have no coefficient.
            balance: 0.0,
            shared: Some(self.size("intermediate_size", FFN_MAX)?),
            gates_shared: false,
            is_fused: true,
            biased: false,
        };
        Ok(Some(LayersWith { layers: LayerSet::of(layers, |_| true), each }))
    }
}

/// Writes the keys that `joined_experts` reads.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let Some(LayersWith { each, .. }) = shape.experts else { return };
    for (key, value) in [
        (ENABLED, true.into()),
        (COUNT, each.count.into()),
        (CHOSEN, each.chosen.into()),
        (EXPERT_WIDTH, each.ffn.into()),
    ] {
        map.insert(key.into(), value);
    }
}
