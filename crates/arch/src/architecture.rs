//! The supported architectures, one row each: how files spell them and what their decoders have.

plimsoll_base::names! {
    /// Hugging Face architecture of a model; the name is its `model_type`.
    Family {
        /// SmolLM2 included.
        Llama = "llama",
        /// Qwen2 and Qwen2.5.
        Qwen2 = "qwen2",
        /// Qwen3, dense.
        Qwen3 = "qwen3",
        /// Qwen3 with experts.
        Qwen3Moe = "qwen3_moe",
        /// Qwen3.5, dense, text.
        Qwen35 = "qwen3_5_text",
        /// Qwen3.5 with experts, text.
        Qwen35Moe = "qwen3_5_moe_text",
        /// Qwen3-Next.
        Qwen3Next = "qwen3_next",
        /// GLM-4.5, 4.6 and 4.7, with experts.
        Glm4Moe = "glm4_moe",
        /// Mistral.
        Mistral = "mistral",
        /// Ministral 3.
        Ministral3 = "ministral3",
        /// SmolLM3.
        SmolLm3 = "smollm3",
        /// OLMo 2.
        Olmo2 = "olmo2",
        /// OLMo 3.
        Olmo3 = "olmo3",
        /// Gemma 2.
        Gemma2 = "gemma2",
        /// Gemma 3, text.
        Gemma3 = "gemma3_text",
        /// Gemma 4, text, dense or with experts: without per-layer inputs and layers that share keys.
        Gemma4 = "gemma4_text",
        /// Gemma 4 without encoders of images and sound, text, dense.
        Gemma4Unified = "gemma4_unified_text",
        /// Granite 3, dense.
        Granite = "granite",
        /// Phi-3 and Phi-4 mini.
        Phi3 = "phi3",
        /// DeepSeek V2-Lite.
        DeepSeekV2 = "deepseek_v2",
        /// DeepSeek V3 and models of its kind: Moonlight, Kimi-K2.
        DeepSeekV3 = "deepseek_v3",
        /// GLM-4.7-Flash.
        Glm4MoeLite = "glm4_moe_lite",
        /// gpt-oss.
        GptOss = "gpt_oss",
    }
}

/// Where a layer's norms are, by their tensor names: for attention, then for the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// Norms of the inputs of attention and of the feed-forward part.
    pub before: Option<[&'static str; 2]>,
    /// Norms of the outputs of attention and of the feed-forward part, before they are added to the residual stream.
    pub after: Option<[&'static str; 2]>,
}

/// How queries and keys are normalised before rope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorms {
    /// Each head by itself; all heads share d weights.
    Heads,
    /// The heads of a row together, with a weight for each element.
    Rows,
}

/// Activation function of the gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// g / (1 + e^-g).
    Silu,
    /// g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) / 2.
    GeluTanh,
    /// g / (1 + e^(-1.702 g)) (u + 1), with g at most 7 and u from -7 to 7. Gates and ups of a row alternate.
    ClampedSilu,
}

/// The limit of gates and ups of `Gate::ClampedSilu`.
pub const GATE_LIMIT: f32 = 7.0;
/// The factor on a gate in its sigmoid in `Gate::ClampedSilu`.
pub const GATE_ALPHA: f32 = 1.702;

