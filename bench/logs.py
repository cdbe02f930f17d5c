#!/usr/bin/env python3
"""Measures the speed and memory of `plimsoll doctor --log` on a training log, binary junk, and lines of 100 MB.

    python3 bench/logs.py [--gigabytes 5] [--repeats 3] [--dir DIR] [--binary PATH] [--quick]

Each log is written into DIR (the temporary directory), read by the binary in a separate process, and removed. It ends
with an error that the doctor must name. Speed is bytes per wall second, the median of the repeats, and bytes per CPU
second, which other programs disturb less. Memory is the peak resident set of the whole process, including the binary; the
peak with an empty log is reported too. `cat` of the same file into a pipe shows the speed of the disk. Writes
results/log.json and log.md; `--quick` reads 200 MB once and writes nothing. Exit code 1 if a floor is missed.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import results
from results import MIB

HERE = Path(__file__).parent
MB = 10**6
FLOOR_BYTES_PER_SECOND = 200 * MB
# `LOG_BYTES_MAX` of crates/doctor/src/log/mod.rs.
MEMORY_BYTES_MAX = 64 * MIB
LONG_LINE_BYTES = 100 * MB
PIECE_BYTES = 8 * MB
DEATH = (
    b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    b"which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in use. Of the allocated memory "
    b"76.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.\n"
)
NAMED = "cuda-oom"


def training_piece(draw):
    """Returns 8 MB of typical output of trainers and engines: metrics, progress bars, warnings, Ray prefixes, memory readings."""
    lines, size, step = [], 0, 0
    while size < PIECE_BYTES:
        step += 1
        kind = draw.randrange(12)
        if kind < 6:
            line = (
                f"2025-03-02 10:{step % 60:02}:{draw.randrange(60):02},{draw.randrange(1000):03} INFO trainer.py:412 step={step} "
                f"reward={draw.random():.4f} kl={draw.random():.5f} grad_norm={draw.random():.3f} lr=1.00e-06 "
                f"response_length={draw.randrange(900)} clip_ratio={draw.random():.4f}"
            )
        elif kind < 9:
            line = (
                f"(WorkerDict pid={4000 + draw.randrange(8)}) rollout: {draw.randrange(100)}%|{'#' * draw.randrange(30)} "
                f"| {draw.randrange(512)}/512 [00:{draw.randrange(60):02}<00:12, {draw.random() * 9:.2f}it/s]"
            )
        elif kind == 9:
            line = f"sample {step}: " + " ".join(draw.choice(["so", "the", "sum", "is", "12", "memory", "wait"]) for _ in range(60))
        elif kind == 10:
            line = f"(pid={draw.randrange(9000)}) UserWarning: position_ids were not given; they are made from the attention mask"
        else:
            line = f"After update: memory allocated (GB) {30 + draw.random():.2f}, reserved (GB) {40 + draw.random():.2f}"
        lines.append(line)
        size += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def pieces(kind, draw):
    """Returns the pieces that a log of this kind repeats."""
    if kind == "training":
        return [training_piece(draw) for _ in range(4)]
    if kind == "junk":
        return [draw.randbytes(PIECE_BYTES) for _ in range(4)]
    text = training_piece(draw).replace(b"\n", b" ")
    return [text]


def write(kind, path, num_bytes, draw):
    """Writes a log that ends with the error."""
    parts = pieces(kind, draw)
    with open(path, "wb") as log:
        written = since_line = 0
        while written < num_bytes:
            part = parts[written // PIECE_BYTES % len(parts)][: num_bytes - written]
            written += log.write(part)
            since_line += len(part)
            if kind == "long lines" and since_line >= LONG_LINE_BYTES:
                written += log.write(b"\n")
                since_line = 0
        log.write(DEATH)


def read(command):
    """Runs a process. Returns its output, wall seconds, CPU seconds and peak resident bytes."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=output)
        peak = pid = 0
        while pid == 0:
            # Not `ru_maxrss`, which includes the memory of this interpreter at the fork.
            peak = max(peak, peak_bytes(process.pid))
            time.sleep(0.005)
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return output.read(), seconds, usage.ru_utime + usage.ru_stime, peak


