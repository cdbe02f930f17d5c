#!/usr/bin/env python3
"""Measures how near this machine's limits `plimsoll bench` comes, on each instruction path in turn.

    python bench/limits.py target/release/plimsoll [--model random:smollm2-135m] [--repeats 3] [--paths amx,avx512bf16]

The work is that of compare.py: `rollout`, `train` and `step` with their default sizes. Every round runs each part once
on each path, every other round in the opposite order; each run is a new process that warms up, measures itself, and
measures the peaks right after. Prints a table of medians over the runs that others did not disturb, how many these
are, and the least and largest share among them.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import environments
import machine
import results

QUIET_CORES = 0.2  # Others may use this much; the kernel and what watches a machine take some.
PARTS = ["rollout", "train", "step"]
FLAGS = {"amx": "amx_bf16", "avx512bf16": "avx512_bf16", "avx2": "avx2"}  # Instruction path -> what it needs.
HEAD = ["path", "work", "phase", "GFLOP", "GB", "s", "GFLOP/s", "GB/s", "peak GFLOP/s", "peak GB/s", "bound", "share", "least to most", "runs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", default="random:smollm2-135m")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--paths", default=",".join(paths_here()), help="instruction paths, by commas; default: this machine's")
    options = parser.parse_args()
    turns = [(path, part) for part in PARTS for path in options.paths.split(",")]
    runs = {turn: [] for turn in turns}
    for number in range(options.repeats):
        for path, part in turns[:: 1 if number % 2 == 0 else -1]:
            runs[path, part].append(once(options, path, part))
            environments.say(f"{number + 1}: {part} on {path}: {runs[path, part][-1]['limits']}")
    print("\n".join(results.table(HEAD, rows(runs))))


def paths_here():
    """Returns this machine's paths with vectors, fastest first. What lets a program use tiles may still refuse them."""
    flags = machine.facts()["cpu_flags"]
    return [path for path, flag in FLAGS.items() if flag in flags]


def once(options, path, part):
    """Runs one part in a new process. Returns its limits, the peaks, and how many cores others used meanwhile."""
    command = [options.binary, "bench", part, "--model", options.model, "--device", "cpu", "--repeats", "1", "--json"]
    before = os.times()
    used = lambda: sum(os.times()[2:4]) - sum(before[2:4])
    with machine.OtherCores(used) as others:
        done = subprocess.run(command, env={**os.environ, "PLIMSOLL_ISA": path}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{part} on {path}: {done.stderr}")
    result = json.loads(done.stdout)
    return {"limits": result["limits"], "peak": result["peak"], "other_cores": others.cores}


def rows(runs):
    for (path, part), of_turn in runs.items():
        quiet = [run for run in of_turn if run["other_cores"] <= QUIET_CORES]
        for phase in ("rollout", "update"):
            if of := [(run["limits"][phase], run["peak"]) for run in quiet if run["limits"][phase]]:
                yield [path, part, phase, *cells(of), f"{len(of)} of {len(of_turn)}"]


def cells(of):
    """Returns the cells of a phase. `of`: (its numbers, the peaks) of each round."""
    middle = lambda value: median(value(phase, peak) for phase, peak in of)
    numbers = [
        middle(lambda phase, _: phase["flops"] / 1e9), middle(lambda phase, _: phase["bytes"] / 1e9),
        middle(lambda phase, _: phase["seconds"]), middle(lambda phase, _: phase["flops"] / phase["seconds"] / 1e9),
        middle(lambda phase, _: phase["bytes"] / phase["seconds"] / 1e9), middle(lambda _, peak: peak["flops"] / 1e9),
        middle(lambda _, peak: peak["bandwidth"] / 1e9),
    ]
    reads, computes = numbers[1] / numbers[6], numbers[0] / numbers[5]
    shares = [phase["share"] for phase, _ in of]
    return [
        *map(results.number, numbers), "memory" if reads > computes else "arithmetic", f"{median(shares):.0%}",
        f"{min(shares):.0%} to {max(shares):.0%}",
    ]


if __name__ == "__main__":
    main()
