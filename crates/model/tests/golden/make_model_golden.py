#!/usr/bin/env python3
"""Make tiny random models and their reference numbers with Hugging Face transformers, float32 on CPU.

    python make_model_golden.py           # writes next to this file: the models of the installed transformers
    python make_model_golden.py gemma3    # only computes these models and prints their rows: writes nothing

For each entry of MODELS it writes <name>/ with config.json, model.safetensors and reference.safetensors, and then
README.md, the legend. Everything is computed a second time in float64, as far as transformers allows; the README lists
the largest differences, so that a tolerance can be chosen with a reason.

The folders llama, llama3_rope, qwen2, qwen3 and mistral are older and come from another script: this one does not
touch them.

Needs torch, transformers, safetensors: 5.23 for the models that 4.57 does not know, 4.57 for the others, whose rows of
README.md a run with 5.23 keeps. The same versions give the same bytes on one machine.

Shapes: T tokens of one sequence, V vocab.
"""

import json
import math
import re
import sys
import tempfile
from pathlib import Path

import safetensors.torch
import torch
import transformers

HERE = Path(__file__).resolve().parent
SEQUENCE_LENGTHS = [7, 33, 64]
GREEDY_TOKENS = 20
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
# The first AdamW step moves every weight by about lr * sign(gradient). Below this gradient the sign may be rounding.
SMALL_GRADIENT = 1e-6
# A greedy token that wins by less than this could change with the order of a sum: such a seed is refused.
LEAST_MARGIN = 1e-3

# Each config has the keys that a published config.json of its family has, and leaves out what those leave out.
# pad_token_id is null: with a number, torch would leave the gradient of that token's embedding out.
COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "bos_token_id": 94,
    "eos_token_id": 95,
    "pad_token_id": None,
    "torch_dtype": "float32",
    "use_cache": True,
}

LLAMA = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}

QWEN2 = {
    **COMMON,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}

QWEN3 = {
    **COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}

QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}

# With d = 16, theta = 10 and 16 original positions the ramp of yarn goes from 0 to ceil(3.25) = 4: frequency 0 is kept,
# 1, 2, 3 are blended and the others are divided by the factor.
DEFAULT_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}

# With d = 16, theta = 100 and 64 original positions: from floor(1.62) = 1 to ceil(4.03) = 5.
EXPLICIT_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "attention_factor": 0.85,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}

# As published for OLMo 3, but for the length. With d = 16, theta = 50 and 32 original positions: from 0 to ceil(3.33) = 4.
OLMO3_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "attention_factor": 1.2079441541679836,
    "beta_fast": 32,
    "beta_slow": 1,
}

# Gemma takes hidden_activation, not hidden_act, and leaves out tie_word_embeddings, which is true.
GEMMA = {key: value for key, value in COMMON.items() if key != "hidden_act"} | {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 16,
    "attention_bias": False,
    "query_pre_attn_scalar": 24,
    "sliding_window": 16,
}

PHI3 = {
    **COMMON,
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "rms_norm_eps": 1e-5,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "tie_word_embeddings": False,
}

# 12 of the 16 dimensions of a head rotate, so there are 6 factors.
PHI4_MINI = {
    **PHI3,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.05, 1.1, 1.2, 1.35, 1.5],
        "long_factor": [1.0, 1.3, 2.1, 3.7, 6.2, 9.5],
    },
}

# As published: the rule of rotation in rope_parameters, with keys for positions of images and of further-token prediction.
QWEN3_5 = {key: value for key, value in COMMON.items() if key not in ("rope_theta", "torch_dtype")} | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attn_output_gate": True,
    "dtype": "float32",
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_hidden_layers": 4,
}

# As published: no width of a dense part, and the experts of a layer in two tensors.
QWEN3_5_MOE = {key: value for key, value in QWEN3_5.items() if key not in ("intermediate_size", "mlp_only_layers")} | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 48,
    "tie_word_embeddings": False,
}

QWEN3_NEXT = {key: value for key, value in COMMON.items() if key != "torch_dtype"} | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "dtype": "float32",
    "full_attention_interval": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 32,
    "mlp_only_layers": [2],
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rope_scaling": None,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 32,
    "tie_word_embeddings": False,
}

GLM4_MOE = {key: value for key, value in COMMON.items() if key not in ("torch_dtype", "rms_norm_eps")} | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "dtype": "float32",
    "first_k_dense_replace": 1,
    "head_dim": 32,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_qk_norm": False,
}

