#!/usr/bin/env python3
"""Trains with weights that arrive in the middle of responses, by the clock, and follows each run's `schedule.jsonl`.

    python3 bench/replays.py BINARY [--runs 20] [--write]

A run of two ranks, one of which only samples, writes down at which tick the weights of each step arrived. Runs that
follow its schedule, on one rank, on two of both kinds and on three, must leave the same: weights, optimizer states,
samples and all metrics that no clock decides, to the bit.

Writes bench/results/replays.json and replays.md with --write. Exit code 0 if all is equal and weights arrived in the
middle of responses in some run. Linux only; standard library only.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import kills
import machine
import results

RESULTS = kills.ROOT / "bench" / "results" / "replays.json"
RUN = kills.RUN.replace("carry = 3", "ahead = 2").replace("STEPS", "12").replace("prompts_per_step = 2", "prompts_per_step = 8")
# Ranks of all kinds, and those that only sample.
FOLLOWERS = {"one rank": (1, 0), "one of each kind": (2, 1), "one that trains, two that sample": (3, 2)}


def main():
    args = arguments()
    rows = [row(args.binary, seed) for seed in range(args.runs)]
    entry = {
        "command": f"bench/replays.py BINARY --runs {args.runs} --write", "commit": machine.commit(kills.ROOT),
        "machine": machine.facts(), "rows": rows,
    }
    differs = sum(len(of) for row in rows for of in row["differs"].values())
    print(json.dumps({"runs": len(rows), "in_the_middle": [row["in_the_middle"] for row in rows], "differs": differs}))
    if args.write:
        results.write(RESULTS, entry, page)
    sys.exit(1 if differs or not any(row["in_the_middle"] for row in rows) else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def row(binary, seed):
    """Trains one run by the clock and those that follow it."""
    with tempfile.TemporaryDirectory() as folder:
        file, live = Path(folder, "run.toml"), Path(folder, "live")
        file.write_text(RUN)
        train(binary, file, live, seed, (2, 1), "tick")
        schedule = live / "schedule.jsonl"
        arrived = kills.lines(schedule)
        found = {"seed": seed, "arrivals": len(arrived), "in_the_middle": sum(line["tick"] > 0 for line in arrived)}
        wanted, found["differs"] = kills.left(live), {}
        for name, ranks in FOLLOWERS.items():
            again = Path(folder, f"again-{ranks[0]}")
            train(binary, file, again, seed, ranks, schedule)
            of = kills.left(again)
            found["differs"][name] = sorted(key for key in wanted.keys() | of.keys() if wanted.get(key) != of.get(key))
        found["compared"] = len(wanted)
        return found


def train(binary, file, folder, seed, ranks, arrivals):
    sets = [f"seed={seed}", f"rollout.arrivals={arrivals}", f"run.rollout_ranks={ranks[1]}"]
    words = [word for one in sets for word in ("--set", one)]
    kills.end(kills.run(binary, file, folder, *words, *(["--ranks", str(ranks[0])] if ranks[0] > 1 else [])))


def page(entry):
    rows = entry["rows"]
    cells = lambda row: [  # noqa: E731
        str(row["seed"]), str(row["arrivals"]), str(row["in_the_middle"]), str(row["compared"]),
        *(str(len(row["differs"][name])) for name in FOLLOWERS),
    ]
    head = ["seed", "arrivals", "in the middle", "compared", *(f"differs on {name}" for name in FOLLOWERS)]
    return "\n".join(
        [
            "# Runs by the clock, and runs that follow them",
            "",
            "Weights that arrive in the middle of responses ([docs/async.md](../../docs/async.md)): a run by the clock, and three that",
            "follow its `schedule.jsonl`. Compared: weights, optimizer states, samples, and the metrics of every step.",
            "",
            *results.table(head, map(cells, rows)),
            "",
            f"`{entry['command']}`, {entry['commit']}, {entry['machine']['cpu']}",
            "",
        ]
    )


if __name__ == "__main__":
    main()
