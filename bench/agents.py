"""Frames and time until PPO solves CartPole-v1: ours, CleanRL's and Stable-Baselines3's, over seeds.

    python bench/agents.py [--seeds 10] [--threads 2] [--python PYTHON] [--plimsoll target/release/plimsoll] [--only ours]

PYTHON has torch, gymnasium and stable-baselines3. Solved: the mean return of the last 100 episodes is 475. Ours is run
with the settings of each peer: CleanRL's ppo.py (runs/cartpole-ppo.toml) and Stable-Baselines3's defaults. Speed is
frames a second of CPU time of the whole process up to there, because a machine may be shared; wall time is beside it.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOLVED = 475.0
SB3 = [
    "environment.num_envs=1",
    "environment.frames_per_batch=2048",
    "train.mini_batch=64",
    "train.epochs_per_rollout=10",
    "train.learning_rate=3e-4",
    'train.schedule="constant"',
    "loss.entropy_coef=0.0",
    "critic.value_clip=0",
]
PEERS = {"cleanrl": [], "sb3": SB3}


def ours(binary, sets, seed, threads):
    """Runs a whole run; the seconds of its steps up to the one that solved it, and CPU time in that proportion."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [*sets, f"seed={seed}", f"run.dir={folder}/run", f"run.threads={threads}"]
        flags = [word for value in sets for word in ("--set", value)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        run = ROOT / "runs" / "cartpole-ppo.toml"
        command = [binary, "train", str(run), "--no-supervisor", "--quiet", *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        events = [json.loads(line) for line in open(f"{folder}/run/events.jsonl")]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    steps = [event["metrics"] for event in events if event["event"] == "step"]
    total = steps[-1]["num_frames"]
    episodes = 0
    for metrics in steps:
        episodes += metrics["episode/count"]
        if episodes >= 100 and metrics["episode/return_mean_100"] >= SOLVED:
            part = metrics["num_frames"] / total
            return result("ours", seed, True, metrics["num_frames"], seconds * part, cpu * part)
    return result("ours", seed, False, total, seconds, cpu)


def result(who, seed, reached, frames, seconds, cpu):
    return {"peer": who, "seed": seed, "reached": reached, "frames": int(frames), "seconds": seconds, "cpu_seconds": cpu}


def peer(python, name, seed):
    script = ROOT / "bench" / "peers" / f"{name}_ppo.py"
    output = subprocess.run([python, script, "CartPole-v1", str(seed)], check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def summed(rows):
    """Medians of what was run."""
    frames = [row["frames"] for row in rows]
    return {
        "seeds": len(rows),
        "solved": sum(row["reached"] for row in rows),
        "frames_median": statistics.median(frames),
        "frames_min": min(frames),
        "frames_max": max(frames),
        "frames_per_cpu_second": statistics.median(row["frames"] / row["cpu_seconds"] for row in rows),
        "seconds_median": statistics.median(row["seconds"] for row in rows),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--plimsoll", default=str(ROOT / "target" / "release" / "plimsoll"))
    parser.add_argument("--only", choices=["ours", "peers"])
    words = parser.parse_args()
    for name, sets in PEERS.items():
        seeds = range(1, words.seeds + 1)
        if words.only != "peers":
            rows = [ours(words.plimsoll, sets, seed, words.threads) for seed in seeds]
            print(json.dumps({"who": f"ours, settings of {name}"} | summed(rows)), flush=True)
        if words.only != "ours":
            rows = [peer(words.python, name, seed) for seed in seeds]
            print(json.dumps({"who": name} | summed(rows)), flush=True)


if __name__ == "__main__":
    main()
