//! Experts: their number, how many compute a row, and the layers that have them.

use super::keys::{Config, EXPERT_WIDTH, FFN_MAX, POSITIONS_MAX, brief, out_of_range, short, unsupported};
use super::routed::{self, check_groups};
use super::{biased, joined};
use crate::safetensors_dir::TENSORS_MAX;
use plimsoll_arch::expected_tensors;
use plimsoll_arch::{
    Architecture, EXPERTS_CHOSEN_MAX, EXPERTS_MAX, ExpertsSpec, FileShape, LayerSet, LayersWith,
};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value, json};

/// Names of the number of experts.
pub(super) const COUNT: [&str; 2] = ["num_experts", "num_local_experts"];
/// The width of the shared expert.
pub(super) const SHARED: &str = "shared_expert_intermediate_size";
/// Tensors in a run's optimizer file per tensor of the model: m, v and a master copy.
const OPTIMIZER_SETS: usize = 3;
/// Widths are multiples of this: an expert's matrices are contiguous, and each begins a panel.
const PANEL: u32 = 16;

impl Config<'_> {
    /// Reads the experts of a decoder of `layers` layers.
    pub(super) fn experts(
        &self,
        architecture: &Architecture,
        layers: u32,
    ) -> Result<Option<LayersWith<ExpertsSpec>>> {
        if !architecture.has_experts {
            return Ok(None);
        }
        if architecture.has_routed_keys {
            return self.routed_experts(architecture, layers).map(Some);
        }
        if architecture.joins_dense {
            return self.joined_experts(layers);
        }
        let count = self.count_of_experts()?;
        if architecture.has_biased_experts {
            return self.biased_experts(count, layers).map(Some);
        }
        let chosen = self.size("num_experts_per_tok", EXPERTS_MAX as u64)?;
        let (is_alone, has_shared) = (architecture.has_experts_alone, architecture.has_shared_expert);
        let each = ExpertsSpec {
            count,
            chosen,
            ffn: self.size(EXPERT_WIDTH, FFN_MAX)?,
            normalizes: is_alone || self.flag("norm_topk_prob")?,
            sigmoid: None,
            balance: self.balance()?,
            shared: has_shared.then(|| self.size(SHARED, FFN_MAX)).transpose()?,
            gates_shared: true,
            // As published; a file may have the tensors of each expert apart.
            is_fused: is_alone,
            biased: false,
        };
        if is_alone {
            self.refuse_dense_layers(&each)?;
            return Ok(Some(LayersWith { layers: LayerSet::of(layers, |_| true), each }));
        }
        let step = self.size("decoder_sparse_step", POSITIONS_MAX)?;
        let dense = self.dense_layers(layers)?;
        let layers = LayerSet::of(layers, |layer| (layer + 1) % step == 0 && !dense.contains(layer));
        Ok(Some(LayersWith { layers, each }))
    }

    /// Returns the width of layers without experts.
    pub(super) fn dense_width(&self, architecture: &Architecture) -> Result<u32> {
        let is_named_apart = architecture.has_experts_alone && !architecture.has_biased_experts;
        let key = if is_named_apart { EXPERT_WIDTH } else { "intermediate_size" };
        self.size(key, FFN_MAX)
    }

    /// Refuses keys that the family does not have, where they say something else.
    pub(super) fn refuse_dense_layers(&self, each: &ExpertsSpec) -> Result<()> {
        debug_assert!(each.normalizes, "such a family always divides weights by their sum");
        for (key, built) in [
            ("mlp_only_layers", json!([])),
            ("decoder_sparse_step", json!(1)),
            ("norm_topk_prob", json!(true)),
        ] {
            if let Some(value) = self.present(key).filter(|value| **value != built) {
                return Err(unsupported(self.file, key, value, &brief(&built)));
            }
        }
        Ok(())
    }

    /// Reads the experts per layer: `num_local_experts` in transformers 5, else `num_experts`.
    fn count_of_experts(&self) -> Result<u32> {
        let [before, now] = COUNT.map(|key| self.present(key));
        if let (Some(before), Some(now)) = (before, now)
            && before != now
        {
            let what = format!("{} = {}, and {} = {}", COUNT[0], brief(before), COUNT[1], brief(now));
            return Err(self.invalid(what));
        }
        let key = if before.is_none() && now.is_some() { COUNT[1] } else { COUNT[0] };
        self.size(key, EXPERTS_MAX as u64)
    }

    /// Returns the layers without experts, regardless of the step.
    fn dense_layers(&self, layers: u32) -> Result<LayerSet> {
        let Some(value) = self.present("mlp_only_layers") else { return Ok(LayerSet::default()) };
        let below = |layer: &Value| layer.as_u64().filter(|&n| n < u64::from(layers)).map(|n| n as u32);
        let of_list = |list: &Vec<Value>| list.iter().map(below).collect::<Option<LayerSet>>();
        value.as_array().and_then(of_list).ok_or_else(|| {
            self.invalid(format!(
                "mlp_only_layers = {}, expected layers below num_hidden_layers = {layers}",
                brief(value)
            ))
        })
    }

    /// Reads the coefficient of the loss that keeps experts equally loaded.
    pub(super) fn balance(&self) -> Result<f32> {
        let value = self.present("router_aux_loss_coef").unwrap_or(&Value::Null);
        let number = value.as_f64().map(|n| n as f32).filter(|n| n.is_finite() && *n >= 0.0);
        number.ok_or_else(|| {
            self.invalid(format!(
                "router_aux_loss_coef = {}, expected a number that is not negative",
                brief(value)
            ))
        })
    }
}

