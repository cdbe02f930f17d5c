#!/usr/bin/env python3
"""Kills a run with SIGKILL again and again, resumes it each time, and compares what it leaves with an undisturbed run's.

    python3 bench/kills.py BINARY [--kills 50] [--seed 0] [--sampling carried|ahead|apart] [--write]

The run trains the built-in model with responses of many lengths: carried over steps, so that some are under way at every
moment, drawn ahead of the update, or on a rank that only samples. It saves after every step. Each kill comes some steps
and some milliseconds after the process began, drawn from a seeded generator; every third one hits the trainer alone, the
others all processes of the run.
Weights, optimizer states, samples and all metrics that no clock decides must be equal, to the bit.

Writes bench/results/kills.json and kills.md with --write. Exit code 0 if all is equal. Linux only; standard library only.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "kills.json"
# At this temperature a model of 15 tokens ends one time in fifteen, and rewards differ within every group.
RUN = """\
method = "grpo"
model = "builtin:nano"
[model_options]
positions = "extend"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 80
temperature = 20.0
[async]
ASYNC
[[reward]]
kind = "hash"
[train]
steps = STEPS
learning_rate = 1e-6
[checkpoint]
every = 1
keep = 2
"""
# Keys of `[async]`, and flags of the command.
SAMPLING = {
    "carried": ("partial_rollouts = 3", []),
    "ahead": ("staleness = 1", []),
    "apart": ("staleness = 1\nrollout_ranks = 1", ["--ranks", "2"]),
}
LATER_MS = 120  # Latest kill after the step that it waits for: a step takes about a third of it.
STEPS_LATER = 3  # It waits for 0 to 3 steps of the process.
ENDING_S = 20
# Parts of the names of metrics that depend on the clock or on what the engine drew in vain.
CLOCK = ["time/", "step_time", "per_second", "seconds", "rss", "memory", "host/", "passes", "preempt", "dropped"]


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.toml")
        file.write_text(RUN.replace("STEPS", str(3 * args.kills)).replace("ASYNC", SAMPLING[args.sampling][0]))
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        began = time.monotonic()
        end(run(args, file, whole))
        seconds = time.monotonic() - began
        kills = disturb(args, file, killed)
        differs = [name for name, of in left(whole).items() if left(killed).get(name) != of]
        under_way = [kill["carried"] for kill in kills if kill["carried"]]
        entry = {
            "command": f"bench/kills.py BINARY --kills {args.kills} --seed {args.seed} --sampling {args.sampling} --write",
            "commit": machine.commit(ROOT),
            "machine": machine.facts(),
            "steps": 3 * args.kills,
            "seconds_undisturbed": seconds,
            "kills": kills,
            "with_groups_under_way": len(under_way),
            "compared": len(left(whole)),
            "differs": differs,
        }
    print(json.dumps({key: value for key, value in entry.items() if key != "kills"}, indent=2))
    if args.write:
        results.write(RESULTS, entry, page)
    sys.exit(1 if differs or len(kills) < args.kills else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--sampling", choices=SAMPLING, default="carried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def run(args, file, folder, *flags):
    """Starts `train`, in a process group of its own."""
    words = [args.binary.resolve(), "train", file, "--set", f"run.dir={folder}", *SAMPLING[args.sampling][1], *flags]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, cwd=ROOT, start_new_session=True, text=True, **quiet)


def end(process):
    """Waits until a run has ended as it should."""
    said = process.communicate(timeout=600)[1]
    if process.returncode != 0:
        sys.exit(f"a process ended with {process.returncode}: {said}")


def disturb(args, file, folder):
    """Kills the run until it was killed often enough, and lets it end. Returns a row for each kill."""
    draw, kills = random.Random(args.seed), []
    while True:
        latest = folder / "checkpoints" / "latest"
        process = run(args, file, folder, "--resume")
        if len(kills) == args.kills:
            end(process)
            return kills
        before, wanted, later = steps(folder), draw.randint(0, STEPS_LATER), draw.uniform(0, LATER_MS) / 1e3
        while process.poll() is None and steps(folder) < before + wanted:
            time.sleep(0.001)
        time.sleep(later)
        if process.poll() is not None:
            sys.exit(f"it ended with {process.returncode} after {len(kills)} kills: {process.communicate()[1]}")
        alone = len(kills) % 3 == 2
        hit = kill(process, alone)
        kills.append({"after_steps": steps(folder), "of": hit, "carried": carried(latest)})


def kill(process, alone):
    """Kills the trainer or all processes, and waits until none is left. Returns which it was."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    hit = "all"
    if alone and children:
        hit = "trainer"
        os.kill(int(children[0]), signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=ENDING_S)
    until = time.monotonic() + ENDING_S
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return hit
        time.sleep(0.002)
    sys.exit(f"processes of group {process.pid} are left")


def lines(path):
    """Returns the objects of a file, without a last line that was cut."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def steps(folder):
    path = folder / "events.jsonl"
    return path.read_bytes().count(b'{"event":"step"') if path.exists() else 0


def carried(latest):
    """Returns the groups under way in the last checkpoint."""
    return len(lines(latest / "state" / "carried.jsonl"))


def left(folder):
    """Returns what a run leaves that no clock decides, by name."""
    latest = folder / "checkpoints" / "latest"
    files = [latest / "model.safetensors", latest / "state" / "optimizer.safetensors"]
    files += sorted((folder / "samples").glob("*.jsonl"))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    for event in lines(folder / "events.jsonl"):
        if event["event"] == "step":
            metrics = {name: of for name, of in event["metrics"].items() if not any(part in name for part in CLOCK)}
            found[f"metrics of step {event['step']}"] = json.dumps(metrics, sort_keys=True)
    return found


def page(entry):
    of = lambda name: sum(kill["of"] == name for kill in entry["kills"])  # noqa: E731
    head = ["kills", "of all processes", "of the trainer", "with groups under way", "steps", "compared", "differs"]
    row = [len(entry["kills"]), of("all"), of("trainer"), entry["with_groups_under_way"], entry["steps"],
           entry["compared"], len(entry["differs"])]
    return "\n".join(
        [
            "# A run that is killed again and again",
            "",
            "A run with responses under way ([docs/async.md](../../docs/async.md)) is killed with SIGKILL at drawn moments and resumed",
            "each time. Compared with an undisturbed run: weights, optimizer states, samples, and the metrics of every step.",
            "",
            *results.table(head, [[str(cell) for cell in row]]),
            "",
            f"`{entry['command']}`, {entry['commit']}, {entry['machine']['cpu']}",
            "",
        ]
    )


if __name__ == "__main__":
    main()
