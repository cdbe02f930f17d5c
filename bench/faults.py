#!/usr/bin/env python3
"""Causes failures of Python environments, one at a time, in Plimsoll's collector and TorchRL's, and records the outcome.

    python3 bench/faults.py [--only kill,stop] [--skip torchrl] [--binary target/release/examples/faults] [--json FILE]

Eight environments run in two workers, and one of them fails once (or always): its process dies, it raises, hangs, leaks
memory, or returns a value outside its space. The same code causes all failures: `Faulty` of
crates/collect/tests/common/envs.py. For Plimsoll, the example `faults` of the crate `collect` runs it; it is built first
unless --binary names it. For TorchRL, peers/torchrl_faults.py runs it, once per failure and collector. All processes of
one program are gone before the next one starts.

Writes bench/results/faults.json and faults.md; with --only, writes only the file that --json names. Takes about ten
minutes, most of it for TorchRL, and on the first run 6 GB of disk for TorchRL. Exit code 0 unless something did not run. Linux only.
"""

import argparse
import ctypes
import json
import os
import shutil
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
from contenders import log_path
from results import GIB

ROOT = environments.BENCH.parent
ENVS = ROOT / "crates" / "collect" / "tests" / "common" / "envs.py"
EXAMPLE = ["cargo", "run", "--release", "--quiet", "--package", "plimsoll-collect", "--example", "faults", "--"]
PEER_LIMIT_S = 300  # Above the limit in peers/torchrl_faults.py.
OURS_LIMIT_S = 900  # Includes compiling.
ENDING_LIMIT_S = 30
LEAK_BYTES = 12 * GIB  # Nothing limits TorchRL's worker, which takes 8 GB, so that much must be free.
PR_SET_CHILD_SUBREAPER = 36
LONGEST_WORDS = 160
CAUSE = "the speed is negative"  # The message of the exception that envs.py raises.
# Settings that are the same in all rows; the first two apply to TorchRL too.
SETUP = {"num_envs", "num_workers", "step_timeout_ms", "worker_memory_mib"}


@dataclass(frozen=True)
class Failure:
    """One failure. `fault`, `where`, `always`: arguments of `Faulty`."""

    what: str
    fault: str
    where: str = "step"
    always: bool = False
    no_peer: str = None  # Why TorchRL has no such failure.

    @property
    def words(self):
        """Returns the argument for the example."""
        return f"{self.fault}:{self.where}" + (":always" if self.always else "")

    @property
    def options(self):
        return {"fault": self.fault, "where": self.where, "always": self.always}


FAILURES = [
    Failure("kill -9 while it is made, before the first step", "kill", "make"),
    Failure("kill -9 in a step", "kill"),
    Failure("kill -9 in a reset", "kill", "reset"),
    Failure("kill -9 in the third step of every episode", "kill", always=True),
    Failure("the environment calls `exit(0)`", "exit"),
    Failure("exception while it is made, before the first step", "raise", "make"),
    Failure("exception in a step", "raise"),
    Failure("exception in a reset", "raise", "reset"),
    Failure("endless sleep", "sleep"),
    Failure("hangs in C and holds the GIL", "hold_gil"),
    Failure("SIGSTOP", "stop"),
    Failure("leaks 8 GB", "leak"),
    Failure("observation of a wrong shape", "shape"),
    Failure("observation of a wrong dtype", "dtype"),
    Failure("NaN in the observation", "nan"),
    Failure("reward NaN", "reward_nan"),
    Failure("closes the worker's socket", "close_socket", no_peer="no counterpart: the socket is that of our workers"),
    Failure("prints 100 kB to standard output", "print"),
    Failure("leaves a grandchild and dies", "grandchild"),
]


def main():
    options = arguments()
    adopt_orphans()
    errors = []
    found = measure(options, errors)
    if options.json or not options.only:
        path = options.json or environments.BENCH / "results" / "faults.json"
        results.write(path, found, results.faults_page)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


