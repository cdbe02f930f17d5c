#!/usr/bin/env python3
"""Compares Plimsoll and its peers on one NVIDIA H200. Each part has a time limit. h200.sh starts this script.

    ours     start cold and warm; exactness; plans of more shapes and types compared with the GPU
    decode   few and many sequences of models up to 7B: tokens/s, and the share of the memory's rate; no peers
    rollout  256 and 64 sequences of 64 + 256 tokens, 256 compared with transformers' generate(): tokens/s
    train    4 x 1024 tokens, forward + backward + AdamW, before and after PyTorch eager, compiled and Liger:
             tokens/s, bytes
    step     GRPO, 32 prompts x 8 samples, 64 + 256 tokens, compared with TRL: seconds
    lora     training and 64 sequences with adapters, compared with all weights and with none: tokens/s; exactness
    lora-step GRPO step with adapters, compared with TRL and peft: seconds
    peers-7b, peers-3b, peers-1.5b, peers-0.5b
             rollout of one model before and after vLLM, which runs without and with log-probabilities: tokens/s

Random weights of the published shapes, bf16, optimizer states in bf16, completions of forced length, a reward with
variance in every group. The most important measurements come first; one that no longer fits into the time says so in its
row. --rehearse tries the script with the nano model and few tokens, on the CPU unless --device says otherwise. Its numbers
mean nothing and its rows have no floors. Exit code 0 unless something did not run.

This file owns the work, the floors and the order. h200_run.py runs the processes, results.py
writes the results.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import environments
import h200_run
import machine
import results
from results import GIB


@dataclass(frozen=True)
class Work:
    """The sizes of everything that is measured."""

    models: tuple = ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b")
    prompt_tokens: int = 64
    new_tokens: int = 256
    rollouts: tuple = (256, 64)  # Sequences at once.
    batch: int = 4
    seq: int = 1024
    prompts: int = 32
    samples: int = 8
    micro_batch: int = 32  # TRL's sequences per forward; all 256 at once would not leave room for the logits.
    exact_tokens: tuple = (100_000, 20_000, 5_000)  # By model.
    repeats: int = 5


SMALL = Work(
    models=("nano",), prompt_tokens=8, new_tokens=8, rollouts=(4, 2), batch=2, seq=16, prompts=4, samples=4,
    micro_batch=8, exact_tokens=(1_000,), repeats=2,
)

# Bytes of weights that a token reads, and of keys and values that it adds.
DECODED = {
    "qwen2.5-7b": (14.14e9, 57344), "qwen2.5-3b": (6.17e9, 36864), "qwen2.5-1.5b": (3.09e9, 28672),
    "qwen2.5-0.5b": (0.988e9, 12288),
}
# (model, sequences, tokens of prompts, new ones) -> tokens/s.
DECODE_FLOORS = {
    ("qwen2.5-7b", 8, 64, 1024): 1950, ("qwen2.5-7b", 64, 64, 256): 13e3, ("qwen2.5-7b", 256, 64, 256): 31e3,
    ("qwen2.5-3b", 64, 64, 256): None, ("qwen2.5-3b", 256, 64, 256): 60e3, ("qwen2.5-1.5b", 64, 64, 256): None,
    ("qwen2.5-1.5b", 256, 64, 256): 100e3, ("qwen2.5-0.5b", 8, 64, 4096): None, ("qwen2.5-0.5b", 64, 64, 256): None,
    ("qwen2.5-0.5b", 256, 64, 256): 195e3, ("qwen2.5-0.5b", 256, 512, 1024): 140e3,
    ("qwen2.5-1.5b", 256, 512, 1024): 65e3, ("qwen2.5-3b", 256, 512, 1024): 42e3, ("qwen2.5-7b", 256, 512, 1024): 23e3,
}
BANDWIDTH = 4.8e12  # Bytes per second of the card's memory.

# (sequences, model) -> tokens/s.
ROLLOUT_FLOORS = {
    (256, "smollm2-135m"): 130e3, (256, "qwen2.5-0.5b"): 195e3, (256, "qwen2.5-1.5b"): 100e3,
    (64, "smollm2-135m"): 60e3, (64, "qwen2.5-0.5b"): 50e3, (64, "qwen2.5-1.5b"): 25e3,
}
TRAIN_FLOORS = {"smollm2-135m": 310e3, "qwen2.5-0.5b": 140e3, "qwen2.5-1.5b": 56e3}  # Tokens/s.
MEMORY_FLOORS = {("smollm2-135m", "cheap"): 2.5, ("qwen2.5-0.5b", "cheap"): 6.4, ("qwen2.5-0.5b", "layer"): 4.3}  # GiB.
LORA_RANK = 32
LORA_FORMS = {"": [], ", merged": ["--lora-merge"], ", weights in 4 bits": ["--lora-quantize", "nf4"]}
# Over training all weights; over the model without adapters. Merged weights are for speed, and adapters alone for memory.
LORA_RATIOS = {"train": {"": 1.25, ", merged": 1.25}, "rollout": {"": 0.85, ", merged": 0.85}}
STEP_FLOORS = {"smollm2-135m": 0.50, "qwen2.5-0.5b": 0.62, "qwen2.5-1.5b": 1.55}  # Seconds, all weights.
VLLM_RATIOS = (1.1, 1.4)  # Over vLLM without and with log-probabilities.
START_FLOORS = {"cold": 40, "warm": 5}  # Seconds.

# Of one model: sequences, tokens of prompts, new ones, repeats; the most telling first, the longest last.
VLLM_SHAPES = {
    "qwen2.5-7b": [(64, 64, 256, 3), (8, 64, 1024, 2), (256, 64, 256, 3), (256, 512, 1024, 1)],
    "qwen2.5-3b": [(64, 64, 256, 3), (256, 64, 256, 3), (256, 512, 1024, 1)],
    "qwen2.5-1.5b": [(64, 64, 256, 3), (256, 64, 256, 3), (256, 512, 1024, 1)],
    "qwen2.5-0.5b": [(64, 64, 256, 3), (256, 64, 256, 3), (256, 512, 1024, 1)],
}
AFTER_S = 60  # Kept for our second measurement, after vLLM.

TRAINERS = {"eager": {}, "compile": {"compiled": 1}, "liger": {"liger": 1}}
SPEED_LEVEL = "cheap"  # The recompute level of the speed rows. Its memory comes from the same run.


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Ends the running contender too.
    before = environments.BENCH / "results" / "h200.json"
    kept = results.Results(options.results / "h200.json", None if options.rehearse else before)
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as scratch:
        part = Part(options, kept, Path(scratch))
        kept.begin(options.part, part.facts())
        PARTS[options.part](part)
        part.profile_slow()
        part.end()
    rows = [row for row in kept.found["rows"] if row["part"] == options.part]
    missed = sum(row["holds"] is False for row in rows)
    part.clock.say(f"{options.part} is over; rows below their floor: {missed}; {kept.path}")
    return 1 if any(failed(row) for row in rows) else 0


def failed(row):
    """Whether a contender of the row did not run. A missed floor is a result."""
    return "error" in row or any("error" in peer for peer in row.get("peers", {}).values())


def arguments():
    parser = argparse.ArgumentParser(
        prog="h200.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("binary", type=Path, help="the plimsoll binary")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--results", type=Path, help="folder of h200.json and .md (default bench/results)")
    parser.add_argument("--seconds", type=float, default=455, help="time of the part (default 455)")
    parser.add_argument("--rehearse", action="store_true", help="tries the script without a GPU; needs --results")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default cuda; cpu with --rehearse")
    options = parser.parse_args()
    if options.rehearse and options.results is None:
        parser.error("--rehearse needs --results: its numbers are not for bench/results")
    if options.device == "cpu" and not options.rehearse:
        parser.error("--device cpu is for --rehearse")
    if not (options.binary.is_file() and os.access(options.binary, os.X_OK)):
        parser.error(f"{options.binary} is not a program")
    options.binary = options.binary.resolve()
    options.device = options.device or ("cpu" if options.rehearse else "cuda")
    options.results = options.results or environments.BENCH / "results"
    return options


class Part:
    """A running part: its work, its clock, the GPU, and the results that it adds to."""

    def __init__(self, options, kept, caches):
        self.options, self.results, self.caches = options, kept, caches
        self.name = options.part
        self.work = SMALL if options.rehearse else Work()
        self.clock = h200_run.Clock(options.seconds)
        self.card = h200_run.Card()
        self.free_before = self.card.read()
        self.versions = {}
        self.slow = []  # Rows that missed their floor, and the arguments of our command.

    def facts(self):
        """Returns the machine, GPU, binary and versions of the part."""
        commit = os.environ.get("PLIMSOLL_COMMIT") or machine.commit(environments.BENCH.parent)
        version = subprocess.run([self.options.binary, "--version"], capture_output=True, text=True).stdout.split()
        self.versions["plimsoll"] = version[-1] if version else "unknown"
        return {
            "when": time.strftime("%Y-%m-%d %H:%M"), "commit": commit, "machine": machine.facts(), "gpu": gpu_facts(),
            "binary_sha256": hashlib.sha256(self.options.binary.read_bytes()).hexdigest(), "versions": self.versions,
        }

    def end(self):
        free = {}
        if self.free_before:
            free = {"before": self.free_before["free"], "after": self.card.read()["free"]}
        self.results.note(self.name, seconds=self.clock.gone(), memory_free=free, versions=self.versions)
        if free and (self.name == "ours" or not self.results.found["memory_free"]):
            self.results.put(memory_free=free)

    def ours(self, label, model, words, limit_s=120, needs_s=15):
        """Runs our binary. Returns its JSON object or {"error"}. Adds a row that compares its plan with the GPU's memory."""
        if self.clock.left() < needs_s:
            return self.no_time(label, model)
        limit_s = min(limit_s, self.clock.left())
        asked = [*words, "--model", f"random:{model}"]
        found = h200_run.ours(self.options.binary, asked, self.options.device, self.caches, self.card, limit_s)
        said = f"{found.get('median') or 0:.6g} {found['unit']}" if "unit" in found else "ran"
        shown = found.get("error") or said
        self.clock.say(f"{label}, {model}: plimsoll {shown} ({found['seconds']:.1f} s with its start)")
        found["words"] = words
        readings = {"cuMemGetInfo": found.get("device_used_bytes"), "NVML": found["card_bytes"]}
        readings = {how: number for how, number in readings.items() if number}
        if "error" not in found and "--profile" not in words and found.get("device_planned_bytes") and readings:
            plan = results.plan(f"{label}, {model}", found["device_planned_bytes"], readings)
            self.results.add_plan(self.name, plan)
        return found

    def peer(self, label, name, model, script, limit_s, repeats=None, needs_s=45, **numbers):
        """Runs a peer. Returns its spread or {"error"}."""
        if self.clock.left() < needs_s:
            return self.no_time(f"{label}: {name}", model)
        limit_s = min(limit_s, self.clock.left())
        repeats = repeats or self.work.repeats
        found = h200_run.peer(script, f"random:{model}", self.options.device, repeats, limit_s, **numbers)
        self.versions |= found.get("versions", {})
        shown = f"{found['median']:.6g}" if "median" in found else found["error"]
        self.clock.say(f"{label}, {model}: {name} {shown} ({found['seconds']:.1f} s with its start)")
        return found

    def no_time(self, label, model):
        error = f"not run: the part's {self.clock.seconds:.0f} s were nearly over"
        self.clock.say(f"{label}, {model}: {error}")
        return {"error": error}

    def row(self, what, model, unit, found, peers=None, best=None, ours="median", **more):
        """Adds a row. `ours` is a field of `found` or a number; `best` names the peer in the row."""
        peers = peers or {}
        value = found.get(ours) if isinstance(ours, str) else ours
        row = results.row(
            self.name, what, model, unit, value, peer_name=best, peers=peers, error=found.get("error"),
            spread={key: found[key] for key in ("median", "min", "max", "repeats") if key in found},
            share_of_peak=found.get("share_of_peak") if ours == "median" else None,
            command=found.get("command"), **more,
        )
        self.results.add_row(row)
        if row["holds"] is False and value is not None and ours == "median":
            self.slow.append((row, found["words"]))

    def profile_slow(self):
        """Profiles the kernels of rows that missed their floor, while there is time."""
        for row, words in self.slow:
            at = words.index("--repeats") + 1
            found = self.ours(f"profile of {row['what']}", row["model"], [*words[:at], 1, *words[at + 1:], "--profile"])
            if "profile" in found:
                row["profile"] = found["profile"]
                self.results.write()