# The form of transformers 5, and what GLM-4.5-Air does not have: norms of heads, groups, a factor, wide shared experts.
GLM4_MOE_GROUPS = {k: v for k, v in GLM4_MOE.items() if not k.startswith(("rope_", "partial_"))} | {
    "first_k_dense_replace": 2,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
    "routed_scaling_factor": 2.5,
    "topk_group": 2,
    "use_qk_norm": True,
}

# Latent attention: a latent of 40 elements and 8 that are rotated, whose keys are 48 wide; queries from a latent of 24.
DEEPSEEK_V3 = {k: v for k, v in COMMON.items() if k not in ("rope_theta", "torch_dtype", "rms_norm_eps")} | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "dtype": "float32",
    "first_k_dense_replace": 1,
    "kv_lora_rank": 40,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_interleave": True,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
        "rope_type": "yarn",
    },
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 2,
    "v_head_dim": 16,
}

MOONLIGHT = DEEPSEEK_V3 | {
    "n_group": 1,
    "n_routed_experts": 5,
    "n_shared_experts": 2,
    "q_lora_rank": None,
    "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
    "routed_scaling_factor": 2.446,
    "topk_group": 1,
}

# As V2-Lite, whose router is a softmax of which nothing is divided.
DEEPSEEK_V2 = {
    key: value for key, value in MOONLIGHT.items() if key not in ("num_nextn_predict_layers", "rope_interleave")
} | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "n_group": None,
    "norm_topk_prob": False,
    "rope_parameters": DEEPSEEK_V3["rope_parameters"] | {"mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": None,
    "topk_method": "greedy",
}

GLM4_MOE_LITE = {k: v for k, v in MOONLIGHT.items() if k not in ("first_k_dense_replace", "num_nextn_predict_layers")} | {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "mlp_layer_types": ["dense", "sparse"],
    "n_shared_experts": 1,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "routed_scaling_factor": 1.8,
    "v_head_dim": 32,
}

# As published, but for sizes. With d = 32, theta = 100 and 16 original positions the ramp of yarn goes from 0 to
# ceil(3.2) = 4, and queries at positions 48 to 63 are multiplied by 1 + 0.4 ln 4.
MINISTRAL3 = {key: value for key, value in COMMON.items() if key not in ("rope_theta", "torch_dtype", "rms_norm_eps")} | {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "dtype": "float32",
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 16.0,
        "llama_4_scaling_beta": 0.4,
        "max_position_embeddings": 256,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 100.0,
        "rope_type": "yarn",
    },
    "sliding_window": None,
    "tie_word_embeddings": False,
}

# The older form: the rule under another name, and its type; tied, and with a window.
MINISTRAL3_WINDOW = {key: value for key, value in MINISTRAL3.items() if key != "rope_parameters"} | {
    "head_dim": 16,
    "rope_scaling": {
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "factor": 4.0,
        "llama_4_scaling_beta": 0.3,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 24,
        "rope_theta": 10000.0,
        "type": "yarn",
    },
    "sliding_window": 16,
    "tie_word_embeddings": True,
}

# As published for 31B, but for sizes: heads of 32 with one key, which is the value before its norm, in full layers, half
# of whose pairs turn; 4 heads of 16 with two keys in those with windows.
GEMMA4 = {k: v for k, v in COMMON.items() if k not in ("rope_theta", "torch_dtype", "hidden_act")} | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "attention_bias": False,
    "attention_k_eq_v": True,
    "dtype": "float32",
    "enable_moe_block": False,
    "final_logit_softcapping": 3.0,
    "global_head_dim": 32,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    "moe_intermediate_size": None,
    "num_experts": None,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 0,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    },
    "sliding_window": 16,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
    "vocab_size_per_layer_input": 262144,
}

# As transformers writes it, with the numbers by layer; values are products of their own, no cap, rules of rotation that are
# not said, and a head that is not the embedding.
GEMMA4_OWN = {k: v for k, v in GEMMA4.items() if not k.startswith(("global_", "num_global_", "rope_"))} | {
    "attention_k_eq_v": False,
    "final_logit_softcapping": None,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
    "per_layer_config": {"1": {"head_dim": 48}},
    "tie_word_embeddings": False,
    "use_bidirectional_attention": None,
}

# A dense part of another width than the experts next to it.
GEMMA4_MOE = GEMMA4 | {
    "enable_moe_block": True,
    "intermediate_size": 48,
    "layer_types": ["sliding_attention", "full_attention"],
    "moe_intermediate_size": 32,
    "num_experts": 6,
    "num_hidden_layers": 2,
    "top_k_experts": 2,
}

# The last two layers have keys and values of the first two, and dense parts twice as wide; all have inputs of their own.
GEMMA4_E = GEMMA4 | {
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 96,
}