/// Requires the assumptions of the experts' arithmetic, for a shape from any file.
pub(super) fn check(shape: &FileShape, file: &str) -> Result<()> {
    let Some(LayersWith { layers, each: experts }) = shape.experts else { return Ok(()) };
    let row = shape.architecture();
    let chosen = if row.joins_dense { joined::CHOSEN } else { "num_experts_per_tok" };
    for (key, value, limit) in [
        ("num_experts", experts.count, EXPERTS_MAX as u64),
        (chosen, experts.chosen, u64::from(experts.count).min(EXPERTS_CHOSEN_MAX as u64)),
        ("moe_intermediate_size", experts.ffn, FFN_MAX),
        ("num_experts_per_tok * moe_intermediate_size", experts.chosen.saturating_mul(experts.ffn), FFN_MAX),
    ] {
        if value == 0 || u64::from(value) > limit {
            return Err(out_of_range(file, key, value.into(), limit));
        }
    }
    check_groups(&experts, file)?;
    if let Some(width) = experts.shared.filter(|width| *width == 0 || u64::from(*width) > FFN_MAX) {
        return Err(out_of_range(file, SHARED, width.into(), FFN_MAX));
    }
    for (key, value) in [("moe_intermediate_size", experts.ffn), ("hidden_size", shape.hidden)] {
        if !value.is_multiple_of(PANEL) {
            return Err(unsupported(file, key, &json!(value), "a multiple of 16 where there are experts"));
        }
    }
    // Their layer adds its product to the residual stream unscaled.
    let residual = json!(short(shape.multipliers.residual));
    for (is_built, key, value, built) in [
        (
            row.norms.after.is_none() || row.joins_dense,
            "model_type",
            json!(shape.family.name()),
            "a family with norms before layers alone where there are experts",
        ),
        (shape.multipliers.residual == 1.0, "residual_multiplier", residual, "1 where there are experts"),
        (!shape.mlp_bias, "mlp_bias", json!(true), "false where there are experts"),
    ] {
        if !is_built {
            return Err(unsupported(file, key, &value, built));
        }
    }
    if layers.is_empty() {
        let message = format!("{file}: decoder_sparse_step and mlp_only_layers leave no layer with experts");
        return Err(Error::new("model-config-invalid", message).hint(
            "such a model is a dense one: give it the model_type qwen3, or fetch its config.json again",
        ));
    }
    check_tensors(shape, (layers.len() as usize, experts.count as usize), file)
}

/// Requires that a run can read the states it saves: each expert is three tensors, and a file has a limit on them.
fn check_tensors(shape: &FileShape, (layers, count): (usize, usize), file: &str) -> Result<()> {
    let Some(LayersWith { layers: set, each }) = shape.experts.filter(|experts| !experts.each.is_fused)
    else {
        return Ok(());
    };
    let one = LayersWith { layers: set, each: ExpertsSpec { count: 1, chosen: 1, ..each } };
    let others = expected_tensors(&FileShape { experts: Some(one), ..*shape }.spec()).len() - 3 * layers;
    let room = (TENSORS_MAX / OPTIMIZER_SETS).saturating_sub(others);
    let count_max = room / (3 * layers);
    if count <= count_max {
        return Ok(());
    }
    let tensors = others + 3 * layers * count;
    let error = unsupported(
        file,
        "num_experts",
        &json!(count),
        &format!("at most {count_max} in each of {layers} layers"),
    );
    Err(error.fact(format!(
        "the model has {tensors} tensors; a run saves {OPTIMIZER_SETS} sets of states of them in one file, which has {TENSORS_MAX} at most"
    )))
}