def gpu_facts():
    """Returns name, driver and memory from nvidia-smi; empty without a GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    cells = [cell.strip() for cell in done.stdout.partition("\n")[0].split(",")]
    return dict(zip(("name", "driver", "memory_mib"), cells)) if done.returncode == 0 and len(cells) == 3 else {}


# ---- Commands of our binary ---------------------------------------------------------------------------------------


def rollout(part, sequences, model, dtype="bf16", **limits):
    work = part.work
    words = ["rollout", "--sequences", sequences, "--prompt-tokens", work.prompt_tokens]
    words += ["--new-tokens", work.new_tokens, "--dtype", dtype, "--repeats", work.repeats]
    return part.ours(rollout_label(work, sequences, dtype), model, words, **limits)


def rollout_label(work, sequences, dtype="bf16"):
    return f"rollout {sequences} x ({work.prompt_tokens} + {work.new_tokens})" + other_dtype(dtype)


def train(part, model, level, dtype="bf16", repeats=None, **limits):
    work = part.work
    words = ["train", "--batch", work.batch, "--seq", work.seq, "--recompute", level, "--dtype", dtype]
    words += ["--repeats", repeats or 2 * work.repeats]
    return part.ours(train_label(work, level, dtype), model, words, **limits)


def train_label(work, level, dtype="bf16"):
    return f"training {work.batch} x {work.seq}, recompute {level}" + other_dtype(dtype)


def step(part, model, form="", more=(), **limits):
    work = part.work
    words = ["step", "--prompts", work.prompts, "--group", work.samples, "--prompt-tokens", work.prompt_tokens]
    words += ["--new-tokens", work.new_tokens, "--repeats", work.repeats, *more]
    return part.ours(step_label(work) + form, model, words, **limits)


def step_label(work):
    return f"GRPO step {work.prompts} x {work.samples} x ({work.prompt_tokens} + {work.new_tokens})"


def other_dtype(dtype):
    return "" if dtype == "bf16" else f", {dtype}"


# ---- Rows of several parts ---------------------------------------------------------------------------------------


def rollout_row(part, sequences, model, found, peers=None):
    best = next(iter(peers), None) if peers else None
    floor = ROLLOUT_FLOORS.get((sequences, model))
    label = rollout_label(part.work, sequences)
    part.row(label, model, "tokens/s", found, peers, best, peer=median(peers, best), floor=floor)


def train_rows(part, model, level, found, peers=None):
    """Adds the speed, compared with the fastest peer, and the arena of the same run, compared with the leanest peer."""
    label, asked, shown = train_label(part.work, level), {}, {}
    fast, lean = best_of(peers, "median", max), best_of(peers, "device_bytes", min)
    if level == SPEED_LEVEL:  # This row has the peers' details and the speed floors.
        asked = {"floor": TRAIN_FLOORS.get(model)}
        shown = peers
    part.row(label, model, "tokens/s", found, shown, fast, peer=median(peers, fast), **asked)
    arena_bytes, note = arena(found)
    part.row(
        f"{label}: peak device memory", model, "GiB", found, best=lean, better="less", note=note,
        ours=arena_bytes / GIB if arena_bytes else None, peer=peers[lean]["device_bytes"] / GIB if lean else None,
        floor=MEMORY_FLOORS.get((model, level)),
    )


def arena(found):
    """Returns (bytes, note) of our arena. Like a peer's max_memory_allocated, it is the memory of tensors."""
    if "device_arena_bytes" in found:
        return found["device_arena_bytes"], None
    if "device_planned_bytes" in found:
        return found["device_planned_bytes"], "Plimsoll's number is the whole plan, driver and libraries included"
    return None, None