# Without encoders: a class of its own, whose files lack the keys of experts and of per-layer inputs.
LACKED = ("enable_moe_block", "moe_intermediate_size", "num_experts", "top_k_experts", "hidden_size_per_layer_input")
GEMMA4_UNIFIED = {k: v for k, v in GEMMA4.items() if k not in (*LACKED, "vocab_size_per_layer_input")} | {
    "architectures": ["Gemma4UnifiedForCausalLM"],
    "model_type": "gemma4_unified_text",
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
}

# With the keys of published files, old and new. With d = 16, theta = 1000 and 64 original positions the ramp of yarn goes
# from 1.08 to 2.69: its ends are not rounded.
GPT_OSS = {key: value for key, value in COMMON.items() if key not in ("torch_dtype", "rms_norm_eps")} | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "dtype": "float32",
    "experts_per_token": 2,
    "head_dim": 16,
    "initial_context_length": 64,
    "intermediate_size": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_experts_per_tok": 2,
    "num_local_experts": 5,
    "output_router_logits": False,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 1000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 16,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}

MODELS = {
    "qwen3_yarn": {**QWEN3, "rope_theta": 10.0, "rope_scaling": DEFAULT_YARN},
    "qwen2_yarn": {**QWEN2, "rope_theta": 100.0, "rope_scaling": EXPLICIT_YARN},
    "llama_bias": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "mistral_window": {
        **COMMON,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 16,
        "tie_word_embeddings": False,
    },
    "qwen2_window": {
        **QWEN2,
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 2,
    },
    "smollm3": {
        **COMMON,
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "attention_bias": False,
        "mlp_bias": False,
        "layer_types": ["full_attention"] * 4,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "olmo2": {
        **COMMON,
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "attention_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "olmo3": {
        **COMMON,
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "attention_bias": False,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "rope_theta": 50.0,
        "rope_scaling": OLMO3_YARN,
        "sliding_window": 16,
        "tie_word_embeddings": False,
    },
    "gemma2": {
        **GEMMA,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        **GEMMA,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_local_base_freq": 10000,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000,
        "sliding_window_pattern": 2,
    },
    "granite": {
        **COMMON,
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.15625,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    },
    "phi3": {**PHI3, "original_max_position_embeddings": 256, "rope_scaling": None, "sliding_window": None},
    "phi4_mini": {**PHI4_MINI, "original_max_position_embeddings": 64},
    "phi4_mini_long": {**PHI4_MINI, "original_max_position_embeddings": 32},
    "qwen3_moe": {
        **QWEN3_MOE,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe_mixed": {
        **QWEN3_MOE,
        "attention_bias": True,
        "mlp_only_layers": [0, 2],
        "moe_intermediate_size": 16,
        "norm_topk_prob": False,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 4,
        "tie_word_embeddings": False,
    },
    "qwen3_5": {
        **QWEN3_5,
        "full_attention_interval": 4,
        "head_dim": 32,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_key_head_dim": 48,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 32,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
    },
    "qwen3_5_wide": {
        **QWEN3_5,
        "head_dim": 16,
        "layer_types": ["full_attention", "linear_attention"] * 2,
        "linear_key_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
        "tie_word_embeddings": False,
    },
    "qwen3_5_moe": {
        **QWEN3_5_MOE,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000,
            "rope_type": "default",
        },
    },
    "qwen3_next": QWEN3_NEXT,
    "glm4_moe": GLM4_MOE,
    "glm4_moe_groups": GLM4_MOE_GROUPS,
    "deepseek_v3": DEEPSEEK_V3,
    "moonlight": MOONLIGHT,
    "glm4_moe_lite": GLM4_MOE_LITE,
    "ministral3": MINISTRAL3,
    "ministral3_window": MINISTRAL3_WINDOW,
    "gemma4": GEMMA4,
    "gemma4_own": GEMMA4_OWN,
    "gpt_oss": GPT_OSS,
    "gemma4_moe": GEMMA4_MOE,
    "gemma4_unified": GEMMA4_UNIFIED,
    "gemma4_e": GEMMA4_E,
    "deepseek_v2": DEEPSEEK_V2,
}

# Models that 4.57 does not know. The others are of 4.57: later versions read some of their keys in another way.
OF_5 = ["qwen3_5", "qwen3_5_wide", "qwen3_5_moe", "qwen3_next", "glm4_moe", "glm4_moe_groups",
         "deepseek_v3", "moonlight", "glm4_moe_lite", "ministral3", "ministral3_window",
         "gemma4", "gemma4_own", "gpt_oss", "gemma4_moe", "gemma4_unified", "gemma4_e", "deepseek_v2"]