def peak_bytes(pid):
    """Returns the peak resident set of a process since it started; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def measure(binary, kind, folder, num_bytes, repeats):
    """Measures one kind of log. Returns a row of the table."""
    path = Path(folder) / f"{kind.replace(' ', '-')}.log"
    try:
        write(kind, path, num_bytes, random.Random(7))
        size = path.stat().st_size
        start = time.monotonic()
        subprocess.run(["sh", "-c", f"cat '{path}' | wc -c"], check=True, stdout=subprocess.DEVNULL)
        disk = size / (time.monotonic() - start)
        runs = [read([binary, "doctor", "--json", "--log", path]) for _ in range(repeats)]
    finally:
        path.unlink(missing_ok=True)
    walls = sorted(size / wall for _, wall, _, _ in runs)
    row = {
        "what": kind,
        "bytes": size,
        "bytes_per_second": {"median": statistics.median(walls), "min": walls[0], "max": walls[-1], "repeats": repeats},
        "bytes_per_cpu_second": statistics.median(size / cpu for _, _, cpu, _ in runs),
        "cat_bytes_per_second": disk,
        "memory_bytes": max(peak for *_, peak in runs),
        "named": sorted({json.loads(output)["slug"] for output, *_ in runs}),
    }
    return {**row, "holds": holds(row)}


def holds(row):
    """Whether the row keeps the floors and names the error."""
    fast = row["bytes_per_second"]["median"] >= FLOOR_BYTES_PER_SECOND
    return fast and row["memory_bytes"] <= MEMORY_BYTES_MAX and row["named"] == [NAMED]


def page(found):
    """Renders the results as Markdown."""
    facts = found["machine"]
    head = ["log", "GB", "MB/s (least to most)", "MB a CPU second", "`cat` into a pipe, MB/s", "memory, MiB", "named", ""]
    return "\n".join(
        [
            "# Reading logs",
            "",
            f"`python3 bench/logs.py`, {found['when']}, commit {found['commit']}, on {facts['cpu']}, {facts['num_cores']} cores, "
            f"{facts['kernel']}. Floors: {FLOOR_BYTES_PER_SECOND // MB} MB/s by wall clock, {MEMORY_BYTES_MAX // MIB} MiB for the "
            f"whole process (with an empty log it takes {found['empty_bytes'] / MIB:.1f} MiB), and the death at the end is named.",
            "",
            *results.table(head, map(cells, found["rows"])),
            "",
        ]
    )


def cells(row):
    speed = {key: f"{row['bytes_per_second'][key] / MB:.0f}" for key in ("median", "min", "max")}
    return [
        row["what"], f"{row['bytes'] / 1e9:.2f}", f"{speed['median']} ({speed['min']} to {speed['max']})",
        f"{row['bytes_per_cpu_second'] / MB:.0f}", f"{row['cat_bytes_per_second'] / MB:.0f}",
        f"{row['memory_bytes'] / MIB:.1f}", ", ".join(row["named"]), results.held(row["holds"]),
    ]


def main():
    options = arguments()
    if not Path(options.binary).exists():
        sys.exit(f"{options.binary}: not there; cargo build --release makes it, --binary names another")
    num_bytes, repeats = (200 * MB, 1) if options.quick else (int(options.gigabytes * 1e9), options.repeats)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        free = shutil.disk_usage(folder).free
        if free < 1.2 * num_bytes:
            sys.exit(f"{folder}: {free / 1e9:.1f} GB are free, and a log of {num_bytes / 1e9:.1f} GB is written")
        empty = Path(folder) / "empty.log"
        empty.touch()
        *_, empty_bytes = read([options.binary, "doctor", "--json", "--log", empty])
        kinds = ["training", "junk", "long lines"]
        rows = [measure(options.binary, kind, folder, num_bytes, repeats) for kind in kinds]
    found = {
        "machine": machine.facts(),
        "commit": machine.commit(HERE.parent),
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "empty_bytes": empty_bytes,
        "rows": rows,
        "holds": all(row["holds"] for row in rows),
    }
    print(page(found))
    if not options.quick:
        results.write(HERE / "results" / "log.json", found, page)
    sys.exit(0 if found["holds"] else 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of each log")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", help="where the logs are written; the temporary directory if absent")
    parser.add_argument("--binary", default=str(HERE.parent / "target/release/plimsoll"))
    parser.add_argument("--quick", action="store_true", help="read 200 MB once and write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
