#!/usr/bin/env python3
"""Lays Plimsoll's training over a peer's: the same model, data, order, settings, reward and number of samples.

    bench/overlay.py BINARY [--peer trl|reference] [--model builtin:nano|DIR] [--jobs JOB ...] [--seeds 5] [--steps N]
                     [--device cpu|cuda] [--threads 2] [--lanes 1] [--out FOLDER] [--write]

Jobs: GRPO of all weights and of adapters, DPO, SFT, a reward model. Peers: TRL, or plain PyTorch from the papers
(peers/reference.py). Two tests, stated in overlay_stats.py: step by step on the same tokens, where GRPO's peer learns
from Plimsoll's samples; and bands over three seeds and more, where each program draws its own. Prints what agreed,
seconds and memory.

--lanes N runs N seeds at a time after the first, which has the machine to itself: its seconds are shown.

--out keeps every run there, and a later call with the same settings does only what is missing. --write puts the result
into results/overlay.json, docs/proof.md and docs/details/proof.md with their pictures; what was measured before of
other models and peers stays.
DIR is SmolLM2-135M-Instruct as peers/model_dir.py writes it. Needs torch and transformers, for TRL also trl and peft,
in the interpreter that runs this, or else installs bench/.venv-torch. Exits with 1 where something differs.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import environments
import machine
import overlay_jobs as jobs
import overlay_page as page
import overlay_stats as stats

PEERS = {"trl": "overlay_trl.py", "reference": "reference.py"}


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="overlay-") as scratch:
        work = args.out or Path(scratch)
        args.model_folder, args.kind = model_folder(args.model, work)
        found = [run_job(args, name, work) for name in args.jobs]
    print("\n".join(page.lines_of(found)))
    if args.write:
        page.write(entry(args, found))
    return 0 if all(holds(job) for job in found) else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path, help="path of plimsoll")
    parser.add_argument("--peer", choices=PEERS, default="trl")
    parser.add_argument("--model", default="builtin:nano")
    parser.add_argument("--jobs", nargs="+", choices=jobs.JOBS["nano"], default=list(jobs.JOBS["nano"]))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="instead of the table's")
    parser.add_argument("--rows", type=int, help="prompts, examples or pairs of a step, instead of the table's")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of either program, on the CPU")
    parser.add_argument("--lanes", type=int, default=1, help="seeds at a time, after the first")
    parser.add_argument("--out", type=Path, help="where runs are kept")
    parser.add_argument("--write", action="store_true", help="update results/overlay.json and the pages of docs")
    args = parser.parse_args()
    if not 1 <= args.seeds <= stats.SEEDS_MAX:
        parser.error(f"--seeds is 1 to {stats.SEEDS_MAX}")
    args.binary, args.out = args.binary.resolve(), args.out.resolve() if args.out else None
    needed = ["torch", "transformers", *(["trl", "peft"] if args.peer == "trl" else [])]
    here = all(importlib.util.find_spec(name) for name in needed)
    args.python = sys.executable if here else str(environments.python("torch"))
    return args


def model_folder(model, work):
    """Returns the model as a folder of transformers, and which column of the table it is."""
    if model == "builtin:nano":
        return jobs.NANO_FOLDER, "nano"
    folder = Path(model).resolve()
    if not (folder / "config.json").exists():
        sys.exit(f"error: {folder} has no config.json\nhint: bench/.venv-torch/bin/python bench/peers/model_dir.py DIR")
    return folder, "smollm2"


# ---- one job -------------------------------------------------------------------------------------------------------


def run_job(args, name, work):
    """Runs a job in both programs, all seeds, and compares."""
    job = jobs.JOBS[args.kind][name]
    changed = {key: value for key in ("steps", "rows") if (value := getattr(args, key)) is not None}
    job = jobs.Job(**vars(job) | changed)
    base = work / args.kind / args.device / f"{name}-{job.steps}x{job.rows}"
    draws = job.samples and args.seeds >= stats.SEEDS_MIN  # Samples of the peer's own serve the bands alone.

    def prepared(seed):
        same = prepare(args, job, seed, base / f"seed-{seed}", shared=True)
        apart = draws and job.lora_rank
        return same, prepare(args, job, seed, base / f"own-{seed}", shared=False) if apart else same

    same, own = zip(*in_lanes(args.lanes, prepared, range(1, args.seeds + 1)))
    environments.say(f"{name}: {args.peer}")
    runs = {"same": same} | ({"own": own} if draws else {})
    peers = run_peer(args, job, runs)
    found = {
        name: ([jobs.our_steps(job, one["folder"]) for one in ones], peers[name]) for name, ones in runs.items()
    }
    return compare(args, job, found["same"], found.get("own", found["same"]))


def prepare(args, job, seed, folder, shared):
    """Writes data, reward and start of a seed, and runs Plimsoll unless that was done. `shared`: both start alike."""
    model, adapter = args.model_folder, None
    if job.method == "reward_model":
        model = folder / "start"
    elif job.lora_rank and shared:
        adapter = folder / "start"
    one = {"folder": folder, "seed": seed, "model": model, "adapter": adapter}
    text = jobs.run_file(job, args.kind, seed, args.device, folder, model, adapter, threads(args))
    run = folder / "run.toml"
    if (folder / "out" / "summary.json").exists() and run.read_text() == text:
        return one
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    jobs.write_data(folder / "data.jsonl", job, args.kind, seed)
    if job.method == "reward_model":
        jobs.write_reward_model(model, args.model_folder, seed)
    if adapter:
        jobs.write_adapter(adapter, args.model_folder, job, seed)
    if job.samples:
        shutil.copyfile(jobs.REWARD, folder / "reward.py")
        (folder / "samples.jsonl").write_text("")
    run.write_text(text)
    environments.say(f"{job.name}, seed {seed}: plimsoll")
    command([args.binary, "train", run, "--quiet"])
    return one


def threads(args):
    return args.threads if args.device == "cpu" else None


def in_lanes(lanes, do, items, alone=1):
    """Returns do(item) of each, in order: the first by themselves, the others `lanes` at a time."""
    items = list(items)
    first = [do(item) for item in items[:alone]]
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        return [*first, *pool.map(do, items[alone:])]


def run_peer(args, job, runs):
    """Runs the peer on all seeds, and returns what it measured of each. `runs`: name -> the prepared seeds.

    With one lane each name has a process, else each seed: either way a first seed is the first of its process.
    """
    script = [args.python, jobs.BENCH / "peers" / PEERS[args.peer]]
    missing = [
        (one["seed"], name, write_settings(args, job, one, name))
        for name, ones in runs.items() for one in ones if not peer_out(args, one, name).exists()
    ]
    if args.lanes == 1:
        for name in runs:
            if paths := [path for _, of, path in missing if of == name]:
                command([*script, *paths])
    else:
        missing.sort(key=lambda one: one[0])
        alone = sum(seed == 1 for seed, *_ in missing)
        in_lanes(args.lanes, lambda one: command([*script, one[2]]), missing, alone)
    measured = lambda one, name: json.loads(peer_out(args, one, name).read_text())  # noqa: E731
    return {name: [measured(one, name) for one in ones] for name, ones in runs.items()}


def peer_out(args, one, name):
    return one["folder"] / f"{args.peer}-{name}.json"


def write_settings(args, job, one, name):
    replay, out = job.samples and name == "same", peer_out(args, one, name)
    path = out.with_suffix(".settings")
    path.write_text(json.dumps(jobs.peer_settings(
        job, one["seed"], args.device, one["folder"], out, one["model"], one["adapter"], replay, threads(args)
    )))
    return path


def command(words):
    """Runs a program, and shows its output only if it fails."""
    words = [str(word) for word in words]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=quiet())
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\nerror: {words[0]} ended with exit code {done.returncode}: {words[1:3]}")


def quiet():
    return os.environ | {"PYTHONWARNINGS": "ignore", "OMP_WAIT_POLICY": "PASSIVE"}


# ---- what is found -------------------------------------------------------------------------------------------------


def compare(args, job, same, own):
    """Returns both tests, seconds and memory of a job, and the curves to draw."""
    metrics = list(jobs.METRICS[job.method])
    steps = lambda runs: [run["steps"] for run in runs]  # noqa: E731
    ours, theirs = map(steps, own)
    found = {
        "job": job.name, "settings": vars(job), "seeds": args.seeds,
        "same": stats.compare(stats.compare_steps, *map(steps, same), [*metrics, "learning_rate"]),
        "bands": stats.compare(stats.compare_bands, ours, theirs, metrics) if args.seeds >= stats.SEEDS_MIN else None,
        "curves": {name: {"ours": stats.curve(ours, name), "theirs": stats.curve(theirs, name)} for name in metrics},
        "versions": same[1][0]["versions"], "card": same[1][0].get("card"),
    }
    if job.samples:
        found["kl_unbounded"] = unbounded(theirs)
    for key in ("seconds", "peak_rss_bytes", *(["peak_device_bytes"] if args.device == "cuda" else [])):
        if key == "seconds" and job.samples and not found["bands"]:
            continue  # The peer was given its samples, which take most of the time.
        # The first seed: a process of a peer that ran another before has its memory and its warm caches.
        found[key] = {"ours": own[0][0][key], "theirs": own[1][0][key]}
    return found


def unbounded(runs):
    """Returns the peer's own mean KL over the bounded one: the size of a difference in definition."""
    total = lambda name: sum(step[name] for steps in runs for step in steps)  # noqa: E731
    return total("kl_unbounded") / total("kl")


def holds(job):
    return all(one["holds"] for test in (job["same"], job["bands"] or {}) for one in test.values())


def entry(args, found):
    """Returns what is kept in results/overlay.json of a call."""
    return {
        "model": "SmolLM2-135M-Instruct" if args.kind == "smollm2" else args.model, "peer": args.peer,
        "device": args.device, "threads": threads(args), "machine": machine.facts(),
        "load": round(os.getloadavg()[2], 1), "commit": machine.commit(jobs.BENCH.parent), "jobs": found,
    }


if __name__ == "__main__":
    sys.exit(main())
