"""Measures a training step of PyTorch: trained tokens per second of forward, backward and AdamW.

B sequences of T random tokens, next-token loss; weights, gradients and AdamW's moments in bf16; no checkpointing.
--compiled 1 runs the model through torch.compile, --liger 1 with Liger's kernels. Run by compare.py and h200.py (see
server.py).
"""

import server  # First: it takes stdout.

import importlib

import torch

import hf


def main():
    args = server.arguments(
        __doc__, devices=hf.DEVICES, sequences=4, sequence_tokens=256, compiled=0, liger=0, warm_up=2,
    )
    device = hf.Device(args)
    model = hf.model(args.model, device)
    model.config.use_cache = False
    model.train()
    if args.liger:
        liger = importlib.import_module("liger_kernel.transformers")
        getattr(liger, f"apply_liger_kernel_to_{model.config.model_type}")(model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    forward = torch.compile(model) if args.compiled else model

    def step(seed):
        """Tokens/s of one step on new tokens."""
        torch.manual_seed(seed + 1)
        tokens = hf.random_tokens(model, args.sequences, args.sequence_tokens)  # [B, T]
        started = device.now()
        forward(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"value": args.sequences * args.sequence_tokens / (device.now() - started), **device.memory()}

    for _ in range(args.warm_up):  # Compilation and tuning fall here, and the moments are made.
        step(-1)
    device.forget_peak()
    state_dtypes = {str(value.dtype) for value in next(iter(optimizer.state.values())).values() if value.dim() > 0}
    assert state_dtypes == {"torch.bfloat16"}, state_dtypes
    packages = ["torch", "transformers"] + (["liger-kernel"] if args.liger else [])
    server.ready(packages, **device.facts())
    server.serve(step)


if __name__ == "__main__":
    main()
