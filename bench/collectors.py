"""`compare.py collect`: compares collectors on CartPole, with random actions and with a policy: time and memory.

    native, 64 environments     wall time of a frame, two threads: EnvPool, Gymnasium's SyncVectorEnv
    native, 1,024 environments  the same: Gymnasium's numpy CartPole
    with a 64 x 64 policy, 64   CPU time of a frame, one thread: TorchRL's Collector over a vector environment of
                                Gymnasium's, which sets the floor, and over its SerialEnv; only Plimsoll gives log-probs
    Python, 8 and 64            CPU time of a frame, all processes: the bare loop over the same environments,
                                Gymnasium's AsyncVectorEnv, TorchRL's MultiSyncCollector and MultiAsyncCollector
                                (of two workers)
    a Python worker             PSS: TorchRL's, Gymnasium's
    10,000 native, 64 workers   memory in use compared with the plan

Each repeat runs all contenders once, every other repeat in the opposite order. A contender that fails is left out from
then on, and its row says why. This file owns the work, the floors and the order. collectors_run.py runs the processes,
results.py writes the results.
"""

import array
import json
import math
import os
import random
import struct
import subprocess
import time
from dataclasses import dataclass, field

import environments
import machine
import results
from collectors_run import Ours, Watch, peer
from results import MIB

NATIVE, PYTHON = "CartPole-v1", "gym:CartPole-v1"
WORKERS = 2  # For TorchRL, and for Plimsoll unless a case says otherwise. Equal to the number of threads.
POLICY_FILE = "policy.safetensors"
WORKER_BYTES_MAX = 30 * MIB


@dataclass(frozen=True)
class Case:
    """One work for all contenders. `peers`: name -> (environment, way of peers/collect.py, calls for each environment)."""

    what: str
    key: str  # What is compared: wall_us or cpu_us.
    env: str
    num_envs: int
    frames: int  # For Plimsoll.
    frames_each: int  # Of each environment in a batch.
    peers: dict
    floors: dict  # Peer -> rule, see results.collect_floor.
    at_most: float = None  # A floor in us.
    more: dict = field(default_factory=dict)

    @property
    def python(self):
        return self.env == PYTHON

    @property
    def clock(self):
        return {"wall_us": "wall", "cpu_us": "CPU"}[self.key]

    @property
    def file(self):
        return environment_file(self.env, self.num_envs, self.frames_each, **self.more)


def environment_file(env, num_envs, frames_each, **more):
    return {"env": env, "num_envs": num_envs, "frames_per_batch": num_envs * frames_each, **more}


def policy_case():
    """Both have an actor with two hidden layers of 64 and tanh, and no critic; actions are sampled."""
    return Case(
        "native CartPole, 64 environments, a 64 x 64 MLP policy", "cpu_us", NATIVE, 64, frames=2**21, frames_each=128,
        peers={
            "TorchRL, vector": ("torchrl", "torchrl-policy-vector", 300),
            "TorchRL, SerialEnv": ("torchrl", "torchrl-policy-serial", 150),
        },
        floors={"TorchRL, vector": ("times", 50.0)},
        more={"threads": 1, "policy.kind": "mlp", "policy.path": str(environments.CACHE / POLICY_FILE)},
    )


def write_policy(path, observed=4, choices=2, width=64):
    """Writes random actor weights as safetensors, with the names of torch.nn.Sequential."""
    path.parent.mkdir(exist_ok=True)
    draw, header, data = random.Random(0), {}, array.array("f")
    for place, (outputs, inputs) in zip((0, 2, 4), ((width, observed), (width, width), (choices, width))):
        for name, shape in (("weight", [outputs, inputs]), ("bias", [outputs])):
            begin = 4 * len(data)
            data.extend(draw.gauss(0.0, inputs**-0.5) for _ in range(math.prod(shape)))
            header[f"actor.{place}.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(data)]}
    words = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(words)) + words + data.tobytes())


def python_case(num_envs, num_workers, python, calls, above_bare_us):
    """Returns a case of Python environments. `calls`: calls per environment for each way; ways without one are left out."""
    ways = {
        "bare loop": ("gymnasium", "bare"), "Gymnasium Async": ("gymnasium", "async"),
        "TorchRL MultiSync": ("torchrl", "torchrl-sync"), "TorchRL MultiAsync": ("torchrl", "torchrl-async"),
    }
    return Case(
        f"Python CartPole, {num_envs} environments in {num_workers} worker(s)", "cpu_us", PYTHON, num_envs,
        frames=2**18, frames_each=128,
        peers={name: (*way, count) for (name, way), count in zip(ways.items(), calls)},
        floors={"bare loop": ("plus", above_bare_us)}, more={"python": python, "num_workers": num_workers},
    )


def cases(python):
    """Returns all cases. `python`: the interpreter of Plimsoll's workers."""
    threads = {"threads": WORKERS}
    return [
        Case(
            "native CartPole, 64 environments", "wall_us", NATIVE, 64, frames=2**24, frames_each=128,
            peers={"EnvPool": ("envpool", "envpool", 10_000), "Gymnasium Sync": ("gymnasium", "sync", 2_500)},
            floors={"EnvPool": ("times", 5.0)}, more=threads,
        ),
        Case(
            "native CartPole, 1,024 environments", "wall_us", NATIVE, 1024, frames=2**24, frames_each=32,
            peers={"Gymnasium numpy": ("gymnasium", "numpy", 10_000)},
            floors={"Gymnasium numpy": ("times", 1.0)}, at_most=0.06, more=threads,
        ),
        policy_case(),
        # Two workers with four environments each send twice as many messages as one worker, so both are measured.
        python_case(8, 1, python, (20_000, 2_000, 2_000, 2_000), above_bare_us=4.0),
        python_case(8, WORKERS, python, (20_000,), above_bare_us=4.0),
        python_case(64, WORKERS, python, (2_500, 300, 250, 250), above_bare_us=2.0),
    ]


