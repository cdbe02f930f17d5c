"""Records what TorchRL's collectors do when one environment fails, in FOLDER/result.json.

    python torchrl_faults.py MultiSyncCollector|MultiAsyncCollector ENVS.py FOLDER '{"fault": "kill", "where": "step"}'

Runs eight environments in two workers, with the same class `Faulty` of ENVS.py as the tests of Plimsoll's workers. The
result is what the main process saw: the exception that ended it, that it continued, or that nothing happened within
WATCH_SECONDS (LEAK_SECONDS for a leak). Times start at the failure, which the worker records just before it. The caller
ends any remaining processes.
"""

import functools
import importlib.util
import json
import os
import resource
import sys
import threading
import time
from importlib import metadata

import gymnasium
import numpy as np
import torch
from torchrl import collectors
from torchrl.envs import GymWrapper, SerialEnv

WORKERS, ENVS_EACH = 2, 4
BATCH_STEPS = 2  # Of each environment; it fails in the third step of an episode, so not in the first batch.
WATCH_SECONDS = 30
LEAK_SECONDS = 120
GOES_ON_SECONDS = 3  # Its worker steps again and batches come for so long.
CAUSE_SECONDS = 90  # Until the failure must have happened.


def path(folder, name):
    return os.path.join(folder, name)


def write_once(folder, name, text):
    """Writes a file atomically; an existing one is kept."""
    mine = path(folder, f"{name}.{os.getpid()}.{threading.get_ident()}")
    with open(mine, "w") as file:
        file.write(text)
    try:
        os.link(mine, path(folder, name))
    except FileExistsError:
        pass
    os.unlink(mine)


def read(folder, name):
    """Reads a recorded number; None before it is written. Times are from `time.monotonic`, the same in all processes."""
    try:
        return float(open(path(folder, name)).read())
    except FileNotFoundError:
        return None


@functools.cache
def failing(file):
    """Loads ENVS.py as a module that records its failures before they happen."""
    found = importlib.util.spec_from_file_location("envs", file)
    envs = importlib.util.module_from_spec(found)
    found.loader.exec_module(envs)
    do = envs.do

    def noted(fault, folder):
        write_once(folder, "failed_at", str(time.monotonic()))
        envs.has_failed = True
        do(fault, folder)

    envs.do, envs.has_failed = noted, False
    return envs


class Bridge(gymnasium.Env):
    """`Faulty` as a Gymnasium environment."""

    def __init__(self, file, folder, options):
        self.envs, self.folder = failing(file), folder
        self.faulty = self.envs.Faulty(folder, **options)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.begun, self.went_on = None, False

    def reset(self, *, seed=None, options=None):
        # One that was not stepped since is as it was: collectors reset several times before they begin.
        if self.begun is None or self.faulty.steps > 0:
            self.begun = self.faulty.reset(7 if seed is None else seed)
        return self.begun

    def step(self, action):
        if self.envs.has_failed:
            if not self.went_on:
                self.went_on = True
                write_once(self.folder, "worker_bytes", str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
                write_once(self.folder, "went_on_at", str(time.monotonic()))
        return self.faulty.step(int(action))


def make(file, folder, options):
    one = functools.partial(wrapped, file, folder, options)
    return SerialEnv(ENVS_EACH, one)


def wrapped(file, folder, options):
    return GymWrapper(Bridge(file, folder, options))


class Main:
    """Records what the main process sees. A separate thread gives up after the time limit."""

    def __init__(self, folder, watch_seconds):
        self.folder, self.watch_seconds = folder, watch_seconds
        self.since, self.started = time.monotonic(), False
        self.batches_since, self.last_batch_at, self.not_finite = 0, 0.0, False

    def take(self, batch):
        self.last_batch_at = time.monotonic()
        self.batches_since += os.path.exists(path(self.folder, "failed_at"))
        values = [value for value in batch.flatten_keys().values() if value.is_floating_point()]
        self.not_finite |= not all(bool(torch.isfinite(value).all()) for value in values)

    def watch(self):
        while True:
            time.sleep(0.05)
            now, failed, went_on = time.monotonic(), read(self.folder, "failed_at"), read(self.folder, "went_on_at")
            if failed is None:
                if now - self.since > CAUSE_SECONDS:
                    self.end(caused=False)
            elif went_on is not None and now - went_on > GOES_ON_SECONDS and self.last_batch_at > went_on:
                self.end(went_on=True)
            elif now - (went_on or failed) > self.watch_seconds:
                self.end()

    def end(self, caused=True, went_on=False, exception=None):
        """Writes the result and ends this process, but not its children."""
        failed = read(self.folder, "failed_at")
        found = {
            "caused": caused, "went_on": went_on, "exception": exception, "batches_since": self.batches_since,
            "seconds": None if failed is None else time.monotonic() - failed, "not_finite": self.not_finite,
            "watch_seconds": self.watch_seconds, "started": self.started, "grandchild_lives": self.grandchild_lives(),
            "worker_bytes_max": read(self.folder, "worker_bytes"),
            "num_envs": WORKERS * ENVS_EACH, "num_workers": WORKERS,
            "versions": {name: metadata.version(name) for name in ("torchrl", "torch", "gymnasium", "numpy")},
        }
        write_once(self.folder, "result.json", json.dumps(found))
        os._exit(0)

    def grandchild_lives(self):
        """Returns None if the failure left no grandchild."""
        try:
            pid = open(path(self.folder, "grandchild")).read()
        except FileNotFoundError:
            return None
        try:
            return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False


def main():
    name, file, folder, options = *sys.argv[1:4], json.loads(sys.argv[4])
    seen = Main(folder, LEAK_SECONDS if options["fault"] == "leak" else WATCH_SECONDS)
    threading.Thread(target=seen.watch, daemon=True).start()
    # A batch of the asynchronous one is of one worker.
    frames = BATCH_STEPS * ENVS_EACH * (WORKERS if name == "MultiSyncCollector" else 1)
    try:
        collector = getattr(collectors, name)(
            [functools.partial(make, file, folder, options)] * WORKERS, None, frames_per_batch=frames,
            total_frames=-1, device="cpu", cat_results="stack" if name == "MultiSyncCollector" else None,
        )
        seen.started = True
        for batch in collector:
            seen.take(batch)
        seen.end(exception={"type": "nothing", "message": "no more batches came"})
    except BaseException as error:
        seen.end(exception={"type": type(error).__name__, "message": str(error)[:20_000]})


if __name__ == "__main__":
    main()
