//! What people call the models of each family, and what these have beyond a Llama decoder: the rows of `docs/models.md`
//! and of `plimsoll explain models`.

use crate::Family;
use std::fmt::Write;

/// A family in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyPage {
    /// The family.
    pub family: Family,
    /// Published models that are of it: before a colon or a semicolon, names as people write them.
    pub models: &'static str,
    /// What it has beyond a Llama decoder, in Markdown.
    pub beyond: &'static str,
}

impl FamilyPage {
    /// Returns the page of a family.
    pub const fn of(family: Family) -> FamilyPage {
        PAGES[family as usize]
    }

    /// Returns the `model_type`s of files that are of the family.
    pub fn model_types(&self) -> Vec<&'static str> {
        [self.family.name()].into_iter().chain(self.family.architecture().wrapper).collect()
    }

    /// Returns whether GGUF files of it are read and written.
    pub const fn has_gguf(&self) -> bool {
        self.family.architecture().gguf.is_some()
    }
}

/// The pages, in the order of families.
const PAGES: [FamilyPage; Family::ALL.len()] = [
    FamilyPage {
        family: Family::Llama,
        models: "Llama 2, Llama 3, SmolLM2",
        beyond: "rotary rules default, linear, llama3 and YaRN; biases that a file asks for",
    },
    FamilyPage {
        family: Family::Qwen2,
        models: "Qwen2, Qwen2.5, Qwen2.5-VL",
        beyond: "bias on q, k and v; windows from layer `max_window_layers` on, if `use_sliding_window`",
    },
    FamilyPage {
        family: Family::Qwen3,
        models: "Qwen3, Qwen3-VL, dense",
        beyond: "norms of heads; windows as Qwen2",
    },
    FamilyPage {
        family: Family::Qwen3Moe,
        models: "Qwen3-MoE: 30B-A3B, 235B-A22B, Coder, VL",
        beyond: "as Qwen3, without windows; feed-forward parts of experts, in all layers or those that \
                 `mlp_only_layers` and `decoder_sparse_step` leave",
    },
    FamilyPage {
        family: Family::Qwen35,
        models: "Qwen3.5, dense, text; 27B of Qwen3.6 and Qwen3.8",
        beyond: "linear attention in three layers of four, or those that `layer_types` names; output gates \
                 and norms of heads in the others, a quarter of a head rotated; norms with weights stored \
                 from 1",
    },
    FamilyPage {
        family: Family::Qwen35Moe,
        models: "Qwen3.5-MoE: 35B-A3B, 122B-A10B, text; 35B-A3B of Qwen3.6",
        beyond: "as Qwen3.5; experts in all layers and a shared expert with a gate; the experts of a layer in \
                 two tensors, or each in its own",
    },
    FamilyPage {
        family: Family::Qwen3Next,
        models: "Qwen3-Next: 80B-A3B",
        beyond: "as Qwen3.5-MoE, where `mlp_only_layers` and `decoder_sparse_step` may leave layers dense; \
                 the input rows of linear attention are grouped by key heads in files",
    },
    FamilyPage {
        family: Family::Glm4Moe,
        models: "GLM-4.5, GLM-4.5-Air, GLM-4.6",
        beyond: "bias on q, k and v; part of a head rotated; norms of heads if `use_qk_norm`; after \
                 `first_k_dense_replace` dense layers, experts of a router of sigmoids with corrections, \
                 groups and a factor, and a shared expert without a gate",
    },
    FamilyPage {
        family: Family::Mistral,
        models: "Mistral 7B, Mistral Small 3; text of Small 3.1, 3.2 and Magistral",
        beyond: "a window in every layer, if `sliding_window` is set and shorter than the context",
    },
    FamilyPage {
        family: Family::Ministral3,
        models: "Ministral 3, text: 3B, 8B, 14B",
        beyond: "YaRN with `llama_4_scaling_beta`: [queries grow with their \
                 position](details/models.md#queries-that-grow); windows as Mistral",
    },
    FamilyPage {
        family: Family::SmolLm3,
        models: "SmolLM3",
        beyond: "every fourth layer is not rotated, or those that `no_rope_layers` marks with 0",
    },
    FamilyPage {
        family: Family::Olmo2,
        models: "OLMo 2",
        beyond: "norms after attention and feed-forward instead of before; q and k are normalised over the \
                 whole row",
    },
    FamilyPage {
        family: Family::Olmo3,
        models: "OLMo 3",
        beyond: "as OLMo 2; windows in three layers of four, which are rotated without YaRN, by a base of \
                 their own in `rope_parameters`. A file with one `rope_theta` has that base in all layers; \
                 transformers 5.24 takes 500,000 for the windows of such a file whatever it says, so what is \
                 written here has both bases where they are not 500,000",
    },
    FamilyPage {
        family: Family::Gemma2,
        models: "Gemma 2",
        beyond: "norms before and after, with weights stored from 1; GeGLU; embeddings times the root of \
                 their width; windows in every second layer; `query_pre_attn_scalar`; soft-caps of scores and \
                 of logits",
    },
    FamilyPage {
        family: Family::Gemma3,
        models: "Gemma 3, text",
        beyond: "norms before and after, with weights stored from 1; GeGLU; embeddings times the root of \
                 their width; windows in five layers of six, with a rotary base of their own; \
                 `query_pre_attn_scalar`",
    },
    FamilyPage {
        family: Family::Gemma4,
        models: "Gemma 4, text: 31B, 26B-A4B, E2B, E4B",
        beyond: "[heads of two kinds](decisions/0120-gemma-4-has-heads-of-two-kinds.md), in layers with windows and \
                 without; normalised values, which are keys in the latter if `attention_k_eq_v`; `proportional` \
                 rotation; a number that multiplies what a layer gives; GeGLU; embeddings times the root of their \
                 width; soft-cap of logits; [experts next to the dense \
                 part](decisions/0124-experts-next-to-a-dense-part.md) if `enable_moe_block`; [inputs of \
                 layers and shared keys](details/models.md#inputs-of-layers-and-shared-keys), with adapters",
    },
    FamilyPage {
        family: Family::Gemma4Unified,
        models: "Gemma 4 12B, text",
        beyond: "as Gemma 4, without experts and inputs of layers",
    },
    FamilyPage {
        family: Family::Granite,
        models: "Granite 3, dense",
        beyond: "factors of embeddings, scores, what layers add, and logits",
    },
    FamilyPage {
        family: Family::Phi3,
        models: "Phi-3 mini and medium, Phi-4, Phi-4 mini",
        beyond: "q, k and v are one tensor in files, gate and up another; rotation of part of a head \
                 (`partial_rotary_factor`); `longrope`; windows as Mistral, none unless `sliding_window` is \
                 set",
    },
    FamilyPage {
        family: Family::DeepSeekV2,
        models: "DeepSeek-V2-Lite",
        beyond: "latent attention as DeepSeek-V3, without a latent of queries; a softmax router (`topk_method` = \
                 `greedy`) whose weights are not divided, and shared experts in one",
    },
    FamilyPage {
        family: Family::DeepSeekV3,
        models: "DeepSeek-V3, Moonlight-16B-A3B",
        beyond: "latent attention, [absorbed](decisions/0118-latent-attention-is-absorbed-everywhere.md) in \
                 rollout, scoring and training; YaRN whose `mscale_all_dim` scales scores; after \
                 `first_k_dense_replace` dense layers, experts of a router of sigmoids with corrections, \
                 groups and a factor, and shared experts in one",
    },
    FamilyPage {
        family: Family::Glm4MoeLite,
        models: "GLM-4.7-Flash",
        beyond: "as DeepSeek-V3; the layers with experts are those that `mlp_layer_types` says",
    },
    FamilyPage {
        family: Family::GptOss,
        models: "gpt-oss: 20b, 120b",
        beyond: "[sinks](decisions/0121-a-sink-begins-every-softmax.md); windows in every second layer, or those that \
                 `layer_types` names; biases on q, k, v, o, routers and experts; clamped gates; experts in plain \
                 numbers or MXFP4",
    },
];

const _: () = {
    let mut i = 0;
    while i < PAGES.len() {
        assert!(PAGES[i].family as usize == i);
        i += 1;
    }
};

/// Returns the table of all families in Markdown.
pub fn families_in_markdown() -> String {
    let mut text = String::from(
        "| family | `model_type` | GGUF | what it has beyond a Llama decoder |\n|---|---|---|---|\n",
    );
    for page in Family::ALL.map(FamilyPage::of) {
        let types: Vec<String> = page.model_types().iter().map(|name| format!("`{name}`")).collect();
        let gguf = if page.has_gguf() { "yes" } else { "no" };
        let (models, types, beyond) = (page.models, types.join(", "), page.beyond);
        let _ = writeln!(text, "| {models} | {types} | {gguf} | {beyond} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_docs_is_the_table() {
        let (page, table) = (include_str!("../../../docs/models.md"), families_in_markdown());
        assert!(page.contains(&table), "write it with `cargo xtask pages`:\n{table}");
    }
}
