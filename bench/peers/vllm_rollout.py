"""Measures rollout with vLLM on a GPU: one engine for all rows of a model, because an engine takes a minute to start.

    python3 bench/peers/vllm_rollout.py --model random:qwen2.5-7b --rows 64:64:256:0:3,64:64:256:1:3

A row is SEQUENCES:PROMPT_TOKENS:NEW_TOKENS:LOGPROBS:REPEATS; with LOGPROBS 1 vLLM returns the chosen token's. Prompts are
distinct and random, lengths forced, temperature 1; the whole call is timed. Prints one JSON object for each row as soon
as it ends: {row, median, min, max, repeats, versions}. vLLM fills random:PRESET with its own dummy weights (bf16, small).
Run by h200.py.
"""

import server  # First: it takes stdout.

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from shapes import RANDOM, SHAPES

# vLLM reads these when it is imported. FlashInfer is not needed: with top_p = 1 vLLM samples with its own kernel.
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
TOKENS = (3, 40_000)  # Ordinary tokens of every preset.


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="random:PRESET")
    parser.add_argument("--rows", required=True)
    args = parser.parse_args()
    rows = [tuple(map(int, row.split(":"))) for row in args.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(config(args.model.removeprefix(RANDOM)))
        (Path(folder) / "config.json").write_text(text)
        measure(folder, rows)


def config(preset):
    """The published configuration of a preset, as config.json has it."""
    shape = SHAPES[preset]
    return {
        "architectures": [CLASSES[shape.family]], "model_type": shape.family, "dtype": "bfloat16",
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.rms_eps, "rope_theta": shape.rope_theta, "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu", "tie_word_embeddings": shape.tied, "eos_token_id": 1, "pad_token_id": 0,
    }


def measure(folder, rows):
    import torch
    import transformers
    import vllm

    most = max(row[0] for row in rows)
    engine = vllm.LLM(
        model=folder, skip_tokenizer_init=True, dtype="bfloat16", load_format="dummy", max_num_seqs=most,
        max_model_len=max(512, *(prompt + new for _, prompt, new, _, _ in rows)), enable_prefix_caching=False, seed=0,
        gpu_memory_utilization=0.9,
        compilation_config={"cudagraph_capture_sizes": [2**i for i in range(11) if 2**i <= most]},
    )
    versions = {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    for row in rows:
        generate(engine, row, seed=-1)  # Warm-up.
        speeds = [generate(engine, row, seed) for seed in range(row[-1])]
        spread = {"median": median(speeds), "min": min(speeds), "max": max(speeds), "repeats": len(speeds)}
        server.answer(row=row[:4], versions=versions, **spread)


def generate(engine, row, seed):
    """Tokens/s of one call on new prompts."""
    from vllm import SamplingParams

    sequences, prompt, new, logprobs, _ = row
    draw = random.Random(seed)
    prompts = [{"prompt_token_ids": [draw.randrange(*TOKENS) for _ in range(prompt)]} for _ in range(sequences)]
    params = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, max_tokens=new, ignore_eos=True, detokenize=False,
        **({"logprobs": 0} if logprobs else {}),
    )
    started = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    assert lengths == {new} and len(outputs) == sequences, lengths
    return sequences * new / seconds


if __name__ == "__main__":
    main()
