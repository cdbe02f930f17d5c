"""What the Python door costs: steps of one run by the command and by ``plimsoll.train`` with a callback, in turns.

    python bench/python_door.py PLIMSOLL [--runs 5] [--steps 40]

The cost of a step is the run's wall time over its steps, start and end left out: from the first step's event to the last's.
Processors differ more from run to run than a callback costs, so what the run itself spends on telling is shown as well.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "crates/python/python"))


def seconds_a_step(directory):
    events = [json.loads(line) for line in open(directory / "events.jsonl")]
    times = [event["seconds_since_start"] for event in events if event["event"] == "step"]
    return (times[-1] - times[0]) / (len(times) - 1)


def spent_a_step(directory):
    """Seconds of a step in which the run told what it did, and waited for the callback."""
    summary = json.loads((directory / "summary.json").read_text())
    events = [json.loads(line) for line in open(directory / "events.jsonl")]
    return summary["monitoring_share"] * statistics.mean(event["seconds"] for event in events if event["event"] == "step")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    os.environ["PLIMSOLL_PROGRAM"] = str(pathlib.Path(options.plimsoll).resolve())
    import plimsoll

    file = ROOT / "runs/first.toml"
    by_command, by_python, spent = [], [], ([], [])
    with tempfile.TemporaryDirectory() as home:
        for number in range(options.runs):
            directory = pathlib.Path(home) / f"command-{number}"
            sets = {"train.steps": options.steps, "run.dir": str(directory), "eval.every": options.steps}
            words = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
            subprocess.run([options.plimsoll, "train", str(file), "--quiet", *words], check=True, stdout=subprocess.DEVNULL)
            by_command.append(seconds_a_step(directory))
            spent[0].append(spent_a_step(directory))
            directory = pathlib.Path(home) / f"python-{number}"
            plimsoll.train(file, callbacks=[lambda step: None], quiet=True, **{**sets, "run.dir": str(directory)})
            by_python.append(seconds_a_step(directory))
            spent[1].append(spent_a_step(directory))
    more = [python - command for command, python in zip(by_command, by_python)]
    shown = lambda values: f"{1e3 * statistics.median(values):.2f} ms ({1e3 * min(values):.2f} to {1e3 * max(values):.2f})"
    print(f"a step by the command   {shown(by_command)}")
    print(f"a step by Python        {shown(by_python)}")
    print(f"difference              {shown(more)}, {100 * statistics.median(more) / statistics.median(by_command):.2f} % of a step")
    print(f"telling, by the command {shown(spent[0])}")
    print(f"telling, and a callback {shown(spent[1])}")


if __name__ == "__main__":
    main()
