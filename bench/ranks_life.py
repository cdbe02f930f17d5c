"""A run of several ranks under way: its steps, the memory that it takes on the cards, and what happens if one rank is killed."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import h200_run

# What must hold once a rank is dead: seconds until the command says so, and until no process of the run is left.
SAID_S_MAX = 2.5
ENDED_S_MAX = 12.0
GIVE_UP_S = 40
# Parts of the names of metrics that follow from the clock, the process or the engine's passes.
OF_THE_CLOCK = ["time/", "step_time", "per_second", "seconds", "rss", "memory", "host/", "passes", "preempt"]


class Cards:
    """The cards of this host; none without NVML."""

    def __init__(self):
        found = [h200_run.Card(index) for index in range(16)]
        self.cards = [card for card in found if card.library]
        self.before = self.used()

    def used(self):
        return [card.read()["used"] for card in self.cards]

    def taken(self):
        """Returns the bytes that each card has in use above those at the start of this script."""
        return [now - before for now, before in zip(self.used(), self.before)]

    def wait_idle(self, seconds=10):
        """Waits until the memory of processes that were killed is free again. Returns the most bytes that any card keeps."""
        end = time.monotonic() + seconds
        while max(self.taken(), default=0) > 64 << 20 and time.monotonic() < end:
            time.sleep(0.1)
        return max(self.taken(), default=0)


class Life:
    """A process with all that it starts, and the lines of its stderr with the time of each."""

    def __init__(self, command, out):
        self.out, self.lines = pathlib.Path(out), []
        command = [str(word) for word in command]
        self.run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with self.run.stderr as stderr:
            for line in stderr:
                self.lines.append((time.monotonic(), line.rstrip()))

    def error(self):
        """Returns the last words of its stderr."""
        self.reader.join(1)
        return "\n".join(line for _, line in self.lines).strip()[-600:]

    def steps(self, count, limit_s):
        """Waits for `count` steps, or the end, or the limit. Returns the events of the steps so far."""
        end, steps = time.monotonic() + limit_s, []
        while len(steps) < count and time.monotonic() < end and self.run.poll() is None:
            time.sleep(0.02)
            steps = events(self.out, "step")
        return events(self.out, "step")

    def wait(self, limit_s):
        """Waits for the end. Returns the exit code; None if it had to be ended."""
        try:
            return self.run.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def end(self):
        if self.run.poll() is None:
            os.killpg(self.run.pid, signal.SIGKILL)
            self.run.wait()

    def trainers(self):
        """Returns the processes of the ranks, from the table that rank 0's supervisor writes: supervisors and trainers."""
        try:
            rows = json.loads((self.out / "ranks.json").read_text())["rows"]
        except (OSError, ValueError):
            return [], []
        return [row["supervisor"] for row in rows], [row["trainer"] for row in rows]

    def kill(self, rank):
        """Kills the trainer of `rank`. Returns what was seen then: the words, the exit code, and the seconds until each."""
        end = time.monotonic() + 5
        supervisors, trainers = self.trainers()
        while not all(trainers[rank : rank + 1]) or len(trainers) <= rank:
            if time.monotonic() > end:
                return {"error": "the table of ranks has no trainer of this rank"}
            time.sleep(0.02)
            supervisors, trainers = self.trainers()
        began, seen = time.monotonic(), {}
        os.kill(trainers[rank], signal.SIGKILL)
        everyone = [*supervisors, *trainers, self.run.pid]
        while time.monotonic() < began + GIVE_UP_S:
            self.run.poll()
            now = time.monotonic() - began
            if "trainers_ended_s" not in seen and not any(map(lives, trainers)):
                seen["trainers_ended_s"] = now
            if not any(map(lives, everyone)):
                seen["ended_s"] = now
                break
            time.sleep(0.005)
        self.end()
        self.reader.join(1)
        said = [(at - began, line) for at, line in self.lines if "error[" in line and at >= began]
        seen.update(exit=self.run.returncode, hit=rank, error_lines=len(said))
        if said:
            seen.update(said_s=said[0][0], sentence=said[0][1])
        seen["holds"] = seen.get("said_s", 1e9) <= SAID_S_MAX and seen.get("ended_s", 1e9) <= ENDED_S_MAX
        return seen


def lives(pid):
    """True unless the process has ended, read by its parent or not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def events(out, kind):
    """Returns the events of one kind that a run has written so far."""
    path = pathlib.Path(out) / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [event for event in found if event["event"] == kind]


def left(out, count=None):
    """Returns the SHA-256 of what a run left and the clock does not change: tensors, samples, and metrics step by step. With `count` only
    samples and metrics of its first steps."""
    out, found = pathlib.Path(out), {}
    newest = out / "checkpoints" / "latest"
    for folder in [newest, newest / "state", out / "samples"]:
        for path in sorted(folder.iterdir()) if folder.exists() else []:
            if count is not None and path.stem > f"step-{count:06}":
                continue
            if path.suffix in (".safetensors", ".jsonl"):
                found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    # A resumed run makes the steps after its checkpoint again: the last one of a number counts.
    steps = {event["step"]: event["metrics"] for event in events(out, "step") if count is None or event["step"] <= count}
    is_kept = lambda name: not any(part in name for part in OF_THE_CLOCK)
    metrics = [[step, {name: value for name, value in steps[step].items() if is_kept(name)}] for step in sorted(steps)]
    found["metrics"] = hashlib.sha256(json.dumps(metrics, sort_keys=True).encode()).hexdigest()
    found["last step"] = str(max(steps, default=0))
    return found


def differ(a, b):
    return sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
