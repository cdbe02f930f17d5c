"""Measures rollout with transformers' generate(): generated tokens per second of the whole call, including prefill.

B sequences with distinct prompts of random tokens, bf16 weights, temperature 1, no truncation; every completion is
forced to its full length. Run by compare.py and h200.py (see server.py).
"""

import server  # First: it takes stdout.

import torch

import hf


def main():
    args = server.arguments(__doc__, devices=hf.DEVICES, sequences=32, prompt_tokens=64, new_tokens=64)
    device = hf.Device(args)
    model = hf.model(args.model, device).eval()
    generate(model, device, args, seed=-1, new_tokens=4)  # Warm-up.
    server.ready(["torch", "transformers"], **device.facts())
    server.serve(lambda number: generate(model, device, args, number, args.new_tokens))


def generate(model, device, args, seed, new_tokens):
    """Tokens/s of one call on new prompts."""
    torch.manual_seed(seed + 1)
    prompts = hf.random_tokens(model, args.sequences, args.prompt_tokens)  # [B, P]
    mask = torch.ones_like(prompts)
    started = device.now()
    with torch.inference_mode():
        out = model.generate(
            prompts, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=new_tokens, max_new_tokens=new_tokens, pad_token_id=0,
        )
    seconds = device.now() - started
    assert out.shape == (args.sequences, args.prompt_tokens + new_tokens), out.shape
    return {"value": args.sequences * new_tokens / seconds, **device.memory()}


if __name__ == "__main__":
    main()
