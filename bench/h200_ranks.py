"""Ranks on cards: whether their number changes a bit, how their time grows with it, whether the plan of their memory is true, and
what happens if one is killed. See h200_ranks.sh."""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

import one_card_ranks
from h200_run import Clock
from machine import commit
from ranks_life import Cards, Life, differ, events, left
from ranks_page import page
from results import spread, write

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RUN = REPOSITORY / "runs" / "first.toml"
# What of a run a rank does: tokens of a response, and rows of a micro-batch. `bits` has states in bf16 where those in f32 would
# mostly measure the disk.
MODELS = {
    "0.5b": {"model": "random:qwen2.5-0.5b", "prompts": 64, "sets": ["train.optimizer_dtype=f32"],
             "bits": ["train.optimizer_dtype=f32"], "bits_steps": 3},
    "1.5b": {"model": "random:qwen2.5-1.5b", "prompts": 64, "sets": ["train.optimizer_dtype=f32"],
             "bits": ["train.optimizer_dtype=bf16"], "bits_steps": 2},
    "7b": {"model": "random:qwen2.5-7b", "prompts": 32,
           "sets": ["train.optimizer_dtype=bf16", "train.grad_dtype=f32", "train.recompute=layer"],
           "bits": ["train.optimizer_dtype=int8"], "bits_steps": 2},
}
# Other shapes: states in f32 or bf16, adapters, many experts, linear attention, and a model that only several cards hold.
SMALL = ["train.optimizer_dtype=bf16", "train.recompute=layer"]
# Of these a checkpoint has tens of gigabytes: samples and metrics of steps under way are compared, which follow from every weight.
UNDER_WAY = {"is_under_way": True, "bits_steps": 3}
MODELS.update({
    "1.5b f32": {**MODELS["1.5b"], "bits": ["train.optimizer_dtype=f32"], **UNDER_WAY},
    "7b bf16": {**MODELS["7b"], "bits": SMALL, **UNDER_WAY},
    "0.5b lora": {**MODELS["0.5b"], "sets": ["lora.rank=32"], "bits": ["lora.rank=32"]},
    "7b lora": {**MODELS["7b"], "sets": ["lora.rank=32"], "bits": ["lora.rank=32"]},
    "qwen3-30b-a3b lora": {"model": "random:qwen3-30b-a3b", "prompts": 16, "sets": ["lora.rank=16"], "bits": ["lora.rank=16"], **UNDER_WAY},
    "qwen3.5-4b": {"model": "random:qwen3.5-4b", "prompts": 16, "sets": SMALL, "bits": SMALL, **UNDER_WAY},
    "qwen3-30b-a3b": {"model": "random:qwen3-30b-a3b", "prompts": 16, "sets": SMALL, "bits": SMALL, **UNDER_WAY},
    # Four steps took 150 s on four H200.
    "32b": {"model": "random:qwen2.5-32b", "prompts": 16, "sets": SMALL, "bits": SMALL, **UNDER_WAY},
})
# The same at stage 3, where ranks share out the weights too; one rank has them whole.
MODELS.update({f"{name} stage 3": {**of, **{key: [*of[key], "run.zero_stage=3"] for key in ("sets", "bits")}} for name, of in MODELS.items()})
REHEARSAL = {"model": "builtin:nano", "prompts": 16, "sets": [], "bits": [], "bits_steps": 3, "tokens": 8}
NEW_TOKENS = 256
STEPS = 5
# Steps before the times count: the first compiles and records passes.
WARM = 2
# Of the run whose ranks are killed: steps, those between two checkpoints, and those before the first kill and between two.
FAULT_STEPS, FAULT_SAVES, FAULT_FIRST, FAULT_EACH = 600, 50, 70, 60
# Seconds left under which no further run begins.
LEAST_S = 10
TIMES = ["time/rollout", "time/reward", "time/score", "time/update", "step_time"]


