"""Save the state of a training step as a peer does: weights, master copy and both moments with torch.save.

Prints one JSON object: seconds, bytes, and how far anonymous memory grew. Run it in a container whose limit is a tenth above
what the state takes, and the kernel ends it where a checkpoint that streams goes through:

    systemd-run --scope -p MemoryMax=BYTES python bench/peers/torch_save.py --parameters 134515008
"""

import argparse
import json
import os
import time

import torch


def anonymous_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=134_515_008, help="SmolLM2-135M")
    parser.add_argument("--out", default="torch_save.pt")
    parser.add_argument("--gathered", action="store_true", help="clone every tensor first, as sharded trainers do")
    args = parser.parse_args()
    state = {"weights": torch.zeros(args.parameters, dtype=torch.bfloat16)}
    for name in ("master", "exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros(args.parameters)
    for tensor in state.values():
        tensor.add_(1)  # touched, as a trained state is
    before = anonymous_bytes()
    started = time.monotonic()
    saved = {name: tensor.clone() for name, tensor in state.items()} if args.gathered else state
    with open(args.out, "wb") as file:
        torch.save(saved, file)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.monotonic() - started
    grown = anonymous_bytes() - before
    size = os.path.getsize(args.out)
    os.remove(args.out)
    print(json.dumps({"seconds": seconds, "bytes": size, "anonymous_growth_bytes": grown, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