def compare(options, failures):
    """Runs everything in turn and returns the results. Adds contenders that did not run, and why, to `failures`."""
    ours = Ours(options.binary)
    found = {
        "machine": machine.facts(), "commit": machine.commit(environments.BENCH.parent), "repeats": options.repeats,
        "when": time.strftime("%Y-%m-%d %H:%M"), "rows": [], "versions": {}, "other_cores": [],
    }
    try:
        found["versions"] |= ours.versions()
        python = str(environments.python("gymnasium"))
    except (OSError, subprocess.CalledProcessError) as error:
        failures.append(f"collect: {error}")
        return found
    write_policy(environments.CACHE / POLICY_FILE)
    for case in cases(python):
        runs, errors = in_turn(options, case, ours, found)
        add(found, results.collect_rows(left(case, options.skip), runs, errors), failures)
    add(found, worker_rows(ours, python, options.skip), failures)
    add(found, plan_rows(ours, python), failures)
    return found


def left(case, skip):
    """Returns the case without the peers of the environments in `skip`."""
    return Case(**{**vars(case), "peers": {name: way for name, way in case.peers.items() if way[0] not in skip}})


def add(found, rows, failures):
    for row in rows:
        failures += [f"collect: {row['what']}: {row[key]}" for key in ("error", "peer_error") if key in row]
    print(results.collect_lines(rows), flush=True)
    found["rows"] += rows


def in_turn(options, case, ours, found):
    """Returns ({contender: its runs}, {contender: why it was left out})."""
    contenders = {ours.name: lambda: ours.once(case)}
    for name, (environment, how, calls) in left(case, options.skip).peers.items():
        # Default arguments, because the loop variables change.
        contenders[name] = lambda words=(environment, how, case.num_envs, WORKERS, calls): peer(*words)
    runs, errors = {name: [] for name in contenders}, {}
    for number in range(options.repeats):
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            if name in errors:
                continue
            with machine.OtherCores(lambda: sum(os.times()[:4])) as others:  # Includes processes that have ended.
                run = contenders[name]()
            if "error" in run:
                errors[name] = run["error"]
                continue
            found["versions"] |= run.pop("versions", {})
            found["other_cores"].append(others.cores)
            runs[name].append({**run, "other_cores": others.cores})
            environments.say(f"collect {number + 1}: {case.what}: {name} {run[case.key]:.4g} us a frame")
    return runs, errors


def worker_rows(ours, python, skip):
    """Returns the PSS of a Python worker: 8 workers with one environment each, and for Plimsoll also 2 with four."""
    out = []
    theirs = {"TorchRL MultiSync": ("torchrl", "torchrl-sync", 500), "Gymnasium Async": ("gymnasium", "async", 2_000)}
    for num_workers in (8, WORKERS):
        file = environment_file(PYTHON, 8, 128, python=python, num_workers=num_workers)
        what = f"one of {num_workers} Python workers, 8 environments"
        with Watch(num_workers) as watch:
            facts = error_of(ours.collect(file, 2**18))
        held = watch.worker_bytes
        peers = {}
        for name, (environment, how, calls) in theirs.items():
            if environment in skip or (how == "async" and num_workers != 8):  # It starts one process per environment.
                continue
            with Watch(num_workers) as watch:
                error = peer(environment, how, 8, num_workers, calls).get("error")
            peers[name] = (None if error else watch.worker_bytes, {"peer_error": error} if error else {})
        for name, (bytes_, more) in (peers or {None: (None, {})}).items():
            row = results.collect_row
            out.append(row(what, "bytes", held, bytes_, WORKER_BYTES_MAX, peer_name=name, **facts, **more))
    return out


def plan_rows(ours, python):
    """Returns the memory in use compared with the plan, which is the floor."""
    row = results.collect_row
    native = environment_file(NATIVE, 10_000, 32, threads=WORKERS)
    with Watch() as watch:
        found = ours.collect(native, 10_000 * 32 * 20)
    measured = None if "error" in found else max(found["rss_peak_bytes"], watch.total_bytes)
    rows = [
        row("10,000 native environments", "bytes", measured, floor=found.get("rss_planned_bytes", 0), **error_of(found))
    ]
    workers = environment_file(PYTHON, 64, 128, python=python, num_workers=64)
    plan = ours.plan(workers)
    if "error" not in plan:
        with Watch(64) as watch:
            found = ours.collect(workers, 2**18)
    failed = error_of(plan) or error_of(found)
    held = [None, None] if failed else [watch.total_bytes, watch.gpu_files]
    rows += [
        row("64 Python workers, all processes", "bytes", held[0], floor=planned_bytes(plan), **failed),
        row("64 Python workers, files of a GPU", "files open", held[1], floor=0, **failed),
    ]
    return rows


def planned_bytes(plan):
    """Returns the planned memory of all processes: the host rows, without kernel and file memory."""
    rows = [row for row in plan.get("regions", []) if row["pool"] == "host" and row["place"] not in ("kernel", "file")]
    return sum(row["bytes"] for row in rows)


def error_of(found):
    return {"error": found["error"]} if "error" in found else {}
