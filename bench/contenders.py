"""Runs the contenders: Plimsoll's binary, started for each repeat, and peers, which stay loaded and are paused in between.

A contender has `name`, `start()`, `once(number)` (one repeat: a dict with `value`, `other_cores`, `peak_rss_bytes`) and
`close()`. While one runs, SIGSTOP pauses all peers, so that their threads use no CPU.
"""

import json
import os
import select
import signal
import subprocess

import environments
import machine

READY_DEADLINE_S = 900  # vLLM compiles for minutes when its cache is cold.
REPEAT_DEADLINE_S = 600

# Instruction path -> what holds Plimsoll, ATen and oneDNN to it. There is none for AVX2: oneDNN computes bf16 with its
# reference code there, at 0.9 GFLOP/s where the same machine's AVX-512 has 124 and its AMX 1,458.
PATHS = {
    None: {},
    "avx512bf16": {
        "PLIMSOLL_ISA": "avx512bf16", "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    },
}


class Failure(Exception):
    """A contender did not run; the text says why."""


class Ours:
    """Runs `plimsoll bench WORDS --json` in a new process for each repeat; the command warms up by itself."""

    name = "plimsoll"

    def __init__(self, options, name, words, work):
        self.name, self.path = name, PATHS[options.isa]
        self.command = [
            options.binary, "bench", *words, "--model", options.model, "--threads", str(options.threads),
            "--repeats", "1", "--json",
        ]
        self.work = work
        self.versions = {}

    def start(self):
        log_path(self.name).write_text("")
        try:
            done = subprocess.run([self.command[0], "--version"], capture_output=True, text=True)
        except OSError as error:
            raise Failure(f"{self.command[0]}: {error.strerror}") from error
        self.versions = {"plimsoll": done.stdout.strip().removeprefix("plimsoll ")}

    def facts(self):
        return {"versions": self.versions}

    def once(self, number):
        with open(log_path(self.name), "a") as log:
            environment = {**os.environ, **self.path}
            child = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
            used = None
            with machine.OtherCores(lambda: used.ru_utime + used.ru_stime if used else 0.0) as others:
                text = child.stdout.read()
                _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise Failure(f"{' '.join(map(str, self.command))}: exit code {child.returncode}\n{log_tail(self.name)}")
        result = json.loads(text)
        self.check_work(result)
        kept = {key: result[key] for key in ("share_of_peak", "peak_bytes", "limits", "peak") if key in result}
        rss_bytes = used.ru_maxrss * 1024  # KiB on Linux; includes children that it waited for.
        return {"value": result["median"], "peak_rss_bytes": rss_bytes, "other_cores": others.cores, **kept}

    def check_work(self, result):
        """Raises Failure if the binary measured other work than the peers do."""
        for key, wanted in self.work.items():
            if result.get(key, wanted) != wanted:
                raise Failure(f"the work differs: plimsoll says {key} = {result[key]}, the peers do {wanted}")

    def close(self):
        pass


class Peer:
    """Runs a script of peers/ in its own virtual environment and session; it answers on stdout (see peers/server.py)."""

    def __init__(self, options, name, script, environment, work, **more):
        self.name, self.script, self.environment = name, script, environment
        self.threads, self.path = options.threads, PATHS[options.isa]
        self.numbers = {**work, **more}
        self.said, self.child = {}, None

    def start(self):
        """Loads the model and warms up; returns with the peer stopped."""
        words = [environments.python(self.environment), environments.BENCH / "peers" / self.script]
        words += ["--model", environments.model_directory(), "--threads", self.threads]
        for key, value in self.numbers.items():
            words += ["--" + key.replace("_", "-"), value]
        self.child = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=open(log_path(self.name), "w"), env=self.variables(), start_new_session=True,
        )
        self.said = self.answer(READY_DEADLINE_S)
        self.signal(signal.SIGSTOP)

    def facts(self):
        """Returns the versions, and `dtypes` if the peer reported them."""
        return {key: self.said[key] for key in ("versions", "dtypes") if key in self.said}

    def variables(self):
        """The caller's environment, with Plimsoll's number of threads and without access to a model hub."""
        caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "VLLM_CACHE_ROOT": "vllm"}
        return {
            **os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore",
            "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false",
            **{key: str(environments.CACHE / folder) for key, folder in caches.items()},
            **environments.preload(self.environment), **self.path,
        }

    def once(self, number):
        self.signal(signal.SIGCONT)
        try:
            with machine.OtherCores(lambda: machine.process_seconds(self.child.pid)) as others:
                self.child.stdin.write(b"%d\n" % number)
                self.child.stdin.flush()
                answer = self.answer(REPEAT_DEADLINE_S)
        except BrokenPipeError as error:
            raise Failure(f"{self.name} ended\n{log_tail(self.name)}") from error
        self.signal(signal.SIGSTOP)
        return {**answer, "other_cores": others.cores}

    def answer(self, deadline_s):
        """Returns the next line of the peer, parsed."""
        readable, _, _ = select.select([self.child.stdout], [], [], deadline_s)
        line = self.child.stdout.readline() if readable else b""
        if not line.endswith(b"\n"):
            why = "ended" if readable else f"gave no answer in {deadline_s} s"
            raise Failure(f"{self.name} {why}\n{log_tail(self.name)}")
        return json.loads(line)

    def signal(self, number):
        os.killpg(self.child.pid, number)

    def close(self):
        """Ends the peer and whatever it started; it has nothing to save."""
        if self.child is not None and self.child.poll() is None:
            self.signal(signal.SIGKILL)
            self.child.wait()


def log_path(name):
    environments.CACHE.mkdir(exist_ok=True)
    return environments.CACHE / f"{name}.log"


def log_tail(name):
    """Returns the last lines of a contender's log."""
    lines = log_path(name).read_text(errors="replace").splitlines()[-15:]
    return "\n".join("    " + line for line in lines)
