"""A training step of PyTorch on the CPU: trained tokens per second of forward, backward and AdamW.

B sequences of T random tokens, next-token loss; weights, gradients and AdamW's moments in bf16; no checkpointing.
--compiled 1 runs the model through torch.compile. Run by compare.py (see server.py).
"""

import server  # First: it takes stdout.

import time

import torch
from transformers import AutoModelForCausalLM

TOKEN_RANGE = (100, 40_000)  # Ordinary tokens of SmolLM2: no control token among them.


def main():
    args = server.arguments(__doc__, sequences=4, sequence_tokens=256, compiled=0)
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    forward = torch.compile(model) if args.compiled else model

    def step(seed):
        """Tokens/s of one step on new tokens."""
        torch.manual_seed(seed + 1)
        tokens = torch.randint(*TOKEN_RANGE, (args.sequences, args.sequence_tokens))  # [B, T]
        started = time.perf_counter()
        forward(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return args.sequences * args.sequence_tokens / (time.perf_counter() - started)

    step(-1)  # Compilation falls here, and the moments are made.
    step(-1)
    state_dtypes = {str(value.dtype) for value in next(iter(optimizer.state.values())).values() if value.dim() > 0}
    assert state_dtypes == {"torch.bfloat16"}, state_dtypes
    server.ready(["torch", "transformers"], threads=torch.get_num_threads())
    server.serve(lambda number: {"value": step(number)})


if __name__ == "__main__":
    main()
