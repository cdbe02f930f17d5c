#!/usr/bin/env python3
"""Measures saving under a memory limit a tenth above the plan: Plimsoll at each step, PyTorch once.

    python3 bench/save.py [--repeats 5] [--skip-peers] [--binary PATH] [--json PATH]

The limit is 1.1 times `plimsoll plan --min` of the run below, set on a separate memory cgroup without swap. Plimsoll
trains in it and saves during each following rollout. PyTorch holds only the same weights and states, and saves them in
three ways: see peers/torch_save.py. Then `plimsoll bench save` runs without a limit, alternating with `dd` of the same
size. Needs root, `cargo build --release` and 10 GB of disk. Exit code 0 unless something did not run or Plimsoll was
killed; a killed peer is a result.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import environments
import machine
import results
from results import GIB, MIB, held

RUN = """method = "grpo"
model = "random:smollm2-135m"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 2
group_size = 2
max_new_tokens = 4
[[reward]]
kind = "hash"
[train]
steps = {steps}
learning_rate = 1e-6
optimizer_dtype = "f32"
grad_dtype = "f32"
[checkpoint]
every = 1
keep = 1
"""
STEPS = 4
PARAMETERS = 134_515_008
WAYS = ["plain", "gathered", "async"]
TIMES_DD_MAX = 3.0


def main():
    options = arguments()
    place = environments.CACHE / "save"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    run_file = place / "save.toml"
    run_file.write_text(RUN.format(steps=STEPS))
    least = answer([options.binary, "plan", run_file, "--min", "--json"])["min_host_bytes"]
    limit = least // 10 * 11 // 4096 * 4096
    found = {
        "machine": machine.facts(),
        "commit": machine.commit(environments.BENCH.parent),
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "parameters": PARAMETERS,
        "least_bytes": least,
        "limit_bytes": limit,
        "ended": [ours(options.binary, run_file, place, limit)],
    }
    if not options.skip_peers:
        found["ended"] += [peer(way, place, limit) for way in WAYS]
    bench = [options.binary, "bench", "save", "--dir", place, "--repeats", options.repeats, "--json"]
    found["save"] = answer(bench)
    found["holds"] = verdicts(found)
    shutil.rmtree(place)
    path = options.json or environments.BENCH / "results" / "save.json"
    results.write(path, found, page)
    print(page(found))
    return 0 if found["ended"][0]["exit"] == 0 else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-peers", action="store_true")
    parser.add_argument("--binary", type=Path, default=environments.BENCH.parent / "target" / "release" / "plimsoll")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def ours(binary, run_file, place, limit):
    """Runs Plimsoll, which saves at each step, within the limit."""
    run_dir = place / "run"
    row = within("plimsoll", limit, [binary, "train", run_file, "--json", "--set", f"run.dir={run_dir}"])
    events = (run_dir / "events.jsonl").read_text() if (run_dir / "events.jsonl").exists() else ""
    row["saves"] = sum(json.loads(line)["event"] == "saved" for line in events.splitlines())
    if row["exit"] == 0:
        manifest = json.loads((run_dir / "checkpoints" / "latest" / "manifest.json").read_text())
        row["bytes"] = sum(file["bytes"] for file in manifest["files"].values())
    shutil.rmtree(run_dir, ignore_errors=True)
    return {"who": f"Plimsoll, {STEPS} steps of training", "command": "plimsoll train", **row}


def peer(way, place, limit):
    """Runs one save of PyTorch within the limit."""
    script = environments.BENCH / "peers" / "torch_save.py"
    out = place / "torch"
    words = [environments.python("torch"), script, "--how", way, "--parameters", PARAMETERS, "--out", out]
    row = within(way, limit, words)
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)
    if row["exit"] == 0:
        row = {**row, **json.loads(row["said"]), "saves": 1}
    return {"who": f"PyTorch, {way}", "command": f"torch_save.py --how {way}", **row}


def within(name, limit, command):
    """Runs a command in a memory cgroup. Returns its exit code (-9: SIGKILL), the kernel's kills and the peak memory."""
    group = Group(name, limit)
    try:
        join = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', group.folder / "cgroup.procs"]
        done = subprocess.run([str(word) for word in [*join, *command]], capture_output=True, text=True)
        row = {"exit": done.returncode, "oom_kills": group.oom_kills(), "peak_bytes": group.peak_bytes()}
    finally:
        group.remove()
    row["said"] = done.stdout.strip() if done.returncode == 0 else done.stderr.strip()[-2000:]
    return row