/// One architecture: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Architecture {
    /// The family, whose name is `model_type` in `config.json`.
    pub family: Family,
    /// `architectures` of a causal language model.
    pub causal_lm: &'static str,
    /// `architectures` of a model for sequence classification, which is a reward model.
    pub classifier: &'static str,
    /// `general.architecture` of a GGUF file; families may share one. None if GGUF files of the family are not read.
    pub gguf: Option<&'static str>,
    /// The name of the norm before a feed-forward part in a GGUF file.
    pub gguf_ffn_norm: &'static str,
    /// True if a GGUF file holds the rows of q and k as rotated pairs.
    pub gguf_rope_pairs: bool,
    /// True if q, k and v always have a bias, whatever `config.json` says.
    pub qkv_bias: bool,
    /// How q and k are normalised before rope.
    pub qk_norms: Option<QkNorms>,
    /// The key of `config.json` without which q and k are not normalised.
    pub qk_norms_key: Option<&'static str>,
    /// Where the layers' norms are.
    pub norms: Norms,
    /// Added to the weights of all norms: files of some families store weight - 1.
    pub norm_offset: f32,
    /// Activation function of the gated MLP.
    pub gate: Gate,
    /// True if q, k and v are one tensor in files, and gate and up another.
    pub is_fused: bool,
    /// True if feed-forward parts may consist of experts.
    pub has_experts: bool,
    /// True if files have DeepSeek's keys of experts, such as `n_routed_experts`; the first layers are dense, and the
    /// shared experts are one without a gate.
    pub has_routed_keys: bool,
    /// True if a router scores experts by sigmoids, with corrections for its choice.
    pub has_sigmoid_router: bool,
    /// True if all layers have experts, whose weights are always divided by their sum: files have no keys for that, nor
    /// for the width of a dense part.
    pub has_experts_alone: bool,
    /// True if experts and their router have biases, and files hold the matrices of all experts of a layer transposed.
    pub has_biased_experts: bool,
    /// True if the softmax of each query head has a sink: a logit that takes part in its sum, and has no value.
    pub has_sinks: bool,
    /// True if experts, which a file asks for in all layers or in none, are next to the dense part: each of the two has
    /// norms of its own, and the router reads rows before these.
    pub joins_dense: bool,
    /// True if a shared expert computes every row, next to those that a router chooses.
    pub has_shared_expert: bool,
    /// True if layers may have linear attention; the heads of the other layers then have output gates.
    pub has_delta: bool,
    /// True if files have the input rows of linear attention by key heads.
    pub groups_delta: bool,
    /// True if attention is over latents of keys and values.
    pub has_latent: bool,
    /// True if part of a head may be rotated, with any rope scaling.
    pub has_partial_rotary: bool,
    /// True if part of a head may be rotated; `longrope` is then the only rope scaling.
    pub has_longrope: bool,
    /// True if queries grow with their position, by a key of YaRN's rule, which is then the only one.
    pub grows_queries: bool,
    /// True if embeddings are multiplied by the square root of their width.
    pub scales_embedding: bool,
    /// True if `attn_logit_softcapping` and `final_logit_softcapping` are read.
    pub has_soft_caps: bool,
    /// True if `final_logit_softcapping` is read, and no other cap.
    pub caps_logits: bool,
    /// True if layers without windows have heads of their own, which may have keys for values, and values are
    /// normalised.
    pub has_global_heads: bool,
    /// True if what a layer gives is multiplied by a number of the layer, which nothing trains.
    pub scales_layers: bool,
    /// True if constant factors of embeddings, residual additions, scores and logits are read.
    pub has_multipliers: bool,
    /// True if `attention_bias` in `config.json` adds a bias to q, k, v and o.
    pub reads_attention_bias: bool,
    /// True if that bias is on q, k and v alone.
    pub has_plain_output: bool,
    /// True if `mlp_bias` in `config.json` adds a bias to gate, up and down.
    pub reads_mlp_bias: bool,
    /// The source of the factor on scores.
    pub score_scale: ScoreScale,
    /// n, if heads of every n-th layer are not rotated unless `no_rope_layers` in `config.json` lists other layers.
    pub unrotated_every: Option<u32>,
    /// Which layers have sliding windows.
    pub windows: Windows,
    /// Keys of a window if a GGUF file names none.
    pub gguf_window: Option<u32>,
    /// True if `rope_local_base_freq` in `config.json` is the base of the layers with windows.
    pub has_local_base: bool,
    /// `model_type` of the models of text and images whose language model this is, if they are read.
    pub wrapper: Option<&'static str>,
    /// `model_type` of that language model inside of them, if it is not the family's.
    pub wrapped_name: Option<&'static str>,
    /// Family-specific keys of a written `config.json`; a value of `None` is null.
    pub config_keys: &'static [(&'static str, Option<bool>)],
}

/// Which layers `sliding_window` in `config.json` applies to, if `layer_types` does not list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// No layers: the key is not read.
    No,
    /// All layers, whenever it is set.
    All,
    /// The layers from `max_window_layers` on, if `use_sliding_window` is true.
    Asked,
    /// All but every n-th layer.
    AllButEvery {
        /// n if the file does not give it, as in GGUF.
        n: u32,
        /// True if these layers have their own unscaled rope, with the same base or that of `rope_local_base_freq`.
        own_rope: bool,
    },
}

/// The source of the factor on attention's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreScale {
    /// The elements of a head: 1/sqrt(d).
    HeadDim,
    /// None: the factor is 1.
    One,
    /// A key of `config.json` that is the factor.
    Factor(&'static str),
    /// A key of `config.json` with a number x: the factor is 1/sqrt(x).
    Root {
        /// The key.
        key: &'static str,
        /// Layers of the one model in which x is hidden/heads in a GGUF file, which names none; in all others it is d.
        gguf_wide: u32,
    },
}

impl Architecture {
    /// True if layers with windows have their own unscaled rope.
    pub const fn has_own_rope(&self) -> bool {
        matches!(self.windows, Windows::AllButEvery { own_rope: true, .. })
    }
}
