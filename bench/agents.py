"""Measures the frames and time that PPO needs to solve CartPole-v1: Plimsoll, CleanRL and Stable-Baselines3, over seeds.

    python bench/agents.py [--seeds 10] [--threads 2] [--python PYTHON] [--plimsoll target/release/plimsoll]
                           [--only ours|peers] [--peers cleanrl,sb3] [--jobs 1]

PYTHON needs torch, gymnasium and stable-baselines3. Solved means a mean return of 475 over the last 100 episodes.
Plimsoll runs with the settings of each peer: CleanRL's ppo.py (runs/cartpole-ppo.toml) and Stable-Baselines3's defaults.
Speed is frames per second of CPU time until solved, because the machine may be shared; wall time is reported too. CPU
time is per seed. For Plimsoll it covers all threads of the process from start to end, including the checkpoint at the
end; the run is stopped once it has solved the task. For a peer it covers the process after its imports. The result of
each seed goes to stderr as soon as it is known. A seed of a peer takes minutes: if Stable-Baselines3 does not solve the
task earlier, its 500,000 frames take ten minutes of CPU time.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOLVED = 475.0
INTERRUPTED = 130
POLL_SECONDS = 0.002  # A step of 512 frames takes about as long, so a run goes on for a step or two.
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
    """Runs until the step that solved it has been noted, then ends the run: wall time, and CPU time of its process."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [*sets, f"seed={seed}", f"run.dir={folder}/run", f"run.threads={threads}"]
        flags = [word for value in sets for word in ("--set", value)]
        run = ROOT / "runs" / "cartpole-ppo.toml"
        command = [binary, "train", str(run), "--no-supervisor", "--quiet", *flags]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        reached, frames = watch(process.pid, Path(folder, "run", "events.jsonl"))
        words = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        # A run that solved it with its last step is over before it can be asked to stop.
        if process.returncode != 0 and not (reached and process.returncode == INTERRUPTED):
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {words}")
    return result("ours", seed, reached, frames, seconds, usage.ru_utime + usage.ru_stime)


def watch(pid, path):
    """Follows the events of a run; asks it to stop at the step that solved it. (whether one did, frames up to there)."""
    frames = episodes = 0
    rest = ""
    log = None
    while True:
        # Looked at first, so that what it wrote last is read after its end.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if log is None and path.exists():
            log = path.open()
        *lines, rest = (rest + (log.read() if log else "")).split("\n")
        for event in map(json.loads, lines):
            if event["event"] != "step":
                continue
            metrics = event["metrics"]
            frames, episodes = metrics["num_frames"], episodes + metrics["episode/count"]
            if episodes >= 100 and metrics["episode/return_mean_100"] >= SOLVED:
                if not ended:
                    os.kill(pid, signal.SIGINT)
                return True, frames
        if ended:
            return False, frames
        time.sleep(POLL_SECONDS)


def result(who, seed, reached, frames, seconds, cpu):
    return {"peer": who, "seed": seed, "reached": reached, "frames": int(frames), "seconds": seconds, "cpu_seconds": cpu}


def peer(python, name, seed):
    script = ROOT / "bench" / "peers" / f"{name}_ppo.py"
    command = [python, script, "CartPole-v1", str(seed)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(output.stdout.splitlines()[-1])


def each(run, seeds, jobs):
    """The rows of all seeds, `jobs` at a time, told as they come."""
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(run, seeds):
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    return rows


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
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--jobs", type=int, default=1, help="seeds of a peer at a time; CPU time is each one's own")
    words = parser.parse_args()
    for name, sets in ((name, PEERS[name]) for name in words.peers.split(",")):
        seeds = range(1, words.seeds + 1)
        if words.only != "peers":
            rows = each(lambda seed: ours(words.plimsoll, sets, seed, words.threads), seeds, 1)
            print(json.dumps({"who": f"ours, settings of {name}"} | summed(rows)), flush=True)
        if words.only != "ours":
            rows = each(lambda seed: peer(words.python, name, seed), seeds, words.jobs)
            print(json.dumps({"who": name} | summed(rows)), flush=True)


if __name__ == "__main__":
    main()
