#!/usr/bin/env python3
"""Several ranks on one card, each a host of its own: do cards of different hosts leave the bits of one rank, and does NCCL stay within its row?

    bench/one_card_ranks.py BINARY [--models nano,0.5b] [--ranks 2,4] [--a-host N] [--exchanges sockets,nccl] [--set KEY=VALUE] [--results FILE]

Each rank, or with --a-host N each N of them, has its own process namespace (root), its own NCCL_HOSTID, and transports between cards of one host off, so that everything
passes through sockets of the loopback: bits, memory and faults are those of several hosts, speed is not. What NCCL takes of the card is
the difference between the most memory in use with it and with our own sockets, a rank."""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import threading

APART = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
MODELS = {
    "nano": ("8GiB", ["eval.prompts_max=20"]),
    "0.5b": (
        "18GiB",
        [
            "model=random:qwen2.5-0.5b", "rollout.prompts_per_step=16", "rollout.max_new_tokens=64",
            "train.micro_batch_tokens=4096", "eval.every=100000", "eval.prompts_max=20", "loss.entropy_coef=0.01",
        ],
    ),
}
LIMIT_S = 300


class Card:
    """The most MiB of the card in use between its start and its end."""

    def __enter__(self):
        self.most, self.is_over = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self.is_over.wait(0.3):
            self.most = max(self.most, int(subprocess.run(words, capture_output=True, text=True).stdout.split()[0]))

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def left(run):
    """Returns the SHA-256 of every file of tensors in a run's last checkpoint."""
    files = sorted((run / "checkpoints" / "latest").resolve().rglob("*.safetensors"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def train(binary, model, ranks, hosts, exchange, folder, more):
    """Trains three steps of a model that has a share of the card. Returns as `run` does."""
    share, sets = MODELS[model]
    return run(binary, ranks, hosts, exchange, folder, [f"memory.device={share}", *sets, *more])


def run(binary, ranks, hosts, exchange, folder, sets, is_apart=False, limit_s=LIMIT_S):
    """Trains three steps; each host sees one card of its own if `is_apart`. Returns what they leave, the plan, and the most MiB of the first
    card in use."""
    sets = ["run.device=cuda", "train.steps=3", f"run.dir={folder}", f"run.exchange={exchange}", *sets]
    words = [binary, "train", "runs/first.toml", "--quiet", *(word for one in sets for word in ("--set", one))]
    port = random.randrange(20000, 40000)
    with Card() as card:
        started = []
        for host in range(hosts):
            env = dict(os.environ, NCCL_HOSTID=f"host{host}", NCCL_SOCKET_IFNAME="lo", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
            flags = ["--ranks", ranks, "--hosts", hosts, "--host-rank", host, "--join", f"127.0.0.1:{port}"]
            flags = [str(flag) for flag in flags] if ranks > 1 else []
            env["PLIMSOLL_TOKEN"] = "a secret of one card"
            if is_apart:
                env["CUDA_VISIBLE_DEVICES"] = str(host)
            started.append(subprocess.Popen([*APART, *words, *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        try:
            outputs = [one.communicate(timeout=limit_s)[0] for one in started]
        finally:
            [one.kill() for one in started]
    for one, output in zip(started, outputs):
        assert one.returncode == 0, output
        assert "over-the-line" not in output, output
    norms = [float(norm) for norm in re.findall(r'"grad_norm":([^,}]+)', (folder / "events.jsonl").read_text())]
    assert norms and min(norms) > 0, f"nothing was learned: {norms}"
    plan = json.loads((folder / "plan.json").read_text())
    return left(folder), plan, card.most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--models", default="nano,0.5b")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--a-host", type=int, default=1, help="ranks of a host, which share the card by its own means: with sockets alone")
    parser.add_argument("--exchanges", default="sockets,nccl")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the run file, for one rank and for several")
    parser.add_argument("--results", type=pathlib.Path)
    args = parser.parse_args()
    card = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    lines = [
        "# Ranks of several hosts on one card", "",
        f"By `bench/one_card_ranks.py`, on {card.stdout.strip()}: three steps of GRPO, every rank a host. Speed is not measured.", "",
        *([f"{args.a_host} ranks a host; {', '.join(args.set) or 'nothing else set'}.", ""] if args.set or args.a_host > 1 else []),
        "| model | ranks | exchange | tensors that differ from one rank's | most of the card in use | NCCL, a rank | its row |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            alone, _, _ = train(args.binary.resolve(), model, 1, 1, "auto", pathlib.Path(folder) / "one", args.set)
        for ranks in map(int, args.ranks.split(",")):
            in_use = {}
            for exchange in args.exchanges.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    hosts = ranks // args.a_host
                    run = train(args.binary.resolve(), model, ranks, hosts, exchange, pathlib.Path(folder) / "run", args.set)
                found, plan, in_use[exchange] = run
                differ = sum(found.get(name) != value for name, value in alone.items())
                rows = {row["name"]: row["bytes"] for row in plan["regions"]}
                name = plan.get("libraries_source", "").rpartition(" by ")[2] if exchange == "nccl" else "sockets"
                more = row = ""
                if exchange == "nccl" and "sockets" in in_use:
                    more = f"{(in_use['nccl'] - in_use['sockets']) / ranks:.0f} MiB"
                    row = f"{rows.get('device.nccl', 0) / 2**20:.0f} MiB"
                lines.append(f"| {model} | {ranks} | {name} | {differ} of {len(alone)} | {in_use[exchange]} MiB | {more} | {row} |")
                print(lines[-1], flush=True)
    if args.results:
        args.results.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