# The first keeps to the short factors, the second to the long ones, greedy continuations included.
OTHER_LENGTHS = {"phi4_mini": [7, 20, 31], "phi4_mini_long": [40, 50, 64]}
# On both sides of a chunk of 64 and of two.
OTHER_LENGTHS |= {"qwen3_5": [63, 64, 129], "qwen3_5_wide": [65, 127, 128]}
OTHER_LENGTHS |= {"qwen3_5_moe": [5, 64, 67], "qwen3_next": [23, 65, 7]}

# The standard deviation of the embedding and the mean of the final norm's factor. A tied model whose stream is mostly the
# embedding predicts the token that it just read, so models that multiply the embedding have a small one and a large norm.
SIZES = {"gemma2": (0.03, 8.0), "gemma3": (0.03, 8.0), "gemma4": (0.06, 4.0), "gemma4_moe": (0.06, 4.0),
         "gemma4_unified": (0.06, 4.0), "gemma4_e": (0.06, 4.0), "granite": (0.05, 10.0)}
DEFAULT_SIZES = (0.25, 1.0)

# A model's seed is its place in MODELS, except where that gave a greedy margin below LEAST_MARGIN, or a head of linear
# attention some token's output of almost 0, whose norm makes large differences of rounding.
OTHER_SEEDS = {"gemma3": 100, "qwen3_5": 20, "qwen3_5_wide": 35, "qwen3_next": 25}


def main():
    torch.set_num_threads(1)  # one order of summation
    only = sys.argv[1:]
    is_5 = transformers.__version__.startswith("5.")
    rows = []
    for seed, name in enumerate(MODELS):
        if (only and name not in only) or (name in OF_5) != is_5:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            directory = (Path(scratch) if only else HERE) / name
            rows.append(make_model(directory, name, OTHER_SEEDS.get(name, seed)))
        print(rows[-1], flush=True)
    if not only:
        write_readme(rows)
    if not only and is_5:
        make_mxfp4(HERE / "gpt_oss_mxfp4")


def write_readme(rows):
    """Writes README.md; the rows of the models that another version makes, and its name, are those of the old one."""
    path = HERE / "README.md"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    made_with = {version[0]: text for text, version in re.findall(r"(torch [\d.]+, transformers ([\d.]+\d))", old)}
    made_with[transformers.__version__[0]] = versions()
    made_with = {"4": "no version yet", "5": "no version yet"} | made_with
    lines = {name: line for line, name in re.findall(r"^(\| (\w+) \| \d.*)$", old, re.MULTILINE)}
    lines |= {row["model"]: line_of(row.values()) for row in rows}
    table = [line_of(rows[0]), "|" + "---|" * len(rows[0]), *(lines[name] for name in MODELS if name in lines)]
    text = README.format(of_4=made_with["4"], of_5=made_with["5"], table="\n".join(table))
    path.write_text(text, encoding="utf-8")


def make_model(directory, name, seed):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(MODELS[name], indent=2) + "\n")

    generator = torch.Generator().manual_seed(seed)
    model = new_model(directory)
    randomize(model, generator, *SIZES.get(name, DEFAULT_SIZES))
    lengths = OTHER_LENGTHS.get(name, SEQUENCE_LENGTHS)
    sequences = [torch.randint(COMMON["vocab_size"], (length,), generator=generator) for length in lengths]
    # named_parameters leaves lm_head out when it is tied to the embedding, as published checkpoints do.
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    # Buffers that files have: what routers add to scores for their choice, and what layers multiply by.
    weights |= {key: value.clone() for key, value in model.named_buffers() if key.endswith(FIXED)}
    stored = in_files(model, weights)
    safetensors.torch.save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})

    check_names(model, stored)
    check_reload(directory, model, sequences[0])
    reference = compute_reference(model, sequences)
    safetensors.torch.save_file(reference, directory / "reference.safetensors")

    exact_model = new_model(directory).double()
    loaded = exact_model.load_state_dict({key: value.double() for key, value in weights.items()}, strict=False)
    assert set(loaded.missing_keys) <= {"lm_head.weight"} and not loaded.unexpected_keys, (name, loaded)
    return summary(name, stored, reference, compute_reference(exact_model, sequences))


