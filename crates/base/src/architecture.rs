//! The architectures that are built, a row each: how files spell them and what their decoders have.

crate::names! {
    /// Which Hugging Face architecture a model is written as; the name is its `model_type`.
    Family {
        /// SmolLM2 included.
        Llama = "llama",
        /// Qwen2 and Qwen2.5.
        Qwen2 = "qwen2",
        /// Qwen3, dense.
        Qwen3 = "qwen3",
        /// Mistral without a sliding window.
        Mistral = "mistral",
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Architecture {
    /// The family, whose name is `model_type` in `config.json`.
    pub family: Family,
    /// `architectures` of a causal language model.
    pub causal_lm: &'static str,
    /// `architectures` of a model for sequence classification, which is a reward model.
    pub classifier: &'static str,
    /// `general.architecture` of a GGUF file; none where its files bear the name of another family.
    pub gguf: Option<&'static str>,
    /// True if a GGUF file holds the rows of q and k in rotated pairs.
    pub gguf_rope_pairs: bool,
    /// True if q, k and v have a bias.
    pub qkv_bias: bool,
    /// True if each head of q and k is normalised before rope.
    pub qk_norm: bool,
    /// True if `attention_bias` in `config.json` adds a bias to q, k, v and o, which is refused; false if it is not read.
    pub reads_attention_bias: bool,
    /// True if `sliding_window` in `config.json` is on whenever it is set; false if `use_sliding_window` turns it on.
    pub window_is_on: bool,
    /// Keys of its own that a written `config.json` gets; no value is null.
    pub config_keys: &'static [(&'static str, Option<bool>)],
}

const LLAMA: Architecture = Architecture {
    family: Family::Llama,
    causal_lm: "LlamaForCausalLM",
    classifier: "LlamaForSequenceClassification",
    gguf: Some("llama"),
    gguf_rope_pairs: true,
    qkv_bias: false,
    qk_norm: false,
    reads_attention_bias: true,
    window_is_on: false,
    config_keys: &[("attention_bias", Some(false)), ("mlp_bias", Some(false))],
};

/// The table, in the order of `Family`; what a row does not name it shares with Llama.
pub const ARCHITECTURES: [Architecture; Family::ALL.len()] = [
    LLAMA,
    Architecture {
        family: Family::Qwen2,
        causal_lm: "Qwen2ForCausalLM",
        classifier: "Qwen2ForSequenceClassification",
        gguf: Some("qwen2"),
        gguf_rope_pairs: false,
        qkv_bias: true,
        reads_attention_bias: false,
        config_keys: &[("use_sliding_window", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Qwen3,
        causal_lm: "Qwen3ForCausalLM",
        classifier: "Qwen3ForSequenceClassification",
        gguf: Some("qwen3"),
        gguf_rope_pairs: false,
        qk_norm: true,
        config_keys: &[("attention_bias", Some(false)), ("use_sliding_window", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Mistral,
        causal_lm: "MistralForCausalLM",
        classifier: "MistralForSequenceClassification",
        gguf: None,
        gguf_rope_pairs: false,
        window_is_on: true,
        config_keys: &[("sliding_window", None)],
        ..LLAMA
    },
];

impl Family {
    /// Returns its row of the table.
    pub const fn architecture(self) -> &'static Architecture {
        &ARCHITECTURES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_families_and_no_name_is_given_twice() {
        for (row, family) in ARCHITECTURES.iter().zip(Family::ALL) {
            assert_eq!((row.family, family.architecture()), (family, row));
            let names =
                |row: &Architecture| [row.causal_lm, row.classifier, row.gguf.unwrap_or(row.causal_lm)];
            for other in ARCHITECTURES.iter().filter(|other| other.family != family) {
                assert!(names(row).iter().all(|name| !names(other).contains(name)), "{family}");
            }
        }
    }
}