def step_row(part, model, found, peers=None, form=""):
    best = next(iter(peers), None) if peers else None
    part.row(
        step_label(part.work) + form, model, "s", found, peers, best, better="less", peer=median(peers, best),
        floor=None if form else STEP_FLOORS.get(model), seconds_of_last=found.get("seconds_of_last"),
    )


def best_of(peers, key, choose):
    """Returns the name of the peer with the largest or smallest `key`; None if none ran."""
    ran = [name for name, peer in (peers or {}).items() if key in peer]
    return choose(ran, key=lambda name: peers[name][key], default=None)


def median(peers, name):
    return peers[name].get("median") if name else None


# ---- The parts ---------------------------------------------------------------------------------------------------


def part_ours(part):
    """Measures what no other part does: the start, exactness, and plans of more shapes and types."""
    work, small = part.work, part.work.models[0]
    for state in ("cold", "warm"):  # Each part has its own caches, so its first run compiles every kernel.
        found = train(part, small, SPEED_LEVEL, repeats=1)
        part.row(
            f"start to the first training step, {state} kernel cache", small, "s", found, better="less",
            ours=None if "error" in found else found["seconds"], floor=None if work is SMALL else START_FLOORS[state],
            note="the whole process of `bench train --repeats 1`, two steps and the measuring of the card's peak in it",
        )
    exactness(part)
    for model in work.models:  # 2 repeats are enough to see the peak.
        train_rows(part, model, "none", train(part, model, "none", repeats=2))
    for model in work.models[:2]:
        for level in ("none", "layer"):
            train(part, model, level, dtype="f32", repeats=2)
        rollout(part, work.rollouts[0], model, dtype="f32")