def make_mxfp4(directory):
    """gpt_oss with experts in blocks of MXFP4, as published, and what transformers makes of them: no gradients."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(77)
    source = HERE / "gpt_oss"
    weights = safetensors.torch.load_file(source / "model.safetensors")
    experts = [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    for name in experts:
        count, inputs, outputs = weights.pop(name).shape
        shape, scale = (count, outputs, inputs // 32), 124 if "gate" in name else 122
        weights[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.randint(scale - 1, scale + 2, shape, generator=generator, dtype=torch.uint8)
    safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": plain}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    how = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32, quantization_config=how
    ).eval()
    one_expert_at_a_time(model)
    old = safetensors.torch.load_file(source / "reference.safetensors")
    # The numbers of all blocks, in the order of plain files.
    reference = {f"value.{name}": dict(model.named_parameters())[name].detach().contiguous() for name in experts}
    for index in range(3):
        input_ids = old[f"seq{index}.input_ids"]
        logits = compute_logits(model, input_ids).detach()
        log_probs = torch.log_softmax(logits, dim=-1)[:-1].gather(1, input_ids[1:, None])[:, 0]
        reference |= {f"seq{index}.input_ids": input_ids, f"seq{index}.log_probs": log_probs}
    safetensors.torch.save_file(reference, directory / "reference.safetensors")


def in_files(model, tensors):
    """The tensors of memory as files have them: those of all experts of a layer apart, but in Qwen3.5."""
    if model.config.model_type not in ("qwen3_next", "glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"):
        return tensors
    return split_experts(tensors)


def split_experts(tensors):
    found = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".experts.")
        for expert, matrix in enumerate(tensor) if layer and tensor.dim() == 3 else []:
            halves = matrix.chunk(2) if part == "gate_up_proj" else [matrix]
            names = ["gate_proj", "up_proj"] if part == "gate_up_proj" else [part]
            for half, of in zip(halves, names):
                found[f"{layer}.experts.{expert}.{of}.weight"] = half.contiguous()
        if not layer or tensor.dim() != 3:
            found[name] = tensor
    return found


def new_model(directory):
    config = transformers.AutoConfig.from_pretrained(directory)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    assert model.get_input_embeddings().padding_idx is None, directory
    one_expert_at_a_time(model)
    return model


def one_expert_at_a_time(model):
    """Lets transformers 5 add experts in ascending order, in the model's dtype."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")


# Buffers that files have, and that nothing trains.
FIXED = ("e_score_correction_bias", "layer_scalar")


def randomize(model, generator, embedding_size, final_norm):
    """Weights large enough that attention, norms and biases all change the logits."""
    # They multiply by 1 + w.
    zero_centered = model.config.model_type.startswith(("gemma2", "gemma3", "qwen3_5", "qwen3_next"))
    with torch.no_grad():
        fixed = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(FIXED)]
        for name, parameter in [*model.named_parameters(), *fixed]:
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("layer_scalar"):
                parameter.copy_(1.0 + 0.2 * noise)
            elif model.config.model_type.startswith("gemma4") and name.endswith(("q_norm.weight", "k_norm.weight")):
                # Scores have no factor but these.
                parameter.copy_(0.5 + 0.1 * noise)
            elif name.endswith((".router.scale", ".per_expert_scale")) or "feedforward_layernorm_" in name:
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith(".router.proj.weight"):
                # What it reads is divided by the root of its width.
                parameter.copy_(1.2 * noise)
            elif name.endswith("norm.weight"):
                factor = final_norm if name == "model.norm.weight" else 1.0
                # The norm of what linear attention gives multiplies by w.
                offset = 1.0 if zero_centered and "linear_attn" not in name else 0.0
                parameter.copy_(factor - offset + 0.2 * noise)
            elif name.endswith("A_log"):
                # From heads that keep a state for hundreds of tokens to those that forget it at once.
                parameter.copy_(torch.linspace(-5.0, 1.0, len(parameter)) + 0.3 * noise)
            elif name.endswith("dt_bias"):
                parameter.copy_(noise)
            elif name.endswith("conv1d.weight"):
                # So large that silu leaves few signs among q and k: where they cancel, a norm divides by next to nothing.
                parameter.copy_(7.2 * noise / math.sqrt(parameter.shape[2]))
            elif name.endswith("linear_attn.out_proj.weight"):
                parameter.copy_(0.6 * noise / math.sqrt(parameter.shape[1]))
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif name.endswith("sinks"):
                parameter.copy_(noise)
            elif model.config.model_type == "gpt_oss" and name.endswith("gate_up_proj"):
                # So large that some gates and ups are clamped.
                parameter.copy_(4.0 * noise / math.sqrt(parameter.shape[1]))
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(embedding_size * noise)
            else:
                parameter.copy_(1.2 * noise / math.sqrt(parameter.shape[1]))


