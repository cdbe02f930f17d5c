//! Layers with linear attention, and their heads.

use super::keys::{Config, FULL, HEADS_MAX, LAYERS_MAX, WIDTH_MAX, brief, out_of_range, unsupported};
use plimsoll_arch::{
    Architecture, CONV_TAPS, DELTA_HEAD_MAX, DELTA_HEAD_STEP, DeltaSpec, FileShape, LayerSet, LayersWith,
};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value, json};

const LINEAR: &str = "linear_attention";

impl Config<'_> {
    /// Reads the linear attention of a decoder of `layers` layers.
    pub(super) fn delta(
        &self,
        architecture: &Architecture,
        layers: u32,
    ) -> Result<Option<LayersWith<DeltaSpec>>> {
        if !architecture.has_delta {
            return Ok(None);
        }
        for (key, built) in [
            ("linear_conv_kernel_dim", &[json!(CONV_TAPS)][..]),
            ("attn_output_gate", &[json!(true)]),
            ("output_gate_type", &[json!("swish"), json!("silu")]),
        ] {
            if let Some(value) = self.present(key).filter(|value| !built.contains(value)) {
                return Err(unsupported(self.file, key, value, &brief(&built[0])));
            }
        }
        let each = DeltaSpec {
            key_heads: self.size("linear_num_key_heads", HEADS_MAX)?,
            value_heads: self.size("linear_num_value_heads", HEADS_MAX)?,
            key_dim: self.size("linear_key_head_dim", WIDTH_MAX)?,
            value_dim: self.size("linear_value_head_dim", WIDTH_MAX)?,
        };
        Ok(Some(LayersWith { layers: self.linear_layers(layers)?, each }))
    }

    /// Returns the layers that `layer_types` lists, or all but every n-th one.
    fn linear_layers(&self, layers: u32) -> Result<LayerSet> {
        let Some(value) = self.present("layer_types") else {
            let n = self.size("full_attention_interval", LAYERS_MAX)?;
            return Ok(LayerSet::all_but_every(n, layers));
        };
        let types = value.as_array().map_or(&[][..], Vec::as_slice);
        if types.len() != layers as usize {
            let named = types.len();
            let what = format!("layer_types names {named} layers, num_hidden_layers = {layers}");
            return Err(self.invalid(what));
        }
        match types.iter().find(|kind| **kind != LINEAR && **kind != FULL) {
            Some(kind) => {
                Err(unsupported(self.file, "layer_types", kind, "linear_attention or full_attention"))
            }
            None => Ok(LayerSet::of(layers, |layer| types[layer as usize] == LINEAR)),
        }
    }
}

/// Requires the assumptions of linear attention's arithmetic, for a shape from any file.
pub(super) fn check(shape: &FileShape, file: &str) -> Result<()> {
    let Some(LayersWith { each: delta, .. }) = shape.delta else { return Ok(()) };
    let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
    for (key, value, limit) in [
        ("linear_num_key_heads", u64::from(delta.key_heads), HEADS_MAX),
        ("linear_num_value_heads", u64::from(delta.value_heads), HEADS_MAX),
        ("linear_key_head_dim", u64::from(delta.key_dim), WIDTH_MAX),
        ("linear_value_head_dim", u64::from(delta.value_dim), WIDTH_MAX),
        ("linear_num_key_heads * linear_key_head_dim", product(delta.key_heads, delta.key_dim), WIDTH_MAX),
        (
            "linear_num_value_heads * linear_value_head_dim",
            product(delta.value_heads, delta.value_dim),
            WIDTH_MAX,
        ),
    ] {
        if value == 0 || value > limit {
            return Err(out_of_range(file, key, value, limit));
        }
    }
    for (key, dim) in [("linear_key_head_dim", delta.key_dim), ("linear_value_head_dim", delta.value_dim)] {
        if dim > DELTA_HEAD_MAX || !dim.is_multiple_of(DELTA_HEAD_STEP) {
            let built = format!("a multiple of {DELTA_HEAD_STEP}, at most {DELTA_HEAD_MAX}");
            return Err(unsupported(file, key, &json!(dim), &built));
        }
    }
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let message = format!(
            "{file}: linear_num_value_heads = {} is not a multiple of linear_num_key_heads = {}",
            delta.value_heads, delta.key_heads
        );
        return Err(Error::new("model-config-invalid", message).hint("fetch the model's config.json again"));
    }
    for (kind, layers) in [(LINEAR, shape.delta_layers()), (FULL, shape.layers - shape.delta_layers())] {
        if layers == shape.layers {
            let key = format!("layer_types of all {layers} layers");
            let built = "linear_attention in some layers and full_attention in others";
            return Err(unsupported(file, &key, &json!(kind), built));
        }
    }
    Ok(())
}

/// Writes the keys that `delta` reads.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let Some(LayersWith { layers, each: delta }) = shape.delta else { return };
    let kind = |layer| if layers.contains(layer) { LINEAR } else { FULL };
    for (key, value) in [
        ("layer_types", (0..shape.layers).map(kind).collect::<Vec<_>>().into()),
        ("linear_conv_kernel_dim", CONV_TAPS.into()),
        ("linear_num_key_heads", delta.key_heads.into()),
        ("linear_num_value_heads", delta.value_heads.into()),
        ("linear_key_head_dim", delta.key_dim.into()),
        ("linear_value_head_dim", delta.value_dim.into()),
        // The reference always has the gate; other readers need the key.
        ("attn_output_gate", true.into()),
    ] {
        map.insert(key.into(), value);
    }
}