/// Writes the keys that `experts` reads.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let Some(LayersWith { layers, each: experts }) = shape.experts else { return };
    if shape.architecture().has_routed_keys {
        return routed::write(shape, map);
    }
    if experts.biased {
        return biased::write(shape, map);
    }
    if shape.architecture().joins_dense {
        return joined::write(shape, map);
    }
    let dense: Vec<u32> = (0..shape.layers).filter(|&layer| !layers.contains(layer)).collect();
    for (key, value) in [
        ("num_experts", experts.count.into()),
        ("num_experts_per_tok", experts.chosen.into()),
        ("moe_intermediate_size", experts.ffn.into()),
        ("router_aux_loss_coef", short(experts.balance).into()),
    ] {
        map.insert(key.into(), value);
    }
    if let Some(width) = experts.shared {
        map.insert(SHARED.into(), width.into());
    }
    if shape.architecture().has_experts_alone {
        map.remove("intermediate_size");
        return;
    }
    for (key, value) in [
        ("norm_topk_prob", experts.normalizes.into()),
        ("decoder_sparse_step", 1.into()),
        ("mlp_only_layers", dense.into()),
    ] {
        map.insert(key.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::{Family, ModelSpec, Multipliers};

    fn large() -> FileShape {
        ModelSpec::preset("qwen3-30b-a3b").expect("a preset").file_shape()
    }

    #[test]
    fn what_layers_of_experts_do_not_compute_is_refused() {
        let residual = Multipliers { residual: 0.5, ..large().multipliers };
        for (shape, words) in [
            (FileShape { family: Family::Olmo2, ..large() }, "model_type = \"olmo2\""),
            (FileShape { multipliers: residual, ..large() }, "residual_multiplier = 0.5"),
            (FileShape { mlp_bias: true, ..large() }, "mlp_bias = true"),
        ] {
            let error = check(&shape, "config.json").unwrap_err();
            assert_eq!(error.slug, "model-unsupported", "{words}: {error}");
            assert!(error.message.contains(words), "{words}: {error}");
            // None of it matters to a dense model.
            assert!(check(&FileShape { experts: None, ..shape }, "config.json").is_ok(), "{words}");
        }
    }

    #[test]
    fn states_of_all_experts_fit_in_a_file() {
        let with = |count: u32, layers: u32| {
            let each = ExpertsSpec { count, ..large().experts.unwrap().each };
            let experts = LayersWith { layers: LayerSet::of(layers, |_| true), each };
            FileShape { layers, experts: Some(experts), ..large() }
        };
        assert_eq!(check(&large(), "config.json").map_err(|error| error.to_string()), Ok(()));
        // The largest that is published has 512 experts in each of 48 layers.
        assert_eq!(check(&with(512, 48), "config.json").map_err(|error| error.to_string()), Ok(()));
        let mut fused = with(512, 256);
        fused.experts.as_mut().expect("experts").each.is_fused = true;
        assert_eq!(check(&fused, "config.json").map_err(|error| error.to_string()), Ok(()));
        let error = check(&with(512, 256), "config.json").unwrap_err();
        assert_eq!(error.slug, "model-unsupported");
        let text = error.to_string();
        assert!(text.contains("num_experts = 512, built is at most 110 in each of 256 layers"), "{text}");
        let tensors = expected_tensors(&with(512, 256).spec()).len();
        assert!(text.contains(&format!("{tensors} tensors")) && text.contains("262144 at most"), "{text}");
        // The limit is the largest number whose states a file has room for.
        for (count, fits) in [(110, true), (111, false)] {
            let shape = with(count, 256);
            assert_eq!(check(&shape, "config.json").is_ok(), fits, "{count}");
            assert_eq!(
                OPTIMIZER_SETS * expected_tensors(&shape.spec()).len() <= TENSORS_MAX,
                fits,
                "{count}"
            );
        }
    }
}