class Group:
    """A memory cgroup of version 1 or 2, without swap."""

    def __init__(self, name, limit):
        root = Path("/sys/fs/cgroup")
        self.v2 = (root / "cgroup.controllers").exists()
        self.folder = (root if self.v2 else root / "memory") / f"plimsoll-save-{name}"
        self.folder.mkdir()
        (self.folder / ("memory.max" if self.v2 else "memory.limit_in_bytes")).write_text(str(limit))
        swap = self.folder / ("memory.swap.max" if self.v2 else "memory.swappiness")
        if swap.exists():
            swap.write_text("0")

    def oom_kills(self):
        lines = (self.folder / ("memory.events" if self.v2 else "memory.oom_control")).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def peak_bytes(self):
        path = self.folder / ("memory.peak" if self.v2 else "memory.max_usage_in_bytes")
        return int(path.read_text()) if path.exists() else None

    def remove(self):
        for _ in range(100):  # A cgroup stays busy for a moment after its last process.
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.02)


def answer(command):
    """Runs a command. Returns the JSON object that it prints."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def verdicts(found):
    """Returns the promises about a save, and whether they hold."""
    save = found["save"]
    return {
        "ours_ends_within_the_limit": found["ended"][0]["exit"] == 0 and found["ended"][0]["oom_kills"] == 0,
        "at_most_3_times_dd": save["times_dd"] <= TIMES_DD_MAX,
        "adds_at_most_the_staging_buffer": save["anonymous_growth_bytes"] <= save["staging_bytes"],
    }


def page(found):
    """Renders the Markdown page."""
    save, holds = found["save"], found["holds"]
    head = ["who", "saves", "end", "kills by the kernel", "seconds of a save", "anonymous memory added"]
    out = [
        "# A save in a container a tenth above the plan",
        "",
        f"{results.place(found)} Made by `python3 bench/save.py`; its head says what is done.",
        f"{found['parameters'] / 1e6:.1f} M parameters, weights in bf16, master copy and moments in f32: 14 bytes a parameter. "
        f"The run's smallest host memory is {found['least_bytes'] / MIB:.0f} MiB, the limit {found['limit_bytes'] / MIB:.0f} MiB.",
        "",
        *results.table(head, map(cells, found["ended"])),
        "",
        f"`plimsoll bench save`, without a limit, by turns with `dd bs=1M conv=fsync` of the same {save['bytes'] / GIB:.2f} GiB: "
        f"median {save['median']:.2f} s ({save['min']:.2f} to {save['max']:.2f}), dd {save['dd']['median']:.2f} s "
        f"({save['dd']['min']:.2f} to {save['dd']['max']:.2f}).",
        "",
        f"- {save['times_dd']:.2f} times dd (at most {TIMES_DD_MAX:.0f}: {held(holds['at_most_3_times_dd'])}).",
        f"- Anonymous memory grew by {save['anonymous_growth_bytes'] / MIB:.1f} MiB "
        f"(at most the staging buffer of {save['staging_bytes'] / MIB:.0f} MiB: "
        f"{held(holds['adds_at_most_the_staging_buffer'])}).",
        "",
    ]
    return "\n".join(out)


def cells(row):
    code = row["exit"]
    end = f"exit {code}" if code >= 0 else signal.Signals(-code).name
    seconds = f"{row['seconds']:.1f}" if "seconds" in row else ""
    grown = f"{row['anonymous_growth_bytes'] / MIB:.0f} MiB" if "anonymous_growth_bytes" in row else ""
    return [row["who"], str(row.get("saves", 0)), end, str(row["oom_kills"]), seconds, grown]


if __name__ == "__main__":
    sys.exit(main())
