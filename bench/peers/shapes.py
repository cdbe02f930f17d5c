"""Shapes of the models that `random:PRESET` names, as crates/arch/src/model_spec.rs has them. Imports nothing heavy."""

from typing import NamedTuple

RANDOM = "random:"


class Shape(NamedTuple):
    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rms_eps: float
    rope_theta: float
    max_positions: int
    tied: bool = True  # Whether the head is the embedding.


SHAPES = {
    "nano": Shape("llama", 15, 128, 4, 2, 2, 64, 384, 1e-6, 1e3, 64),
    "smollm2-135m": Shape("llama", 49152, 576, 30, 9, 3, 64, 1536, 1e-5, 1e5, 8192),
    "qwen2.5-0.5b": Shape("qwen2", 151936, 896, 24, 14, 2, 64, 4864, 1e-6, 1e6, 32768),
    "qwen2.5-1.5b": Shape("qwen2", 151936, 1536, 28, 12, 2, 128, 8960, 1e-6, 1e6, 32768),
    "qwen2.5-3b": Shape("qwen2", 151936, 2048, 36, 16, 2, 128, 11008, 1e-6, 1e6, 32768),
    "qwen2.5-7b": Shape("qwen2", 152064, 3584, 28, 28, 4, 128, 18944, 1e-6, 1e6, 32768, tied=False),
}
