"""Saves the state of a training step with PyTorch: weights in bf16, master copy and both moments in f32.

Prints one JSON object: seconds, bytes, and how far anonymous memory grew.

    plain     torch.save to a file, while nothing else runs
    gathered  clones every tensor first, as trainers do that gather a state to save it
    async     torch.distributed.checkpoint.async_save, which lets training continue: it copies the state before it returns

Run by ../save.py in a container whose limit is a tenth above what the state and its training take.
"""

import argparse
import json
import os
import shutil
import time

import torch


def anonymous_bytes():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def save_file(state, out):
    """torch.save, to the disk; the bytes written."""
    with open(out, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return os.path.getsize(out)


def save_gathered(state, out):
    return save_file({name: tensor.clone() for name, tensor in state.items()}, out)


def save_async(state, out):
    """Saves to a folder while the caller could continue. Returns its bytes."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dcp.async_save(state, checkpoint_id=out).result()
    return sum(entry.stat().st_size for entry in os.scandir(out))


HOW = {"plain": save_file, "gathered": save_gathered, "async": save_async}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=134_515_008, help="SmolLM2-135M")
    parser.add_argument("--out", default="torch_save.pt")
    parser.add_argument("--how", choices=HOW, default="plain")
    args = parser.parse_args()
    state = {"weights": torch.zeros(args.parameters, dtype=torch.bfloat16)}
    for name in ("master", "exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros(args.parameters)
    for tensor in state.values():
        tensor.add_(1)  # Touched, as a trained state is.
    before, started = anonymous_bytes(), time.monotonic()
    size = HOW[args.how](state, args.out)
    seconds, grown = time.monotonic() - started, anonymous_bytes() - before
    shutil.rmtree(args.out) if os.path.isdir(args.out) else os.remove(args.out)
    print(json.dumps({"seconds": seconds, "bytes": size, "anonymous_growth_bytes": grown, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
