//! Experts by DeepSeek's keys, which GLM's files have too: their routers score by sigmoids, or by a softmax in V2.

use super::keys::{Config, FFN_MAX, LAYERS_MAX, brief, out_of_range, short, unsupported};
use plimsoll_arch::{
    Architecture, EXPERT_GROUPS_MAX, EXPERTS_MAX, ExpertsSpec, Family, FileShape, LayerSet, LayersWith,
    SigmoidSpec,
};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value, json};

/// The key of the number of experts.
pub(super) const ROUTED: &str = "n_routed_experts";
/// The key of the number of experts that one shared expert is as wide as.
const SHARED: &str = "n_shared_experts";
/// The key of the number of dense layers, which come first.
const DENSE: &str = "first_k_dense_replace";

/// The key of the kind of each layer, instead of the number of dense ones.
const KINDS: &str = "mlp_layer_types";
const DENSE_KIND: &str = "dense";
const SPARSE_KIND: &str = "sparse";

impl Config<'_> {
    /// Reads the experts of a decoder of `layers` layers.
    pub(super) fn routed_experts(
        &self,
        architecture: &Architecture,
        layers: u32,
    ) -> Result<LayersWith<ExpertsSpec>> {
        let is_sigmoid = architecture.has_sigmoid_router;
        let built: &[(&str, Value)] = if is_sigmoid {
            &[("scoring_func", json!("sigmoid")), ("topk_method", json!("noaux_tc"))]
        } else {
            // The reference does not divide, whatever a file says; DeepSeek's own code does if it is asked to.
            &[
                ("scoring_func", json!("softmax")),
                ("topk_method", json!("greedy")),
                ("norm_topk_prob", json!(false)),
            ]
        };
        for (key, built) in built {
            if let Some(value) = self.present(key).filter(|value| *value != built) {
                return Err(unsupported(self.file, key, value, &brief(built)));
            }
        }
        let factor = self.required_positive("routed_scaling_factor")?;
        if !is_sigmoid && factor != 1.0 {
            return Err(unsupported(self.file, "routed_scaling_factor", &json!(factor), "1"));
        }
        let ffn = self.size("moe_intermediate_size", FFN_MAX)?;
        let shared = self.size(SHARED, EXPERTS_MAX as u64)?;
        let sigmoid = || -> Result<SigmoidSpec> {
            Ok(SigmoidSpec {
                groups: self.size("n_group", EXPERTS_MAX as u64)?,
                groups_chosen: self.size("topk_group", EXPERTS_MAX as u64)?,
                factor: factor as f32,
            })
        };
        let each = ExpertsSpec {
            count: self.size(ROUTED, EXPERTS_MAX as u64)?,
            chosen: self.size("num_experts_per_tok", EXPERTS_MAX as u64)?,
            ffn,
            normalizes: is_sigmoid && self.flag("norm_topk_prob")?,
            sigmoid: is_sigmoid.then(sigmoid).transpose()?,
            // Files have no coefficient: in training the corrections keep experts equally loaded.
            balance: 0.0,
            shared: Some(shared.saturating_mul(ffn)),
            gates_shared: false,
            is_fused: false,
            biased: false,
        };
        check_groups(&each, self.file)?;
        let dense = self.dense_first(layers)?;
        Ok(LayersWith { layers: LayerSet::onwards(dense, layers), each })
    }

    /// Reads how many layers from the first on are dense; some have experts.
    fn dense_first(&self, layers: u32) -> Result<u32> {
        if let Some(kinds) = self.present(KINDS).and_then(Value::as_array) {
            let dense = kinds.iter().take_while(|kind| **kind == DENSE_KIND).count();
            let is_built = kinds.len() == layers as usize
                && dense < kinds.len()
                && kinds[dense..].iter().all(|kind| *kind == SPARSE_KIND);
            return if is_built {
                Ok(dense as u32)
            } else {
                let built = "dense layers first, then sparse ones, one entry a layer";
                Err(unsupported(self.file, KINDS, &Value::from(kinds.clone()), built))
            };
        }
        let value = self.present(DENSE).unwrap_or(&Value::Null);
        match value.as_u64() {
            Some(dense) if dense < u64::from(layers).min(LAYERS_MAX) => Ok(dense as u32),
            _ => Err(self.invalid(format!(
                "{DENSE} = {}, expected a number below num_hidden_layers = {layers}",
                brief(value)
            ))),
        }
    }
}

/// Requires groups of experts that a router can choose in.
pub(super) fn check_groups(experts: &ExpertsSpec, file: &str) -> Result<()> {
    let Some(SigmoidSpec { groups, groups_chosen, .. }) = experts.sigmoid else { return Ok(()) };
    let size = experts.count / groups.max(1);
    for (key, value, limit) in [
        ("n_group", groups, u64::from(experts.count / 2).min(EXPERT_GROUPS_MAX as u64)),
        ("topk_group", groups_chosen, groups.into()),
        ("num_experts_per_tok", experts.chosen, u64::from(groups_chosen) * u64::from(size)),
    ] {
        if value == 0 || u64::from(value) > limit {
            return Err(out_of_range(file, key, value.into(), limit));
        }
    }
    if !experts.count.is_multiple_of(groups) {
        let message =
            format!("{file}: n_routed_experts = {} is not a multiple of n_group = {groups}", experts.count);
        return Err(Error::new("model-config-invalid", message).hint("fetch the model's config.json again"));
    }
    Ok(())
}

/// Writes the keys that `routed_experts` reads, and that no layers predict further tokens: they are not written.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let Some(LayersWith { layers, each: experts }) = shape.experts else { return };
    let dense = layers.iter().next().unwrap_or(shape.layers);
    for (key, value) in [
        (ROUTED, experts.count.into()),
        (SHARED, (experts.shared.unwrap_or(0) / experts.ffn).into()),
        ("num_experts_per_tok", experts.chosen.into()),
        ("moe_intermediate_size", experts.ffn.into()),
        ("norm_topk_prob", experts.normalizes.into()),
        (DENSE, dense.into()),
    ] {
        map.insert(key.into(), value);
    }
    let of_router: &[(&str, Value)] = match experts.sigmoid {
        Some(SigmoidSpec { groups, groups_chosen, factor }) => &[
            ("n_group", groups.into()),
            ("topk_group", groups_chosen.into()),
            ("routed_scaling_factor", short(factor).into()),
            ("num_nextn_predict_layers", 0.into()),
        ],
        None => &[("topk_method", "greedy".into()), ("routed_scaling_factor", 1.0.into())],
    };
    map.extend(of_router.iter().map(|(key, value)| (key.to_string(), value.clone())));
    if shape.family == Family::Glm4MoeLite {
        // Its class reads no number.
        let kind = |layer| if layer < dense { DENSE_KIND } else { SPARSE_KIND };
        map.shift_remove(DENSE);
        map.insert(KINDS.into(), (0..shape.layers).map(kind).collect::<Vec<_>>().into());
    }
}
