//! Defaults of `config.json`: those of transformers' configuration classes, read by `bench/defaults.py`.

use plimsoll_arch::Architecture;
use serde_json::{Map, Value};
use std::sync::OnceLock;

/// Keys that must be present although transformers has a default: a file without them is damaged. Only the
/// `text_config` of a model of text and images may omit them.
pub(crate) const WRITTEN: [&str; 11] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
];

/// Keys with a meaningful null: no window, no cap, or a value that follows from other keys.
pub(super) const NULL_IS_A_VALUE: [&str; 6] = [
    "num_key_value_heads",
    "head_dim",
    "q_lora_rank",
    "sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
];

/// Returns the defaults of a family by key.
pub(crate) fn of(architecture: &Architecture) -> &'static Map<String, Value> {
    named(architecture.family.name())
}

/// Returns the defaults of a `model_type` by key: a family's, or the one that it has in a model of text and images.
pub(crate) fn named(model_type: &str) -> &'static Map<String, Value> {
    static TABLE: OnceLock<Map<String, Value>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        serde_json::from_str(include_str!("defaults.json")).expect("the table is written by a script")
    });
    table[model_type].as_object().expect("each family of the table is an object")
}

/// Returns the defaults of an object that has none.
pub(super) fn none() -> &'static Map<String, Value> {
    static NONE: OnceLock<Map<String, Value>> = OnceLock::new();
    NONE.get_or_init(Map::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::{ARCHITECTURES, Windows};

    #[test]
    fn every_family_has_a_row_and_every_row_a_family() {
        for row in &ARCHITECTURES {
            let defaults = of(row);
            for key in ["hidden_size", "rms_norm_eps", "rope_theta", "tie_word_embeddings"] {
                assert!(defaults.contains_key(key), "{}: {key}", row.family);
            }
            let pattern = defaults.get("sliding_window_pattern").and_then(Value::as_u64);
            let of_row = match row.windows {
                Windows::AllButEvery { n, .. } => Some(u64::from(n)),
                _ => None,
            };
            assert_eq!(pattern, of_row, "{}", row.family);
        }
        let table: Map<String, Value> = serde_json::from_str(include_str!("defaults.json")).unwrap();
        let named_apart = ARCHITECTURES.iter().filter_map(|row| row.wrapped_name);
        assert_eq!(table.len(), ARCHITECTURES.len() + named_apart.clone().count());
        assert!(named_apart.into_iter().all(|name| table.contains_key(name)));
    }
}
