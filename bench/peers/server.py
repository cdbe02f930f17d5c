"""The protocol between compare.py or h200.py and a peer: one line in, one repeat of the work, one JSON object out.

A peer loads its model, warms up, prints one object with `ready`, and then blocks on stdin. Each input line is
the number of a repeat (the seed of its data); the answer has `value` (tokens/s or seconds) and `peak_rss_bytes`. The peer
exits at the end of stdin. Between two lines it computes nothing, so that others can be measured.

Import this module before any other: libraries print to stdout, and it redirects that to stderr.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import sys

_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def arguments(doc, devices=("cpu",), **numbers):
    """Returns the parsed arguments: --model, --threads, --device, and an option for each number of the work (name = default)."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--model", required=True, help="a Hugging Face model directory, or random:PRESET where known")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=devices, default=devices[0])
    for name, default in numbers.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    return parser.parse_args()


def ready(packages, **facts):
    """Reports that the warm-up is over, and the versions in use."""
    versions = {package: importlib.metadata.version(package) for package in packages}
    answer(ready=True, versions={"python": platform.python_version(), **versions}, **facts)


def next_repeat():
    """Returns the number on the next line of stdin, or None at its end. Blocks."""
    line = sys.stdin.readline()
    return int(line) if line.strip() else None


def answer(**facts):
    print(json.dumps(facts), file=_answers, flush=True)


def serve(repeat):
    """Answers each line with `repeat(number)`, a dict with `value`."""
    while (number := next_repeat()) is not None:
        answer(**repeat(number), peak_rss_bytes=peak_rss_bytes())


def peak_rss_bytes():
    """Largest resident set of this process since its start (Linux counts ru_maxrss in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
