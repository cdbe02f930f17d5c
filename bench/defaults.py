#!/usr/bin/env python3
"""What a config.json leaves out: the defaults of transformers' configuration classes, for the keys that Plimsoll reads.

    bench/defaults.py --write    writes the table that the reader uses, and its page in the docs
    bench/defaults.py --check    exits with 1 where the table differs from the transformers that is installed

Needs transformers alone; PyTorch is not imported. The table is crates/files/src/config/defaults.json.
"""

import argparse
import inspect
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "crates/files/src/config/defaults.json"
PAGE = ROOT / "docs/internals/config-defaults.md"

# `model_type` of each family that is built, and of each that has another name in a model of text and images; its class.
CLASSES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "qwen3_moe": "Qwen3MoeConfig",
    "qwen3_5_text": "Qwen3_5TextConfig",
    "qwen3_5_moe_text": "Qwen3_5MoeTextConfig",
    "qwen3_next": "Qwen3NextConfig",
    "glm4_moe": "Glm4MoeConfig",
    "mistral": "MistralConfig",
    "ministral3": "Ministral3Config",
    "smollm3": "SmolLM3Config",
    "olmo2": "Olmo2Config",
    "olmo3": "Olmo3Config",
    "gemma2": "Gemma2Config",
    "gemma3_text": "Gemma3TextConfig",
    "gemma4_text": "Gemma4TextConfig",
    "gemma4_unified_text": "Gemma4UnifiedTextConfig",
    "granite": "GraniteConfig",
    "phi3": "Phi3Config",
    "deepseek_v2": "DeepseekV2Config",
    "deepseek_v3": "DeepseekV3Config",
    "glm4_moe_lite": "Glm4MoeLiteConfig",
    "gpt_oss": "GptOssConfig",
    "qwen2_5_vl_text": "Qwen2_5_VLTextConfig",
    "qwen3_vl_text": "Qwen3VLTextConfig",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextConfig",
}

# Keys that the reader reads, but for lists of layers and rotary rules, which have no defaults of their own.
KEYS = """
vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias mlp_bias
use_sliding_window sliding_window max_window_layers no_rope_layer_interval
query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping
embedding_multiplier residual_multiplier logits_scaling attention_multiplier
original_max_position_embeddings partial_rotary_factor
num_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step norm_topk_prob router_aux_loss_coef
shared_expert_intermediate_size
n_routed_experts n_shared_experts n_group topk_group routed_scaling_factor first_k_dense_replace use_qk_norm
kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
linear_conv_kernel_dim linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim
""".split()


def raw_defaults(cls):
    """Returns what an attribute is before the class settles it: None where it follows from others."""
    signature = inspect.signature(cls.__init__).parameters.values()
    stated = {p.name: p.default for p in signature if p.default is not inspect.Parameter.empty}
    found = {key: stated.get(key, getattr(cls, key, None)) for key in KEYS}
    # A class may take an attribute of its parent away.
    return {key: None if isinstance(value, Exception) else value for key, value in found.items()}


def rotary(config):
    """Returns the bases of rotation and the rotated part, of transformers 4's attributes or 5's rules."""
    rules = getattr(config, "rope_parameters", None)
    if rules is None:
        found = {key: getattr(config, key, None) for key in ("rope_theta", "rope_local_base_freq")}
        return found | {"partial_rotary_factor": getattr(config, "partial_rotary_factor", None)}
    full = rules.get("full_attention", rules)
    local = rules.get("sliding_attention", {}).get("rope_theta")
    found = {"rope_theta": full["rope_theta"], "partial_rotary_factor": full.get("partial_rotary_factor")}
    # A base that is the same is no base of its own.
    return found | {"rope_local_base_freq": local if local != full["rope_theta"] else None}


def interval(config):
    """Returns n where every n-th layer alone sees all keys, and the key that changes it."""
    types = list(getattr(config, "layer_types", None) or [])
    if "full_attention" not in types[1:] or types[0] == "full_attention":
        return {}
    key = "full_attention_interval" if types[0] == "linear_attention" else "sliding_window_pattern"
    return {key: types.index("full_attention") + 1}


def table():
    """Returns the defaults by family; what is None, and what is not read, is left out."""
    import transformers

    found = {}
    for family, name in CLASSES.items():
        cls = getattr(transformers, name, None)
        if cls is None:
            print(f"{family}: transformers {transformers.__version__} has no {name}", file=sys.stderr)
            continue
        config = cls()
        values = raw_defaults(cls) | rotary(config) | interval(config)
        found[family] = {key: value for key, value in values.items() if value is not None}
    return found, transformers.__version__


def text_of(families):
    rows = ",\n".join(
        f'  "{family}": {{\n'
        + ",\n".join(f'    "{key}": {json.dumps(value)}' for key, value in sorted(values.items()))
        + "\n  }"
        for family, values in families.items()
    )
    return "{\n" + rows + "\n}\n"


def page_of(families, version):
    keys = sorted({key for values in families.values() for key in values})
    head = "| key | " + " | ".join(f"`{family}`" for family in families) + " |\n"
    rule = "|---|" + "---|" * len(families) + "\n"
    cell = lambda value: "" if value is None else json.dumps(value)
    body = "".join(
        f"| `{key}` | " + " | ".join(cell(values.get(key)) for values in families.values()) + " |\n" for key in keys
    )
    return f"""# What a `config.json` may leave out

A key that a file does not have is what transformers makes of it. This table is read from the configuration classes of
transformers {version} by `bench/defaults.py --write`. The reader uses the same table, and CI compares it with the newest transformers.

An empty cell is a key that the family does not have or that follows from others: `head_dim` is then `hidden_size / num_attention_heads`, and
`num_key_value_heads` is `num_attention_heads`. The sizes of a model (`hidden_size` and the like) must be written, but in a `text_config`.

{head}{rule}{body}"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the table and its page")
    what.add_argument("--check", action="store_true", help="compare the table with the installed transformers")
    args = parser.parse_args()
    families, version = table()
    if args.write:
        TABLE.write_text(text_of(families))
        PAGE.write_text(page_of(families, version))
        return 0
    ours = json.loads(TABLE.read_text())
    different = [
        f"{family}.{key}: the table says {ours.get(family, {}).get(key)}, transformers {version} {values.get(key)}"
        for family, values in families.items()
        for key in sorted(values.keys() | ours.get(family, {}).keys())
        if values.get(key) != ours.get(family, {}).get(key)
    ]
    print("\n".join(different) or f"{len(families)} families: the table is that of transformers {version}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
