"""Rollout by transformers' generate() on the CPU: generated tokens per second of the whole call, prefill included.

B sequences with distinct prompts of random tokens, bf16 weights, temperature 1, no truncation; every completion is
forced to its full length. Run by compare.py (see server.py).
"""

import server  # First: it takes stdout.

import time

import torch
from transformers import AutoModelForCausalLM

TOKEN_RANGE = (100, 40_000)  # Ordinary tokens of SmolLM2: no control token among them.


def main():
    args = server.arguments(__doc__, sequences=32, prompt_tokens=64, new_tokens=64)
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()
    generate(model, args, seed=-1, new_tokens=4)  # Warm-up.
    server.ready(["torch", "transformers"], threads=torch.get_num_threads())
    server.serve(lambda number: {"value": generate(model, args, number, args.new_tokens)})


def generate(model, args, seed, new_tokens):
    """Tokens/s of one call on new prompts."""
    torch.manual_seed(seed + 1)
    prompts = torch.randint(*TOKEN_RANGE, (args.sequences, args.prompt_tokens))  # [B, P]
    mask = torch.ones_like(prompts)
    started = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            prompts, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=new_tokens, max_new_tokens=new_tokens, pad_token_id=0,
        )
    seconds = time.perf_counter() - started
    assert out.shape == (args.sequences, args.prompt_tokens + new_tokens), out.shape
    return args.sequences * new_tokens / seconds


if __name__ == "__main__":
    main()