def exactness(part):
    """Compares rollout and trainer bit by bit, the smallest model first and with the most tokens."""
    total, models = {"tokens": 0, "mismatches": 0, "max_abs_diff": 0.0}, []
    for model, tokens in zip(part.work.models, part.work.exact_tokens):
        found = part.ours("exactness", model, ["exactness", "--tokens", tokens], limit_s=150)
        what = f"exactness: mismatches in at least {tokens:,} tokens"
        part.row(what, model, "tokens", found, ours="mismatches", floor=0, better="less")
        if "error" not in found:
            models.append(model)
            total = {
                "tokens": total["tokens"] + found["tokens"], "mismatches": total["mismatches"] + found["mismatches"],
                "max_abs_diff": max(total["max_abs_diff"], found["max_abs_diff"]),
            }
    if models:
        part.results.put(exactness={**total, "models": models})


def part_decode(part):
    """Measures decoding of models up to 7B, the longest work last."""
    rows = DECODE_FLOORS if part.work is not SMALL else {("nano", 2, 8, 8): None}
    for (model, sequences, prompt, new), floor in rows.items():
        words = ["rollout", "--sequences", sequences, "--prompt-tokens", prompt, "--new-tokens", new]
        words += ["--repeats", 3 if new <= 256 else 1]
        label = f"decode {sequences} x ({prompt} + {new})"
        found, note = part.ours(label, model, words), None
        if model in DECODED and "median" in found:
            weights, of_token = DECODED[model]
            seconds, keys = sequences / found["median"], of_token * sequences * (prompt + new / 2)
            note = f"{1e3 * seconds:.2f} ms a token, prompts included: {(weights + keys) / BANDWIDTH / seconds:.0%} of the memory's rate"
        part.row(label, model, "tokens/s", found, floor=floor, note=note)


