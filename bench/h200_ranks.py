"""Ranks on cards: whether their number changes a bit, and how their time grows with it. See h200_ranks.sh."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from results import spread, table

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RUN = REPOSITORY / "runs" / "first.toml"
# What of a run a rank does, in both parts: tokens of a response, and rows of a micro-batch.
MODELS = {
    "0.5b": {"model": "random:qwen2.5-0.5b", "prompts": 64, "sets": ["train.optimizer_dtype=f32"]},
    "1.5b": {"model": "random:qwen2.5-1.5b", "prompts": 64, "sets": ["train.optimizer_dtype=f32"]},
    "7b": {"model": "random:qwen2.5-7b", "prompts": 32,
           "sets": ["train.optimizer_dtype=bf16", "train.grad_dtype=f32", "train.recompute=layer"]},
}
NEW_TOKENS = 256
STEPS = 5
# Steps before the times count: the first compiles and records passes.
WARM = 2


def settings(model, ranks, prompts):
    sets = [
        "run.device=cuda", f"model={MODELS[model]['model']}", f"rollout.prompts_per_step={prompts}",
        f"rollout.max_new_tokens={NEW_TOKENS}", "train.micro_batch_tokens=16384", "eval.every=100000",
        "checkpoint.every=100000", *MODELS[model]["sets"],
    ]
    return [word for one in sets for word in ("--set", one)]


def bits(binary, model, ranks):
    """Returns the rows of `plimsoll bench ranks`: one work, every number of ranks."""
    command = [binary, "bench", "ranks", RUN, "--ranks", ",".join(map(str, ranks)), "--steps", "3", "--json"]
    done = subprocess.run([*map(str, command), *settings(model, 1, 64)], capture_output=True, text=True)
    if done.returncode != 0:
        return [{"part": "bits", "model": model, "ranks": ranks, "error": done.stderr.strip()[-600:]}]
    return [{"part": "bits", "model": model, **row} for row in json.loads(done.stdout)["rows"]]


def scale(binary, model, ranks):
    """Returns one row: medians of an update and of a step, where each rank has the work that one has alone."""
    row = {"part": "scale", "model": model, "ranks": ranks}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [binary, "train", RUN, "-q", "--ranks", ranks, "--set", f"run.dir={out}"]
        sets = [*settings(model, ranks, MODELS[model]["prompts"] * ranks), "--set", "train.steps=100"]
        run = subprocess.Popen([*map(str, command), *sets], stderr=subprocess.PIPE, text=True, start_new_session=True)
        steps = []
        while run.poll() is None and len(steps) < STEPS:
            time.sleep(0.1)
            steps = read_steps(out / "events.jsonl")
        if run.poll() is None:
            # No checkpoint: its time is not measured here.
            os.killpg(run.pid, signal.SIGKILL)
        error = run.communicate()[1]
        if len(steps) < STEPS:
            return {**row, "error": error.strip()[-600:]}
        counted = steps[WARM:]
        of = lambda name: spread([step[name] for step in counted])
        memory = {name: max(step[name] for step in counted) for name in counted[0] if name.startswith("memory/device")}
        return {**row, "update_s": of("time/update"), "rollout_s": of("time/rollout"), "step_s": of("step_time"),
                "update_tokens_per_s": of("tokens_per_second/update"), "micro_batches": counted[0]["update/micro_batches"],
                **memory}


def read_steps(path):
    lines = path.read_text().splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [event["metrics"] for event in events if event["event"] == "step"]


def page(rows):
    lines = ["# Several ranks, a card each", "", "`bench/h200_ranks.sh BINARY bits` and `... scale`, on one host.", ""]
    same = [row for row in rows if row["part"] == "bits"]
    if same:
        lines += ["## Bits", "", "One run on each number of ranks; everything that it leaves, by SHA-256.", ""]
        cells = [[row["model"], row["ranks"], row.get("error") or ("equal" if not row["differ"] else ", ".join(row["differ"])),
                  len(row.get("sha256", {}))] for row in same]
        lines += table(["model", "ranks", "compared with one rank", "files and metrics"], words(cells)) + [""]
    timed = [row for row in rows if row["part"] == "scale"]
    if timed:
        lines += ["## Weak scaling", "", "Every rank has the work of one; seconds are medians of steps "
                  f"{WARM + 1} to {STEPS}, with the smallest and the largest.", ""]
        one = {row["model"]: row for row in timed if row["ranks"] == 1 and "error" not in row}
        cells = []
        for row in timed:
            if "error" in row:
                cells.append([row["model"], row["ranks"], row["error"], "", "", "", ""])
                continue
            alone = one.get(row["model"])
            share = lambda name: f"{alone[name]['median'] / row[name]['median']:.1%}" if alone else ""
            times = [f"{row[name]['median']:.3f} ({row[name]['min']:.3f} to {row[name]['max']:.3f})"
                     for name in ("update_s", "step_s")]
            cells.append([row["model"], row["ranks"], times[0], share("update_s"), times[1], share("step_s"),
                          f"{row['update_tokens_per_s']['median']:,.0f}"])
        head = ["model", "ranks", "update, s", "of one rank's", "step, s", "of one rank's", "update, tokens/s"]
        lines += table(head, words(cells))
    return "\n".join(lines) + "\n"


def words(cells):
    return [[str(cell) for cell in row] for row in cells]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("part", choices=["bits", "scale"])
    parser.add_argument("--models", default="0.5b,1.5b")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--results", type=pathlib.Path, default=REPOSITORY / "bench" / "results")
    args = parser.parse_args()
    path = args.results / "h200_ranks.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    ranks, binary = [int(n) for n in args.ranks.split(",")], args.binary.resolve()
    for model in args.models.split(","):
        runs = [bits(binary, model, ranks)] if args.part == "bits" else [[scale(binary, model, n)] for n in ranks]
        for new in runs:
            key = lambda row: (row["part"], row["model"], str(row["ranks"]))
            rows = [row for row in rows if key(row) not in {key(row) for row in new}] + new
            for row in new:
                print(json.dumps({name: value for name, value in row.items() if name != "sha256"}))
            rows.sort(key=key)
            args.results.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
            path.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