def check_names(model, weights):
    """The tensors have the names that transformers itself gives them in a file."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        saved = safetensors.torch.load_file(Path(scratch) / "model.safetensors")
    # A new Qwen3.5 with experts is saved with each expert apart, published ones are not; both are read.
    saved, weights = split_experts(saved), split_experts(weights)
    assert saved.keys() == weights.keys(), saved.keys() ^ weights.keys()


def check_reload(directory, model, input_ids):
    loaded = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    one_expert_at_a_time(loaded)
    with torch.no_grad():
        # Where weights lie in memory may change the last bit of a product of a few rows.
        difference = (compute_logits(loaded, input_ids) - compute_logits(model, input_ids)).abs().max()
    assert difference < 1e-5, (directory, difference)


def compute_logits(model, input_ids):
    """Logits at every position of one sequence, [T, V], with neither padding nor cache."""
    return model(input_ids[None], use_cache=False).logits[0]


def compute_reference(model, sequences):
    reference = {}
    nll_sum, num_targets = 0.0, 0
    for index, input_ids in enumerate(sequences):
        logits = compute_logits(model, input_ids)  # [T, V]
        log_softmax = torch.log_softmax(logits, dim=-1)  # [T, V]
        log_probs = log_softmax[:-1].gather(1, input_ids[1:, None])[:, 0]  # [T-1]
        entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)  # [T]
        nll_sum, num_targets = nll_sum - log_probs.sum(), num_targets + len(log_probs)
        greedy, margin = greedy_continuation(model, input_ids)
        reference[f"seq{index}.input_ids"] = input_ids
        reference[f"seq{index}.logits"] = logits.detach()
        reference[f"seq{index}.log_probs"] = log_probs.detach()
        reference[f"seq{index}.entropy"] = entropy.detach()
        reference[f"seq{index}.greedy"] = greedy
        reference[f"seq{index}.greedy_margin"] = margin

    loss = nll_sum / num_targets
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is None:  # an expert that no token went to
            parameter.grad = torch.zeros_like(parameter)
    gradients = in_files(model, {name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    reference["loss"] = loss.detach().reshape(1)
    squares = [gradient.double().square().sum() for gradient in gradients.values()]
    reference["grad_norm"] = torch.stack(squares).sum().sqrt().to(loss.dtype).reshape(1)
    reference.update({f"grad.{name}": gradient for name, gradient in gradients.items()})

    torch.optim.AdamW(model.parameters(), **ADAMW).step()
    stepped = in_files(model, {name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    reference.update({f"adamw.{name}": parameter for name, parameter in stepped.items()})
    return reference


@torch.no_grad()
def greedy_continuation(model, input_ids):
    """The next GREEDY_TOKENS tokens by argmax, and by how much each beat the runner-up in logits."""
    tokens, margins = input_ids, []
    for _ in range(GREEDY_TOKENS):
        (best, runner_up), (token, _) = compute_logits(model, tokens)[-1].topk(2)
        margins.append(best - runner_up)
        tokens = torch.cat([tokens, token.reshape(1)])
    return tokens[len(input_ids) :].clone(), torch.stack(margins)


def summary(name, weights, reference, exact):
    def difference(prefix, suffix=""):
        keys = [key for key in reference if key.startswith(prefix) and key.endswith(suffix)]
        return max((reference[key].double() - exact[key].double()).abs().max().item() for key in keys)

    gradients = [reference[f"grad.{key}"] for key in weights if not key.endswith(FIXED)]
    small = sum(int((gradient.abs() < SMALL_GRADIENT).sum()) for gradient in gradients)
    margin = min(reference[f"seq{i}.greedy_margin"].min().item() for i in range(3))
    assert margin > LEAST_MARGIN, f"{name}: greedy margin {margin}, choose another seed"
    for index in range(3):
        assert torch.equal(reference[f"seq{index}.greedy"], exact[f"seq{index}.greedy"]), (name, index)
    return {
        "model": name,
        "parameters": sum(weight.numel() for weight in weights.values()),
        "loss": f"{reference['loss'].item():.6f}",
        "grad_norm": f"{reference['grad_norm'].item():.6f}",
        "largest logit": f"{max(reference[f'seq{i}.logits'].abs().max().item() for i in range(3)):.2f}",
        "mean entropy": f"{torch.cat([reference[f'seq{i}.entropy'] for i in range(3)]).mean().item():.3f}",
        "least greedy margin": f"{margin:.1e}",
        "d logits": f"{difference('seq', '.logits'):.1e}",
        "d log_probs": f"{difference('seq', '.log_probs'):.1e}",
        "d entropy": f"{difference('seq', '.entropy'):.1e}",
        "d loss": f"{difference('loss'):.1e}",
        "d grad": f"{difference('grad.'):.1e}",
        "largest grad": f"{max(gradient.abs().max().item() for gradient in gradients):.2f}",
        "d adamw": f"{difference('adamw.'):.1e}",
        "small grads": small,
    }


def line_of(values):
    return "| " + " | ".join(str(value) for value in values) + " |"


def versions():
    return f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"


README = """# Tiny models with reference numbers