def part_rollout(part):
    """Compares 256 sequences with transformers' generate(); 64 run alone, where vLLM is the peer that counts."""
    many, few = part.work.rollouts
    for model in part.work.models:
        rollout_row(part, few, model, rollout(part, few, model))
        found = rollout(part, many, model)
        rollout_row(part, many, model, found, {"transformers": generate(part, many, model, 2)})


def generate(part, sequences, model, repeats):
    work = part.work
    return part.peer(
        rollout_label(work, sequences), "transformers", model, "hf_generate.py", limit_s=120, repeats=repeats,
        sequences=sequences, prompt_tokens=work.prompt_tokens, new_tokens=work.new_tokens,
    )


def part_train(part):
    """Compares with PyTorch: all three trainers for the two smaller models, the fastest of them for the largest.

    The speed is taken before and after the peers, and the slower of both counts.
    """
    work, fastest = part.work, None
    for model in work.models[:2]:
        found = train(part, model, SPEED_LEVEL)
        lean = train(part, model, "layer")
        peers = {name: trainer(part, name, model) for name in TRAINERS}
        train_rows(part, model, SPEED_LEVEL, slower(found, train(part, model, SPEED_LEVEL)), peers)
        train_rows(part, model, "layer", lean, peers)
        fastest = best_of(peers, "median", max) or fastest
    for model in work.models[2:]:
        found = train(part, model, SPEED_LEVEL)
        peers = {fastest: trainer(part, fastest, model, needs_s=60)} if fastest else {}
        train_rows(part, model, SPEED_LEVEL, slower(found, train(part, model, SPEED_LEVEL)), peers)