class Bench:
    """What all parts share: the binary, the cards, the time that is left, and the rows so far."""

    def __init__(self, args):
        self.binary, self.rehearse = args.binary.resolve(), args.rehearse
        self.cards, self.clock = Cards(), Clock(args.seconds)
        self.limit_s = args.limit
        self.commit = os.environ.get("PLIMSOLL_COMMIT") or commit(REPOSITORY)
        self.path = args.results / "h200_ranks.json"
        found = json.loads(self.path.read_text()) if self.path.exists() else {"rows": []}
        self.rows, self.notes = found["rows"], found.get("notes", [])

    def command(self, words, sets):
        device = "cpu" if self.rehearse else "cuda"
        flags = [word for one in [f"run.device={device}", *sets] for word in ("--set", one)]
        return [str(word) for word in [self.binary, *words, *flags]]

    def train(self, ranks, out, sets, *more):
        """Starts a run of `ranks` processes that writes to `out`."""
        return Life(self.command(["train", RUN, "-q", "--ranks", ranks, *more], [*sets, f"run.dir={out}"]), out)

    def limit(self):
        """Returns the seconds that one run may take."""
        return max(1, min(self.limit_s, self.clock.left()))

    def is_over(self, what):
        """True if a run would hardly begin in the time that is left; says what is not measured."""
        if self.clock.left() < LEAST_S:
            self.clock.say(f"{what}: not measured, for the time is over")
        return self.clock.left() < LEAST_S

    def add(self, row):
        """Keeps a row, which replaces an earlier one of the same on as many cards, and writes the files. Notes, which people add, stay."""
        row = {**row, "commit": self.commit, "cards": len(self.cards.cards)}
        key = lambda row: (row["part"], row["model"], str(row["ranks"]), row["cards"], row.get("hit", -1), row.get("exchange", ""))
        self.rows = sorted([old for old in self.rows if key(old) != key(row)] + [row], key=key)
        write(self.path, {"rows": self.rows, "notes": self.notes}, page)
        self.clock.say(json.dumps({name: value for name, value in row.items() if name not in ("sha256", "steps")}))


def settings(model, prompts):
    return [
        f"model={model['model']}", f"rollout.prompts_per_step={prompts}", f"rollout.max_new_tokens={model.get('tokens', NEW_TOKENS)}",
        "train.micro_batch_tokens=16384", "eval.every=100000", "checkpoint.every=100000", "eval.prompts_max=64",
        # Random weights earn no reward: their gradient is that of the entropy.
        "loss.entropy_coef=0.01",
    ]


def bits(bench, name, all_ranks):
    """Adds a row for each number of ranks: what `plimsoll bench ranks` found, compared with the first, or with that of an earlier call
    on the same build."""
    model = model_of(bench, name)
    is_first = lambda row: (row["part"], row["model"], row.get("commit")) == ("bits", name, bench.commit) and "sha256" in row
    first = next(filter(is_first, bench.rows), None)
    for ranks in all_ranks:
        row = {"part": "bits", "model": name, "ranks": ranks}
        if bench.is_over(f"bits of {name} on {ranks}"):
            return
        sets = [*settings(model, model["prompts"]), *model["bits"]]
        if model.get("is_under_way"):
            found, error = under_way(bench, ranks, sets, model["bits_steps"])
        else:
            words = ["bench", "ranks", RUN, "--ranks", ranks, "--steps", model["bits_steps"], "--json"]
            out, error = limited(bench.command(words, sets), bench.limit())
            found = {} if error else json.loads(out)["rows"][0]
        if error:
            bench.add({**row, "error": error})
            continue
        row.update(found, run=str(RUN.relative_to(REPOSITORY)))
        first = first or row
        row.update(compared_with=first["ranks"], differ=differ(first["sha256"], row["sha256"]), settings=model["bits"])
        bench.add(row)