Random models, and what Hugging Face transformers computes from them in float32 on CPU, eager attention, no cache.
Weights are random with a fixed seed; nothing is trained. Those of this list are made by `make_model_golden.py` with
{of_4}, and those of Qwen3.5, Qwen3-Next, GLM, DeepSeek, Ministral 3, Gemma 4 and gpt-oss with
{of_5}. The folders `llama`, `llama3_rope`, `qwen2`, `qwen3` and `mistral` are older, have the same
tensors with a vocab of 260, and come from another script.

- `qwen3_yarn`: rope of type `yarn` with the default attention factor, 0.1 ln(4) + 1; all three branches of its ramp are used.
- `qwen2_yarn`: `yarn` with `attention_factor`, `beta_fast` and `beta_slow` given; the ramp starts above 0.
- `llama_bias`: `attention_bias` and `mlp_bias`: a bias on all seven linear layers.
- `mistral_window`: `sliding_window` 16 on every layer, untied.
- `qwen2_window`: 4 layers; `use_sliding_window` with `max_window_layers` 2: layers 0 and 1 are full, 2 and 3 have a window of 16.
- `smollm3`: 4 layers, the last without rope. No `tie_word_embeddings` in its config.json, as published: it is true.
- `olmo2`: norms after attention and feed-forward, none before; RMS norm over the whole of q and of k (64 and 32 wide).
- `olmo3`: as `olmo2`, 4 layers: three with a window of 16 and plain rope, then a full one with `yarn`.
- `gemma2`: scaled embeddings, norms with 1 + w before and after, tanh gelu, `query_pre_attn_scalar` 24; layer 0 has a window
  of 16, layer 1 is full; attention scores capped at 5, logits at 3. No `tie_word_embeddings` in its config.json: it is true.
- `gemma3`: as `gemma2` without caps, with a norm on each head of q and k. Layer 0 has a window of 16 and rope base 1e4, layer 1 is
  full and has base 1e6 and linear scaling by 8. `sliding_window_pattern` is 2; there is no `layer_types`, as published.
- `granite`: its four multipliers, none of them 1, and an attention multiplier that is not head_dim^-0.5.
- `phi3`: fused `qkv_proj` and `gate_up_proj`, untied.
- `phi4_mini`: as `phi3`, tied; 12 of 16 dimensions of a head rotate; `longrope`. T = 7, 20, 31: never above the 64 original
  positions, so the short factors.
- `phi4_mini_long`: the same with 32 original positions and T = 40, 50, 64: always above them, so the long factors.
- `qwen3_moe`: 6 experts of 32 in both layers, 2 of them for a token, whose weights are divided by their sum.
- `qwen3_moe_mixed`: 4 layers, of which the second and the last have 5 experts of 16, 3 for a token, with weights that are not divided;
  the others are dense. With `attention_bias`, untied.
- `qwen3_5`: 4 layers: three with linear attention, 2 heads of 48 for q and k and of 32 for v, then a full one, whose heads of 32 have output
  gates and 8 rotated dimensions. T = 63, 64, 129: transformers computes linear attention by chunks of 64 tokens.
- `qwen3_5_wide`: 4 layers, of which the second and the last have linear attention, with 2 heads of 16 for q and k and 4 heads of 32
  for v. 8 of the 16 dimensions of a head of the others rotate. Untied. T = 65, 127, 128.
- `qwen3_5_moe`: a layer with linear attention and a full one, each with 6 experts of 32, 2 of them for a token, and a shared expert of 48. The
  tensors of experts are those of all experts of a layer, as published. Untied. T = 5, 64, 67.
- `qwen3_next`: 4 layers, of which the second and the last are full; the third is dense, the others have 5 experts of 16, 3 for a token, and a
  shared expert of 32. The input rows of linear attention are grouped by the 2 heads of 16 for q and k, with 3 heads of 32 for v each.
  Untied. T = 23, 65, 7.
- `glm4_moe`: a dense layer and one with 6 experts of 32, 2 of them for a token by sigmoids with corrections, and a shared expert of 32. Bias on q, k
  and v; half of a head of 32 rotates. `config.json` has the keys of transformers 4. Untied.
- `glm4_moe_groups`: 4 layers, of which the first two are dense, with 8 experts of 16 in 4 groups: a token chooses 3 in 2 groups. Factor 2.5 on
  weights; a shared expert of 2 x 16; norms of heads, a quarter of which rotates. Untied.
