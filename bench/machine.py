"""Describes the machine, and measures the CPU time of other processes. Linux only: reads /proc."""

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

CPU_FLAGS = ["avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"]  # Flags that determine which kernels can run.


def facts():
    """Returns the facts about the machine for a results file."""
    cpu = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        cpu.setdefault(key.strip(), value.strip())
    flags = set(cpu.get("flags", "").split())
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "cpu_family": cpu.get("cpu family"),
        "cpu_model": cpu.get("model"),
        "cpu_flags": [flag for flag in CPU_FLAGS if flag in flags],
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def commit(root):
    """Returns the commit, with `-dirty` if the code differs from it; None without a checkout or git."""
    if shutil.which("git") is None:
        return None
    git = lambda *words: subprocess.run(["git", "-C", root, *words], capture_output=True, text=True).stdout.strip()
    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    return head + ("-dirty" if git("status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock") else "")


class OtherCores:
    """Measures how many cores other processes used on average while the `with` block ran.

    `measured_seconds()` returns the CPU seconds that the measured process has used so far. Ticks are 10 ms, so
    short blocks are imprecise. `cores` is at least 0.
    """

    def __init__(self, measured_seconds):
        self.measured_seconds = measured_seconds
        self.cores = None

    def __enter__(self):
        self.before = (busy_seconds(), self.measured_seconds(), time.monotonic())
        return self

    def __exit__(self, *_):
        busy, measured, clock = self.before
        others = (busy_seconds() - busy) - (self.measured_seconds() - measured)
        self.cores = round(max(0.0, others / (time.monotonic() - clock)), 2)


def busy_seconds():
    """Returns the busy CPU seconds of the machine since boot, including time stolen by a hypervisor."""
    user, nice, system, _, _, irq, soft_irq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid):
    """Returns CPU seconds of a process and its ended children; 0 if the process is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def descendants(pid):
    """Returns {process: its parent} for all descendants of `pid`."""
    found, todo = {}, [pid]
    while todo:
        parent = todo.pop()
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue  # It has ended.
        found |= dict.fromkeys(children, parent)
        todo += children
    return found


def pss_bytes(pid):
    """Returns the proportional set size of a process (a page shared by n processes counts 1/n); 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