def adopt_orphans():
    """Makes orphans of our programs our children, so that we can end them and know their CPU time."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated: faults of envs.py, as `kill,stop`")
    parser.add_argument("--skip", choices=["torchrl"], help="leave TorchRL out")
    parser.add_argument("--binary", type=Path, help="the built example; otherwise cargo builds it")
    parser.add_argument("--json", type=Path, help="results file (default bench/results/faults.json; .md next to it)")
    options = parser.parse_args()
    options.only = set(filter(None, options.only.split(",")))
    if unknown := options.only - {failure.fault for failure in FAILURES}:
        parser.error(f"--only: no fault {', '.join(sorted(unknown))}")
    return options


def measure(options, errors):
    """Runs every failure in turn and returns the results. Adds what did not run, and why, to `errors`."""
    failures = [failure for failure in FAILURES if not options.only or failure.fault in options.only]
    found = {
        "machine": machine.facts(), "commit": machine.commit(ROOT), "when": time.strftime("%Y-%m-%d %H:%M"),
        "setup": {}, "versions": {}, "other_cores": [], "rows": [],
    }

    def watched(run, *words):
        with machine.OtherCores(children_seconds) as others:
            out = run(*words)
        found["other_cores"].append(others.cores)
        return out

    mine = watched(ours, options.binary, failures)
    for failure in failures:
        names = [] if options.skip or failure.no_peer else results.FAULT_PEERS
        peers = {name: watched(torchrl, name, failure) for name in names}
        row = {"what": failure.what, **failure.options, "no_peer": failure.no_peer, "ours": mine[failure], "peers": peers}
        for name, one in {"Plimsoll": row["ours"], **peers}.items():
            note_setup(found, one)
            if "error" in one:
                errors.append(f"{failure.what}: {name}: {one['error']}")
        found["rows"].append(row)
        environments.say(results.line(results.fault_cells(row)))
    return found


def note_setup(found, one):
    """Records the settings that all rows share. Raises ValueError if a row differs."""
    found["versions"] |= one.pop("versions", {})
    for key in SETUP & one.keys():
        value = one[key]
        if found["setup"].setdefault(key, value) != value:
            raise ValueError(f"{key} is {value} here and {found['setup'][key]} elsewhere")


def children_seconds():
    """Returns CPU seconds of this process and of the children that it waited for."""
    return sum(os.times()[:4])


def ours(binary, failures):
    """Returns {failure: result of the example, or {error}}."""
    try:
        python = environments.python("gymnasium")
    except (subprocess.CalledProcessError, OSError) as error:
        return {failure: {"error": f"not installed: {error}"} for failure in failures}
    command = [str(binary.resolve())] if binary else EXAMPLE
    command = [*command, str(python), *(failure.words for failure in failures)]
    code, out, errors = session(command, "faults-plimsoll", OURS_LIMIT_S, os.environ)
    said = {(one["fault"], one["where"], one["always"]): one for one in h200_run.parsed(out) if "fault" in one}
    why = h200_run.last_words(errors) or f"ended with {code}"
    return {failure: said.get(tuple(failure.options.values()), {"error": why}) for failure in failures}


def torchrl(name, failure):
    """Returns the outcome of one failure in the TorchRL collector `name`, or {error}."""
    free = available_bytes()
    if failure.fault == "leak" and free < LEAK_BYTES:
        return {"error": f"{LEAK_BYTES / GIB:.0f} GiB must be free for it, {free / GIB:.1f} GiB are"}
    try:
        python = environments.python("torchrl")
    except (subprocess.CalledProcessError, OSError) as error:
        shutil.rmtree(environments.BENCH / ".venv-torchrl", ignore_errors=True)
        return {"error": f"not installed: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        script = environments.BENCH / "peers" / "torchrl_faults.py"
        command = [str(python), str(script), name, str(ENVS), folder, json.dumps(failure.options)]
        variables = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        code, out, errors = session(command, f"faults-{name}", PEER_LIMIT_S, variables)
        result = Path(folder, "result.json")
        if not result.exists():
            how = f"stopped after {PEER_LIMIT_S} s" if code is None else f"its main process ended with {code}"
            return {"error": f"{how}: {h200_run.last_words(errors)}"}
        return seen(json.loads(result.read_text()), failure, len(out), errors)


def seen(found, failure, printed_bytes, errors):
    """Returns the peer's result with a short exception, and where its output went."""
    exception = found["exception"]
    return {
        **found, "exception": exception_words(exception) if exception else None,
        "cause": cause_place(exception, errors), "printed_bytes": printed_bytes,
        "leaks": failure.fault == "leak",
    }


def exception_words(exception):
    """Returns type and first line of an exception, shortened. `exception`: {type, message}."""
    lines = [one.strip() for one in exception["message"].splitlines() if one.strip()]
    words = f"{exception['type']}: {lines[0]}" if lines else exception["type"]
    if len(words) > LONGEST_WORDS:
        words = words[:LONGEST_WORDS].rsplit(" ", 1)[0] + " ..."
    return words.replace("`", "'")


def cause_place(exception, errors):
    """Returns where the environment's own message is: "exception", "stderr", or None."""
    if exception and CAUSE in exception["message"]:
        return "exception"
    return "stderr" if CAUSE in errors else None


def session(command, name, limit_s, variables):
    """Runs a program. Returns (exit code or None at the limit, standard output, standard error). Ends all that it started."""
    log = log_path(name)
    with open(log.with_suffix(".out"), "wb") as out, open(log, "wb") as errors:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=variables, cwd=ROOT,
                start_new_session=True,
            )
        except OSError as error:
            return 127, "", f"{command[0]}: {error.strerror}"
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_all(child)
    return code, log.with_suffix(".out").read_text(errors="replace"), log.read_text(errors="replace")


def end_all(child):
    """Kills a program and all its descendants, and waits until they are gone."""
    if child.poll() is None:
        child.kill()
        child.wait()
    until = time.monotonic() + ENDING_LIMIT_S
    while left := machine.descendants(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"processes {sorted(left)} do not end")
        time.sleep(0.01)


def available_bytes():
    """Returns the available memory of the machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


if __name__ == "__main__":
    sys.exit(main())