def under_way(bench, ranks, sets, count):
    """Trains for `count` steps and ends the run in the next. Returns the SHA-256 of the samples and metrics of these steps, and an error."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        life = bench.train(ranks, out, [*sets, "train.steps=100", "checkpoint.keep=1"])
        steps = life.steps(count + 1, bench.limit())[:count]
        if len(steps) < count or life.run.poll() is not None:
            life.end()
            return {}, life.error() or f"{len(steps)} steps within {bench.limit():.0f} s"
        life.end()
        bench.cards.wait_idle()
        norms = [step["metrics"]["grad_norm"] for step in steps]
        if min(norms) <= 0:
            return {}, f"nothing was learned: {norms}"
        return {"sha256": left(out, count), "step_seconds": min(step["metrics"]["step_time"] for step in steps), "grad_norms": norms}, ""


def limited(command, limit_s):
    """Returns what a command printed, and the last words of its stderr if it failed."""
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, error = run.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        return "", f"ended after {limit_s:.0f} s: {run.communicate()[1].strip()[-300:]}"
    return out, "" if run.returncode == 0 else error.strip()[-600:] or f"exit code {run.returncode}"


def scale(bench, name, all_ranks):
    """Adds rows: medians of an update and of a step, where each rank has the work that one has alone; the plan of a card's
    memory and what it held; and what a run of several ranks does when one is killed, which is how it ends here."""
    model = model_of(bench, name)
    for ranks in all_ranks:
        row = {"part": "scale", "model": name, "ranks": ranks}
        if bench.is_over(f"scale of {name} on {ranks}"):
            return
        sets = [*settings(model, model["prompts"] * ranks), *model["sets"], "train.steps=100", "checkpoint.keep=1"]
        planned = plan(bench, ranks, sets)
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "run"
            life = bench.train(ranks, out, sets)
            steps = life.steps(STEPS, bench.limit())
            if len(steps) < STEPS:
                life.end()
                bench.cards.wait_idle()
                bench.add({**row, "error": life.error() or f"{len(steps)} steps within {bench.limit():.0f} s"})
                continue
            held = memory(bench, out)
            bench.add({**row, **timed(steps[:STEPS])})
            seen = life.kill(ranks - 1) if ranks > 1 else None
            life.end()
        idle = bench.cards.wait_idle()
        if planned and held:
            bench.add({"part": "memory", "model": name, "ranks": ranks, **planned, **held, "holds": is_true(planned, held)})
        if seen:
            bench.add({"part": "faults", "model": name, "ranks": ranks, "card_bytes_after": idle, **seen})


def timed(steps):
    """Returns the medians of the steps that count, and the parts of all."""
    counted = [step["metrics"] for step in steps[WARM:]]
    of = lambda name: spread([metrics[name] for metrics in counted])
    # Of builds that measure it, on several cards.
    exchange = {"exchange_s": of("time/exchange")} if "time/exchange" in counted[0] else {}
    parts = [{**{name: step["metrics"][name] for name in TIMES}, "ranks_waited": step.get("ranks_waited", [])} for step in steps]
    return {
        "update_s": of("time/update"), "rollout_s": of("time/rollout"), "reward_s": of("time/reward"), "step_s": of("step_time"),
        "update_tokens_per_s": of("tokens_per_second/update"), "micro_batches": counted[0]["update/micro_batches"], "steps": parts,
        **exchange,
    }


def plan(bench, ranks, sets):
    """Returns what `plimsoll plan` says of a card before the run; None without cards."""
    out, _ = limited(bench.command(["plan", RUN, "-q", "--json", "--ranks", ranks], sets), 30)
    found = json.loads(out) if out else {}
    card = found.get("pools", {}).get("device")
    return card and {"planned_bytes": card["peak_bytes"], "libraries_source": found["libraries_source"]}


def memory(bench, out):
    """Returns what the cards hold now, by NVML, and what rank 0 reported of its own; None without cards."""
    parts = [part for event in events(out, "memory") for part in event["parts"]]
    taken = [bytes for bytes in bench.cards.taken() if bytes > 64 << 20]
    return taken and {
        "card_bytes": taken, "reported_bytes": max((part["device_bytes"] for part in parts), default=0),
        "replanned_bytes": max((part["device_planned_bytes"] for part in parts), default=0),
    }


def is_true(planned, held):
    """True if every card holds at most what was planned, and at least 99 % of it."""
    return all(0.99 * planned["planned_bytes"] <= bytes <= planned["planned_bytes"] for bytes in held["card_bytes"])


def faults(bench, name, all_ranks):
    """Adds a row for each rank of the built-in model's run: killed in a step, resumed on another number of ranks, and compared with
    a run of one rank that was left alone."""
    ranks, chance = max(all_ranks), random.Random(1)
    sets = [f"train.steps={FAULT_STEPS}", "train.cut_multiple=8", "train.micro_batch_tokens=1024", "eval.every=200",
            f"checkpoint.every={FAULT_SAVES}"]
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder) / "alone"
        whole = bench.train(1, alone, sets)
        if whole.wait(bench.limit()) != 0:
            bench.add({"part": "faults", "model": name, "ranks": 1, "error": whole.error()})
            return
        for hit in range(ranks):
            if bench.is_over(f"rank {hit} killed"):
                return
            row, out = {"part": "faults", "model": name, "ranks": ranks, "hit": hit}, pathlib.Path(folder) / f"hit-{hit}"
            life = bench.train(ranks, out, sets)
            life.steps(FAULT_FIRST + FAULT_EACH * hit, bench.limit())
            time.sleep(chance.uniform(0, 0.02))
            row.update(life.kill(hit))
            life.end()
            row["card_bytes_after"] = bench.cards.wait_idle()
            row["steps_done"] = len(events(out, "step"))
            row["resumed_on"] = [2, 1, 3, 4][hit % 4]
            after = bench.train(row["resumed_on"], out, sets, "--resume")
            row["exit_after"] = after.wait(bench.limit())
            if row["exit_after"] == 0:
                row.update(differ=differ(left(alone), left(out)), compared=len(left(alone)))
            else:
                row["error"] = after.error()
            row["holds"] = bool(row.get("holds")) and row.get("differ") == []
            bench.add(row)


def resume(bench, name, all_ranks):
    """Adds a row: a run of the first number of ranks, whose last rank is killed after the first checkpoint, goes on with the second
    number, and is compared with a run of the last number that was left alone."""
    (ranks, then, alone), model = all_ranks, model_of(bench, name)
    sets = [*settings(model, model["prompts"]), *model["bits"], "train.steps=3", "checkpoint.every=1", "checkpoint.keep=1"]
    row = {"part": "resume", "model": name, "ranks": ranks, "resumed_on": then, "compared_with": alone}
    with tempfile.TemporaryDirectory() as folder:
        out, whole = pathlib.Path(folder) / "run", pathlib.Path(folder) / "alone"
        life = bench.train(ranks, out, sets)
        while len(events(out, "saved")) < 1 and life.run.poll() is None and bench.clock.left() > LEAST_S:
            time.sleep(0.02)
        seen = life.kill(ranks - 1)
        life.end()
        bench.cards.wait_idle()
        row.update({key: seen[key] for key in ("said_s", "ended_s", "sentence", "error") if key in seen}, steps_done=len(events(out, "step")))
        for count, to, more in [(then, out, ["--resume"]), (alone, whole, [])]:
            run = bench.train(count, to, sets, *more)
            if run.wait(bench.limit()) != 0:
                bench.add({**row, "error": run.error()})
                return
            bench.cards.wait_idle()
        bench.add({**row, "differ": differ(left(whole), left(out)), "compared": len(left(whole))})


def nccl(bench, name, all_ranks):
    """Adds a row for each number of ranks and each way of exchange: every card is a host of its own, joined to the others by the
    loopback's sockets alone; what the ranks leave is compared with what one rank leaves."""
    model = model_of(bench, name)
    sets = [*settings(model, model["prompts"]), *model["bits"], "eval.prompts_max=20"]
    run = lambda ranks, exchange, folder: one_card_ranks.run(
        bench.binary, ranks, ranks, exchange, pathlib.Path(folder) / "run", sets, is_apart=True, limit_s=bench.limit())
    with tempfile.TemporaryDirectory() as folder:
        alone, _, _ = run(1, "auto", folder)
    for ranks in (count for count in all_ranks if count > 1):
        for exchange in ["sockets", "nccl"]:
            row = {"part": "nccl", "model": name, "ranks": ranks, "exchange": exchange}
            if bench.is_over(f"{name} on {ranks} by {exchange}"):
                return
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found, plan, most = run(ranks, exchange, folder)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    bench.add({**row, "error": str(error)[-600:]})
                    continue
                steps = events(pathlib.Path(folder) / "run", "step")
            rows = {region["name"]: region["bytes"] for region in plan["regions"]}
            bench.add({
                **row, "differ": differ(alone, found), "compared": len(alone), "card_bytes": most << 20,
                "nccl_planned_bytes": rows.get("device.nccl", 0), "library": plan.get("libraries_source", "").rpartition(" by ")[2],
                "update_s": spread([step["metrics"]["time/update"] for step in steps[1:]]),
            })


def model_of(bench, name):
    under_way = {key: MODELS[name][key] for key in ("is_under_way",) if key in MODELS.get(name, {})}
    return {**REHEARSAL, **under_way} if bench.rehearse else MODELS[name]


PARTS = {"bits": bits, "scale": scale, "faults": faults, "resume": resume, "nccl": nccl}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--models", default="0.5b,1.5b")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--seconds", type=float, default=3600, help="for all of it")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one run")
    parser.add_argument("--results", type=pathlib.Path, default=REPOSITORY / "bench" / "results")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU with the built-in model: tries the script")
    args = parser.parse_args()
    bench, ranks = Bench(args), [int(n) for n in args.ranks.split(",")]
    for model in ["nano"] if args.part == "faults" else args.models.split(","):
        PARTS[args.part](bench, model, ranks)


if __name__ == "__main__":
    main()
