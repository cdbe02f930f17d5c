"""Seconds of a step as `plimsoll plan --ranks` predicts them, next to those that were measured on 1 to 8 H200.

    python bench/predicted.py BINARY

Reads bench/results/h200_ranks.json, plans each of its runs of weak scaling for the same number of cards, and prints a table. Needs no card. Exit code 1 if a prediction is
off by more than a fifth."""

import json
import pathlib
import statistics
import subprocess
import sys

from h200_ranks import MODELS, RUN, settings

RESULTS = pathlib.Path(__file__).resolve().parent / "results" / "h200_ranks.json"
OFF_MAX = 0.20


def predicted(binary, model, ranks):
    """Returns the parts of a step that one of `ranks` cards is predicted to take."""
    sets = [*settings(model, model["prompts"] * ranks), *model["sets"], "train.steps=100", "eval.prompts_max=64", "run.device=cuda"]
    words = [binary, "plan", str(RUN), "--json", "--card", "h200", "--ranks", str(ranks)]
    done = subprocess.run([*words, *(word for one in sets for word in ("--set", one))], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["auto"]["chosen"]["predicted"]


def main():
    (binary,) = sys.argv[1:]
    rows = [row for row in json.loads(RESULTS.read_text())["rows"] if row["part"] == "scale" and "step_s" in row]
    by_run = {}
    for row in rows:
        by_run.setdefault((row["model"], row["ranks"]), []).append(row)
    print(f"{'model':<14} {'cards':>5} {'rollout':>16} {'update':>16} {'step':>16}   off")
    worst = 0.0
    for (name, ranks), measured in by_run.items():
        parts = predicted(binary, MODELS[name], ranks)
        ours = {"rollout_s": parts["rollout_s"], "update_s": parts["update_s"], "step_s": sum(parts.values())}
        cells = []
        for part, seconds in ours.items():
            truth = statistics.median(row[part]["median"] for row in measured)
            off = seconds / truth - 1
            cells.append(f"{seconds:7.3f} of {truth:6.3f}")
        worst = max(worst, abs(off))
        print(f"{name:<14} {ranks:>5} {cells[0]:>16} {cells[1]:>16} {cells[2]:>16}   {off:+.0%}")
    print(f"the worst is {worst:.0%} off; {OFF_MAX:.0%} are allowed")
    return int(worst > OFF_MAX)


if __name__ == "__main__":
    sys.exit(main())
