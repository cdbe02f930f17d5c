"""Runs one collector in a separate process: `plimsoll collect` on an environment file, or a peer's script.

`Watch` measures the memory of all descendants of this process, so only one contender may run at a time. Linux only.
"""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import environments
import h200_run
import machine

READ_EVERY_S = 0.1
RUN_LIMIT_S = 120
# Processes that a library starts in addition to its workers. A fork server's workers share its name, but have no children.
BESIDE_WORKERS = ("resource_tracker", "forkserver")
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


class Watch:
    """Records the peak memory of a contender's processes while the `with` block runs, as PSS (a shared page counts 1/n).

    `total_bytes`: all its processes. `worker_bytes`: the mean of its workers while all `num_workers` are alive, or None
    if they never were. `gpu_files`: open files of a GPU, over all processes.
    """

    def __init__(self, num_workers=0):
        self.num_workers = num_workers
        self.total_bytes, self.worker_bytes, self.gpu_files = 0, None, 0

    def __enter__(self):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()
        return self

    def follow(self):
        while not self.over.wait(READ_EVERY_S):
            self.read(machine.descendants(os.getpid()))

    def read(self, parents):
        """`parents`: {process: its parent} for all descendants of this process."""
        held = {pid: machine.pss_bytes(pid) for pid in parents}
        workers = [pid for pid in parents if parents[pid] != os.getpid() and not beside(pid, parents)]
        self.total_bytes = max(self.total_bytes, sum(held.values()))
        if self.num_workers and len(workers) >= self.num_workers:
            mean = sum(held[pid] for pid in workers) / self.num_workers
            self.worker_bytes = max(self.worker_bytes or 0, mean)
        self.gpu_files = max(self.gpu_files, sum(map(gpu_files, parents)))

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def beside(pid, parents):
    """Whether a process is not a worker."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return True
    tracker, server = BESIDE_WORKERS
    return tracker in command or (server in command and pid in parents.values())


def gpu_files(pid):
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # The process ended or closed a file meanwhile.
        return 0
    return sum(link.startswith(GPU_FILES) for link in links)


class Ours:
    """`plimsoll collect FILE --json`."""

    name = "plimsoll"

    def __init__(self, binary):
        self.binary = binary

    def versions(self):
        """Raises OSError if the binary does not exist."""
        done = subprocess.run([self.binary, "--version"], capture_output=True, text=True)
        return {"plimsoll": done.stdout.strip().removeprefix("plimsoll ")}

    def once(self, case):
        """Returns {wall_us, cpu_us, seconds} per frame, or {error}.

        The time that the binary reports includes the start of Python workers. For these, the time per frame is therefore
        the difference between a long run and a short one.
        """
        long = self.collect(case.file, case.frames)
        if "error" in long or not case.python:
            return long if "error" in long else per_frame(long, None)
        short = self.collect(case.file, case.frames // 4)
        return short if "error" in short else per_frame(long, short)

    def collect(self, file, frames):
        """Returns the summary of one run, or {error}."""
        done = self.verb("collect", {**file, "total_frames": frames})
        return done if "error" in done or done.get("frames", 0) >= frames else {"error": "collected too few frames"}

    def plan(self, file):
        """Returns the plan of an environment file, or {error}."""
        return self.verb("plan", file)

    def verb(self, verb, file):
        path = environments.CACHE / "collect.toml"
        environments.CACHE.mkdir(exist_ok=True)
        path.write_text(toml(file))
        out, error, _ = h200_run.run([str(self.binary), verb, str(path), "--json"], self.name, RUN_LIMIT_S)
        if error:
            return {"error": error}
        try:
            return json.loads(out)
        except ValueError:
            return {"error": f"`plimsoll {verb} --json` printed no JSON"}


def toml(file):
    """Returns an environment file. JSON strings and integers are valid TOML."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in file.items())


def per_frame(long, short):
    """Returns {wall_us, cpu_us, seconds} for the frames that the summary `long` has more than `short`, which may be None."""
    cpu = lambda found: found["cpu_us_per_frame"] * found["frames"] / 1e6 + (found.get("worker_cpu_seconds") or 0.0)
    wall = lambda found: found["frames"] / found["frames_per_second"]
    frames, seconds, cpu_seconds = long["frames"], wall(long), cpu(long)
    if short is not None:
        frames, seconds, cpu_seconds = frames - short["frames"], seconds - wall(short), cpu_seconds - cpu(short)
    return {"wall_us": seconds / frames * 1e6, "cpu_us": cpu_seconds / frames * 1e6, "seconds": seconds}


def peer(environment, how, num_envs, workers, steps):
    """Returns what peers/collect.py prints, or {error} if it failed, hung, or could not be installed."""
    try:
        python = environments.python(environment)
    except (subprocess.CalledProcessError, OSError) as error:
        shutil.rmtree(environments.BENCH / f".venv-{environment}", ignore_errors=True)
        return {"error": f"not installed: {error}"}
    command = [str(python), str(environments.BENCH / "peers" / "collect.py"), how, *map(str, (num_envs, workers, steps))]
    variables = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    out, error, _ = h200_run.run(command, f"collect-{how}", RUN_LIMIT_S, env=variables)
    found = h200_run.parsed(out)
    return {"error": error or "printed no result"} if error or not found else found[-1]