def slower(before, after):
    """Returns `before` with the spread of the slower run. A run that failed does not count."""
    ran = [found for found in (before, after) if "median" in found]
    slow = min(ran, key=lambda found: found["median"], default={})
    return {**before, **{key: slow[key] for key in ("median", "min", "max", "repeats", "share_of_peak") if key in slow}}


def trainer(part, name, model, needs_s=30):
    work = part.work
    return part.peer(
        f"training {work.batch} x {work.seq}", name, model, "torch_train.py", limit_s=150, repeats=2 * work.repeats,
        needs_s=needs_s, sequences=work.batch, sequence_tokens=work.seq, warm_up=4, **TRAINERS[name],
    )


def part_step(part):
    """Compares with TRL. The largest model runs only in Plimsoll, and first, because TRL's runs are slow."""
    work = part.work
    for model in work.models[2:]:
        step_row(part, model, step(part, model))
    for model in work.models[:2]:
        found = step(part, model)
        step_row(part, model, found, {"TRL": trl_step(part, "TRL", model)})


def trl_step(part, name, model, **more):
    work = part.work
    return part.peer(
        step_label(work), name, model, "trl_step.py", limit_s=210, repeats=3, prompts=work.prompts, samples=work.samples,
        prompt_tokens=work.prompt_tokens, new_tokens=work.new_tokens, micro_batch=work.micro_batch, **more,
    )


def lora_rank(work):
    return 8 if work is SMALL else LORA_RANK


def part_lora(part):
    """Compares adapters of all linear layers, in each form, with training all weights, and with sampling from the model alone."""
    work = part.work
    rank = lora_rank(work)
    for model in work.models[-2:]:
        for measure, label in [(train_with, train_label(work, SPEED_LEVEL)), (rollout_with, rollout_label(work, work.rollouts[-1]))]:
            kind, plain = measure(part, model, [])
            name = "all weights" if kind == "train" else "no adapters"
            for form, words in LORA_FORMS.items():
                _, found = measure(part, model, ["--lora-rank", rank, *words], f", LoRA of rank {rank}{form}")
                floor = None if work is SMALL else LORA_RATIOS[kind].get(form)
                what = f"{label}, LoRA of rank {rank}{form}"
                part.row(what, model, "tokens/s", found, {name: plain}, name, peer=plain.get("median"), ratio_floor=floor)
    for form, words in LORA_FORMS.items():
        words = ["exactness", "--tokens", work.exact_tokens[min(1, len(work.exact_tokens) - 1)], "--lora-rank", rank, *words]
        found = part.ours(f"exactness with adapters{form}", work.models[-2:][0], words, limit_s=150)
        what = f"exactness with LoRA of rank {rank}{form}: mismatches in at least {words[2]:,} tokens"
        part.row(what, work.models[-2:][0], "tokens", found, ours="mismatches", floor=0, better="less")