- `deepseek_v2`: a dense layer and one with 5 experts of 16, 2 of them for a token by a softmax of which nothing is divided, and a shared expert of
  2 x 16. Latents of 40 and 8 rotated elements; `yarn` with an `mscale_all_dim` of 0.707. Untied.
- `ministral3`: yarn with an attention factor of 1; 16 original positions, after each of which queries grow: by 1 + 0.4 ln 4 at the last. Heads of 32,
  where 64 / 4 is 16. Untied.
- `ministral3_window`: the same in the older form, with 24 original positions, growth 0.3, a window of 16, tied.
- `gemma4`: 4 layers, two with a window of 16 and heads of 16, then two full ones with heads of 32 and one key, which is the value before its norm; half of
  their pairs turn. A number multiplies what each layer gives; logits are capped at 3.
- `gemma4_own`: a window layer and a full one with heads of 48, whose values are products of their own; no cap, no rules of rotation in `config.json`, which has
  heads by layer. Untied.
- `gpt_oss`: sinks, biases everywhere, 5 experts of 32 with clamped gates, 2 of them for a token; layer 0 has a window of 16. `yarn` with
  `truncate` false. The tensors of experts are those of all experts of a layer, transposed. Untied.
- `gpt_oss_mxfp4`: the same with experts in blocks of MXFP4, as published. `reference.safetensors` has the log-probs, and the numbers of the
  blocks as `value.NAME`, in the order of plain files; it has no gradients.
- `gemma4_moe`: a window layer and a full one as in `gemma4`, each with a dense part of 48 and, next to it, 6 experts of 32, 2 of them for a token; the
  router has numbers of its inputs and of its experts. The tensors of experts are those of all experts of a layer.
- `gemma4_unified`: a window layer and a full one as in `gemma4`, in the class of models without encoders.
- `gemma4_e`: a window layer and a full one, and two that have their keys and values, with dense parts twice as wide; each has inputs of 16 of its own.

All have hidden 64, 2 layers unless it says 4, 4 query heads, 2 key-value heads, feed-forward 96, vocab 96.
Each folder holds `config.json`, `model.safetensors` (f32, Hugging Face names; a tied model has no `lm_head.weight`)
and `reference.safetensors`.

## reference.safetensors

`i` is 0, 1, 2: three sequences of T = 7, 33, 64 tokens, except where the list says otherwise, each run alone (batch of
one, no padding). V = 96. Integers are i64, the rest f32.

| tensor | shape | meaning |
|---|---|---|
| `seq{{i}}.input_ids` | [T] | uniformly random tokens |
| `seq{{i}}.logits` | [T, V] | logits at every position, temperature 1, after caps and scaling |
| `seq{{i}}.log_probs` | [T-1] | element t is log p(input_ids[t+1] given input_ids[0..=t]), natural log |
| `seq{{i}}.entropy` | [T] | -sum over V of p log p at every position, nats |
| `seq{{i}}.greedy` | [20] | the 20 tokens after input_ids by argmax; no stop token |
| `seq{{i}}.greedy_margin` | [20] | best logit minus second-best logit at each of those steps |
| `loss` | [1] | -(sum of all log_probs of the three sequences) / (number of them): mean over tokens, not over sequences |
| `grad.NAME` | as NAME | gradient of `loss` for NAME of `model.safetensors`; a tied weight has the sum of both uses |
| `grad_norm` | [1] | square root of the sum of squares of all `grad.*`, a tied weight counted once |
| `adamw.NAME` | as NAME | parameter after one AdamW step from zero moments |

AdamW: lr 1e-3, beta1 0.9, beta2 0.95, eps 1e-8, decoupled weight decay 0.01 on every parameter (norms and biases too),
bias correction on, no clipping: w ← w·(1 − lr·decay), then w ← w − lr · m̂ / (sqrt(v̂) + eps).

## Rounding

The same numbers were computed from the same weights in float64. (There, too, transformers keeps the norms, the rope
tables, the softmax of attention and the rule of linear attention in float32, so this measures the matrix products and
sums, not everything.)
`d …` is the largest absolute difference between the two. The greedy tokens are the same in both.

{table}

`small grads` counts weights whose gradient is below 1e-6 (an embedding row that no sequence uses has gradient 0; a bias on
k has no effect where softmax cancels it). The first AdamW step moves a weight by about lr · sign(gradient), so rounding in
such a gradient can change the result by up to 2e-3. Compare `adamw.*` where the gradient is larger, or feed the stored
`grad.*` to the optimizer.
"""

if __name__ == "__main__":
    main()
