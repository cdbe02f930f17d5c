"""Runs one contender at a time on the GPU, in a separate process with a time limit, and watches the GPU's memory.

A contender that fails returns {"error": its last line} and raises no exception, so the rest of a part continues.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

import environments
from contenders import log_path, log_tail
from results import spread

READ_EVERY_S = 0.02
LIBRARIES = ["libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib64-nvidia/libnvidia-ml.so.1"]


class Clock:
    """The time limit of a part. Each progress line shows the elapsed seconds."""

    def __init__(self, seconds):
        self.started = time.monotonic()
        self.seconds = seconds

    def gone(self):
        return time.monotonic() - self.started

    def left(self):
        return self.seconds - self.gone()

    def say(self, text):
        print(f"[{self.gone():5.0f} s] {text}", flush=True)


class Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Card:
    """Reads a GPU's memory through NVML, which needs no CUDA context: the first one's if no other is named."""

    def __init__(self, index=0):
        self.library, self.handle = None, ctypes.c_void_p()
        for name in LIBRARIES:
            try:
                library = ctypes.CDLL(name)
            except OSError:
                continue
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.handle)) == 0:
                self.library = library
                return

    def read(self):
        """Returns {total, free, used} bytes; None without a GPU."""
        memory = Memory()
        if self.library is None or self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) != 0:
            return None
        return {name: getattr(memory, name) for name, _ in Memory._fields_}


class Watch:
    """Records the peak memory on the GPU while the `with` block runs, above what was in use before."""

    def __init__(self, card):
        self.card, self.above_bytes = card, None

    def __enter__(self):
        self.before = self.card.read()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        if self.before:
            self.above_bytes = 0
            self.thread.start()
        return self

    def follow(self):
        while not self.over.wait(READ_EVERY_S):
            now = self.card.read()
            if now:
                self.above_bytes = max(self.above_bytes, now["used"] - self.before["used"])

    def __exit__(self, *_):
        self.over.set()
        if self.before:
            self.thread.join()


def ours(binary, words, device, caches, card, limit_s):
    """Runs `plimsoll bench WORDS --json`. Returns its object with `command` and `card_bytes` (GPU memory used), or an error."""
    command = [str(binary), "bench", *map(str, words), "--device", device, "--json"]
    cache = {"PLIMSOLL_KERNEL_CACHE": str(caches / "kernels"), "XDG_CACHE_HOME": str(caches)}
    cache["CUDA_CACHE_PATH"] = str(caches / "nvidia")  # NVRTC 13 keeps what it compiled in the driver's cache.
    with Watch(card) as watch:
        out, error, seconds = run(command, "plimsoll", limit_s, env={**os.environ, **cache})
    found = parsed(out)[-1:] or [{}]
    facts = {"command": " ".join(["plimsoll", *command[1:]]), "seconds": seconds, "card_bytes": watch.above_bytes}
    if error or "bench" not in found[0]:
        return {"error": error or "printed no result", **facts}
    return {**found[0], **facts}


def peer(script, model, device, repeats, limit_s, **numbers):
    """Runs a script of peers/. Returns {median, min, max, repeats, versions, ...}, with `error`, or only that, if it failed."""
    command = [sys.executable, str(environments.BENCH / "peers" / script), "--model", model, "--device", device]
    command += ["--threads", str(len(os.sched_getaffinity(0)))]
    for name, value in numbers.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}
    questions = "".join(f"{number}\n" for number in range(repeats))
    out, error, seconds = run(command, script.removesuffix(".py"), limit_s, questions, {**os.environ, **quiet})
    lines = parsed(out)
    found = {"seconds": seconds, **({"error": error} if error else {})}
    values = [line["value"] for line in lines if "value" in line]
    if not values:
        return {"error": "no repeat ended", **found}
    last = {name: fact for name, fact in lines[-1].items() if name != "value"}
    return {**spread(values), "versions": lines[0].get("versions", {}), **last, **found}


def vllm(model, rows, limit_s):
    """Runs vLLM's engine on rows (sequences, prompt, new, logprobs, repeats). Returns ({first four: spread or error}, versions,
    seconds).

    A row that ended before the limit counts; the others have the error.
    """
    command = [sys.executable, str(environments.BENCH / "peers" / "vllm_rollout.py"), "--model", f"random:{model}"]
    command += ["--rows", ",".join(":".join(map(str, row)) for row in rows)]
    out, error, seconds = run(command, "vllm_rollout", limit_s, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    lines = {tuple(line["row"]): line for line in parsed(out) if "row" in line}
    keys = ("median", "min", "max", "repeats")
    found = {
        row[:4]: {key: lines[row[:4]][key] for key in keys} if row[:4] in lines else {"error": error or "no row"}
        for row in rows
    }
    return found, next((line["versions"] for line in lines.values()), {}), seconds


def parsed(text):
    """Returns the JSON objects among the lines, without a truncated one."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in found if isinstance(line, dict)]


def run(command, name, limit_s, questions="", env=None):
    """Returns (stdout, last line if it failed, seconds). Ends the process and its children at the limit or when we end."""
    started = time.monotonic()
    log = log_path(name)
    with open(log, "w") as errors:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env,
                start_new_session=True,
            )
        except OSError as error:
            return "", f"{command[0]}: {error.strerror}", 0.0
        why = None
        try:
            out, _ = child.communicate(questions, timeout=limit_s)
        except subprocess.TimeoutExpired:
            why = f"stopped after {limit_s:.0f} s"
            os.killpg(child.pid, signal.SIGKILL)
            out, _ = child.communicate()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if why is None and child.returncode != 0:
        why = last_words(log.read_text(errors="replace")) or f"exit code {child.returncode}"
    if why:
        print(f"{name}: {why}\n{log_tail(name)}", flush=True)
    return out, why, time.monotonic() - started


def last_words(text):
    """Returns the line that names the error: the first `error[...]` line of our binary, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("error[")]
    return (ours or lines or [""])[-1][:300]