def part_lora_step(part):
    """Compares a GRPO step with adapters, in each form in bf16, with TRL and peft."""
    model, rank = part.work.models[-2:][0], lora_rank(part.work)
    forms = {
        f", LoRA of rank {rank}{form}": ["--lora-rank", rank, *words]
        for form, words in LORA_FORMS.items() if "--lora-quantize" not in words
    }
    found = {form: step(part, model, form, words) for form, words in forms.items()}
    peers = {"TRL + peft": trl_step(part, "TRL + peft", model, lora_rank=rank)}
    for form in forms:
        step_row(part, model, found[form], peers, form)


def train_with(part, model, more, form=""):
    work = part.work
    words = ["train", "--batch", work.batch, "--seq", work.seq, "--recompute", SPEED_LEVEL, "--repeats", work.repeats]
    return "train", part.ours(train_label(work, SPEED_LEVEL) + form, model, [*words, *more])


def rollout_with(part, model, more, form=""):
    work = part.work
    words = ["rollout", "--sequences", work.rollouts[-1], "--prompt-tokens", work.prompt_tokens]
    words += ["--new-tokens", work.new_tokens, "--repeats", work.repeats]
    return "rollout", part.ours(rollout_label(work, work.rollouts[-1]) + form, model, [*words, *more])



def part_vllm(part):
    """Compares rollout with vLLM. Ours runs before and after it, and the slower of the two counts."""
    model = "qwen2.5-" + part.name.removeprefix("peers-")
    shapes = VLLM_SHAPES[model]
    if part.work is SMALL:
        model, shapes = "nano", [(2, 8, 8, 2), (4, 8, 8, 2)]
    before = {shape: rollout_of(part, model, shape) for shape in shapes}
    rows = [(*shape[:3], logprobs, shape[3]) for shape in shapes for logprobs in (0, 1)]
    limit_s, label = part.clock.left() - AFTER_S, f"{part.name}, vLLM"
    if limit_s > AFTER_S:
        theirs, versions, seconds = h200_run.vllm(model, rows, limit_s)
        part.versions |= versions
        part.clock.say(f"{label}, {model}: {sum('median' in one for one in theirs.values())} rows in {seconds:.1f} s")
    else:
        theirs = {row[:4]: part.no_time(label, model) for row in rows}
    for shape in shapes:
        vllm_rows(part, model, shape, before[shape], theirs)
    for shape in shapes:
        after = rollout_of(part, model, shape, ", after vLLM")
        if "median" in after:
            vllm_rows(part, model, shape, before[shape], theirs, after["median"])


def rollout_of(part, model, shape, form=""):
    sequences, prompt, new, repeats = shape
    words = ["rollout", "--sequences", sequences, "--prompt-tokens", prompt, "--new-tokens", new]
    words += ["--dtype", "bf16", "--repeats", repeats]
    return part.ours(f"rollout {sequences} x ({prompt} + {new}){form}", model, words)


def vllm_rows(part, model, shape, found, theirs, after=None):
    """Adds or replaces the two rows of a shape. Ours always returns log-probabilities; vLLM only if asked."""
    first = found.get("median")
    ours = min(filter(None, (first, after)), default=None)
    note = f"Plimsoll before vLLM {results.number(first)}, after it {results.number(after)}" if after else None
    forms = (", vLLM without log-probabilities", ", vLLM with log-probabilities")
    for logprobs, (form, ratio) in enumerate(zip(forms, VLLM_RATIOS)):
        what = f"rollout {shape[0]} x ({shape[1]} + {shape[2]}){form}"
        kept = part.results.found["rows"]
        kept[:] = [row for row in kept if (row["part"], row["what"], row["model"]) != (part.name, what, model)]
        peer = theirs[(*shape[:3], logprobs)]
        part.row(
            what, model, "tokens/s", found, {"vLLM": peer}, "vLLM", ours=ours, peer=peer.get("median"),
            ratio_floor=ratio, note=note,
        )


PARTS = {"ours": part_ours, "decode": part_decode, "rollout": part_rollout, "train": part_train, "step": part_step,
         "lora": part_lora, "lora-step": part_lora_step,
         **{f"peers-{model.removeprefix('qwen2.5-')}": part_vllm for model in VLLM_SHAPES}}


if __name__ == "__main__":
    sys.exit(main())
