"""Trains a run with and without `rollout.carry`, over several seeds: does it learn as well in as many trained samples,
and are long responses trained as often as short ones?

    python3 bench/carry.py BINARY runs/first.toml --carry 32 --seeds 5 [--set train.steps=100 ...] [--jobs 1] \
        --name first [--write]

Writes bench/results/carry.json (one entry a name, others stay), bench/results/carry.md and docs/images/carry-NAME.svg.
Standard library only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine
import overlay_picture
import results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "carry.json"
POINTS = 0.02
LENGTH_SHARE = 0.01


def main():
    args = arguments()
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = {which: [pool.submit(train, args, which, seed) for seed in range(args.seeds)] for which in ("carry", "sync")}
        found = {which: [one.result() for one in runs] for which, runs in waiting.items()}
    entry = summary(args, found)
    print(json.dumps({key: value for key, value in entry.items() if key != "curves"}, indent=2))
    if args.write:
        store(args.name, entry)
    sys.exit(0 if entry["learns"] and entry["lengths_agree"] else 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("run")
    parser.add_argument("--carry", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--name", required=True)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def train(args, which, seed):
    """Trains one run. Returns its score, curve, mean length of trained responses, seconds and metrics of the carry."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [*args.sets, f"seed={seed}", f"run.dir={folder}/out"]
        sets += [f"rollout.carry={args.carry}"] if which == "carry" else []
        words = [args.binary.resolve(), "train", args.run, "--json", *(word for one in sets for word in ("--set", one))]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{which}, seed {seed}: {done.stderr.strip().splitlines()[-1:]}")
        summary_of = json.loads(done.stdout)
        events = [json.loads(line) for line in Path(folder, "out", "events.jsonl").read_text().splitlines()]
    steps = [event["metrics"] for event in events if "completions/mean_length" in event.get("metrics", {})]
    column = lambda name: [step[name] for step in steps if step.get(name) is not None]  # noqa: E731
    return {
        "score": summary_of["eval_after"],
        "seconds": summary_of["seconds"],
        "rewards": column("reward"),
        "lengths": column("completions/mean_length"),
        "stale_share": statistics.fmean(column("rollout/stale_share") or [0.0]),
        "staleness": statistics.fmean(column("rollout/staleness") or [0.0]),
    }


def summary(args, found):
    mean = lambda which, of: statistics.fmean(of(one) for one in found[which])  # noqa: E731
    scores = {which: [one["score"] for one in runs] for which, runs in found.items()}
    lengths = {which: mean(which, lambda one: statistics.fmean(one["lengths"])) for which in found}
    short = statistics.fmean(scores["sync"]) - statistics.fmean(scores["carry"])
    apart = abs(lengths["carry"] / lengths["sync"] - 1)
    return {
        "command": f"bench/carry.py BINARY {args.run} --carry {args.carry} --seeds {args.seeds}"
        + "".join(f" --set {one}" for one in args.sets)
        + f" --name {args.name} --write",
        "commit": machine.commit(ROOT),
        "machine": machine.facts(),
        "scores": scores,
        "length_mean": lengths,
        "seconds": {which: mean(which, lambda one: one["seconds"]) for which in found},
        "stale_share": mean("carry", lambda one: one["stale_share"]),
        "staleness": mean("carry", lambda one: one["staleness"]),
        "short_of_sync": short,
        "learns": short <= POINTS,
        "length_apart": apart,
        "lengths_agree": apart <= LENGTH_SHARE,
        "curves": {name: curves(found, name) for name in ("rewards", "lengths")},
    }


def curves(found, name):
    """Returns [mean, least, greatest] over the seeds for each step, for both."""
    band = lambda values: [statistics.fmean(values), min(values), max(values)]  # noqa: E731
    of = lambda runs: [band(step) for step in zip(*(one[name] for one in runs), strict=False)]  # noqa: E731
    return {"ours": of(found["carry"]), "theirs": of(found["sync"])}


def store(name, entry):
    entries = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    picture = overlay_picture.draw(entry.pop("curves"), "synchronous", "with carry")
    entries[name] = entry
    results.write(RESULTS, dict(sorted(entries.items())), page)
    (ROOT / "docs" / "images" / f"carry-{name}.svg").write_text(picture)


def page(entries):
    head = ["run", "seeds", "score, synchronous", "score, carried", "mean length, synchronous", "carried", "stale tokens"]
    spread = lambda values: f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"  # noqa: E731
    rows = [
        [
            f"`{name}`",
            str(len(one["scores"]["carry"])),
            spread(one["scores"]["sync"]),
            spread(one["scores"]["carry"]) + ("" if one["learns"] else " **falls short**"),
            f"{one['length_mean']['sync']:.2f}",
            f"{one['length_mean']['carry']:.2f} ({100 * one['length_apart']:.2f} % apart)",
            f"{100 * one['stale_share']:.0f} %",
        ]
        for name, one in entries.items()
    ]
    said = [f"* `{name}`: `{one['command']}`, {one['commit']}, {one['machine']['cpu']}" for name, one in entries.items()]
    pictures = [f"![{name}](../../docs/images/carry-{name}.svg)" for name in entries]
    return "\n".join(
        [
            "# Runs with carried responses",
            "",
            "The same run with and without `rollout.carry`, in as many trained samples ([docs/async.md](../../docs/async.md)).",
            "",
            *results.table(head, rows),
            "",
            *said,
            "",
            *pictures,
            "",
        ]
    )


if __name__ == "__main__":
    main()
