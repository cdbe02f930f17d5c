"""Words, the page and the running of `faults.py`, with made-up binaries and peers.

    cd bench && python3 -m unittest
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import environments
import faults
import results

OURS = {
    "fault": "kill", "where": "step", "always": False, "started": True, "ended": None, "frames_lost": 4, "seconds": 0.196,
    "said": [{"slug": "env-worker-crashed", "message": "worker 1 (pid 7) was killed by signal 9"}],
    "grandchild_lives": None,
}
THEIRS = {
    "caused": True, "went_on": False, "exception": None, "cause": None, "batches_since": 0, "seconds": 30.01,
    "not_finite": False, "watch_seconds": 30, "grandchild_lives": None, "worker_bytes_max": None, "printed_bytes": 0,
    "leaks": False, "started": True,
}

# Answers as the example does, of the failures it is given; knows nothing of leaks.
BINARY = """#!{python} -S
import json, sys
for words in sys.argv[2:]:
    fault, where, *always = words.split(":")
    if fault == "leak":
        sys.exit("error[host-allocation-failed]: no room")
    print(json.dumps({{**{ours!r}, "fault": fault, "where": where, "always": bool(always), "num_envs": 8}}))
"""

# Leaves behind a process, as collectors do, and prints; raises where ours sleeps.
PEER = """import json, os, subprocess, sys
name, envs, folder, options = sys.argv[1:]
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(os.path.join({folder!r}, "left"), "w").write(str(child.pid))
os.write(1, b"x" * 100_000)
fault = json.loads(options)["fault"]
if fault == "stop":
    sys.exit("no torch")
exception = {{"type": "RuntimeError", "message": "worker 0 failed\\nTraceback"}} if fault == "sleep" else None
print("RuntimeError: the speed is negative", file=sys.stderr)
found = {{**{theirs!r}, "exception": exception, "num_envs": 8, "versions": {{"torchrl": "9.9"}}}}
json.dump(found, open(os.path.join(folder, "result.json"), "w"))
os._exit(0)
"""


class Words(unittest.TestCase):
    def test_of_an_exception_its_type_and_first_line_in_bounds(self):
        for kind, message, words in [
            ("RuntimeError", "a worker is gone\nTraceback", "RuntimeError: a worker is gone"),
            ("KeyError", "\n  \n 'a' `b`\n", "KeyError: 'a' 'b'"),
            ("SystemExit", "", "SystemExit"),
        ]:
            self.assertEqual(faults.exception_words({"type": kind, "message": message}), words)
        long = faults.exception_words({"type": "ValueError", "message": "word " * 100})
        self.assertTrue(long.endswith("word ...") and len(long) <= faults.LONGEST_WORDS + 4, long)

    def test_the_cause_is_looked_for_in_the_exception_first(self):
        named = {"type": "RuntimeError", "message": "env: the speed is negative"}
        bare = {"type": "RuntimeError", "message": "exit code 1"}
        for exception, errors, place in [
            (named, "the speed is negative", "exception"), (bare, "the speed is negative", "stderr"), (bare, "", None),
            (None, "", None),
        ]:
            self.assertEqual(faults.cause_place(exception, errors), place)

    def test_what_became_of_a_peer_is_said_in_a_few_words(self):
        ended = {"exception": "RuntimeError: gone", "seconds": 1.14}
        for more, words in [
            ({}, "never noticed (30 s watched); no batch comes"),
            ({"batches_since": 7}, "never noticed (30 s watched); the other worker goes on"),
            ({"went_on": True}, "goes on; nothing said"),
            ({"went_on": True, "not_finite": True}, "goes on; nothing said; NaN is in its batches"),
            ({"went_on": True, "worker_bytes_max": 2**33}, "goes on; nothing said"),
            ({"went_on": True, "worker_bytes_max": 2**33, "leaks": True}, "goes on; nothing said; the worker held 8.0 GiB"),
            (ended, "the run ends after 1.1 s: `RuntimeError: gone`"),
            (
                {**ended, "cause": "stderr"},
                "the run ends after 1.1 s: `RuntimeError: gone`; what was raised is in standard error alone",
            ),
            (
                {**ended, "grandchild_lives": True},
                "the run ends after 1.1 s: `RuntimeError: gone`; the grandchild lives on",
            ),
            ({**ended, "started": False}, "the run does not start, said after 1.1 s: `RuntimeError: gone`"),
            ({"caused": False}, "the failure did not happen there"),
        ]:
            self.assertEqual(results.fault_of_peer({**THEIRS, **more}), words)
        self.assertEqual(results.fault_of_peer(None), "left out")
        self.assertEqual(results.fault_of_peer({"error": "not installed"}), "did not run: not installed")

    def test_ours_goes_on_ends_or_does_not_start(self):
        words = "`env-worker-crashed`: worker 1 (pid 7) was killed by signal 9"
        ended = {"slug": "env-failing-repeatedly", "message": "6 times"}
        for more, expect in [
            ({}, [words, "goes on", "4", "0.20"]),
            ({"said": []}, ["nothing", "goes on", "4", "0.20"]),
            ({"grandchild_lives": False}, [f"{words}; the grandchild is ended too", "goes on", "4", "0.20"]),
            ({"ended": ended, "said": []}, ["`env-failing-repeatedly`: 6 times", "ends", "4", "0.20"]),
            (
                {"ended": ended, "said": OURS["said"] * 6},
                ["`env-worker-crashed`, 6 times; `env-failing-repeatedly`: 6 times", "ends", "4", "0.20"],
            ),
            ({"ended": ended, "started": False, "said": []}, ["`env-failing-repeatedly`: 6 times", "does not start", "4", "0.20"]),
        ]:
            self.assertEqual(results.fault_of_ours({**OURS, **more}), expect)
        self.assertEqual(results.fault_of_ours({"error": "no cargo"})[0], "did not run: no cargo")

    def test_a_cell_ends_where_it_should(self):
        row = {"what": "a | b", "ours": OURS, "no_peer": "none\nhere", "peers": {}}
        line = results.line(results.fault_cells(row))
        self.assertEqual(line.count("|"), 8)
        self.assertIn("| a / b |", line)
        self.assertTrue(line.endswith("| none here | none here |"))


class Failures(unittest.TestCase):
    def test_each_is_one_that_the_environments_know(self):
        text = faults.ENVS.read_text()
        for failure in faults.FAILURES:
            self.assertIn(f'"{failure.fault}"', text)
        words = [failure.words for failure in faults.FAILURES]
        self.assertEqual(len(set(words)), len(words))
        self.assertIn("kill:step:always", words)
        self.assertIn("raise:make", words)


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "peers").mkdir()
        (self.folder / "peers" / "torchrl_faults.py").write_text(PEER.format(folder=folder.name, theirs=THEIRS))
        binary = self.folder / "faults"
        binary.write_text(BINARY.format(python=sys.executable, ours=OURS))
        binary.chmod(0o755)
        patches = [
            (environments, "BENCH", self.folder), (environments, "CACHE", self.folder / "logs"),
            (environments, "python", lambda name: Path(sys.executable)), (faults, "available_bytes", lambda: 1 << 50),
        ]
        for module, name, value in patches:
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        faults.adopt_orphans()

    def measure(self, *only, **options):
        options = SimpleNamespace(**{"binary": self.folder / "faults", "only": set(only), "skip": None, **options})
        errors = []
        with contextlib.redirect_stderr(io.StringIO()):
            found = faults.measure(options, errors)
        results.write(self.folder / "faults.json", found, results.faults_page)
        return json.loads((self.folder / "faults.json").read_text()), errors

    def test_a_row_has_ours_and_both_collectors_of_theirs(self):
        found, errors = self.measure("sleep", "close_socket")
        self.assertEqual(errors, [])
        sleep, socket = found["rows"]
        self.assertEqual(set(sleep["peers"]), {"MultiSyncCollector", "MultiAsyncCollector"})
        theirs = sleep["peers"]["MultiSyncCollector"]
        self.assertEqual((theirs["exception"], theirs["cause"]), ("RuntimeError: worker 0 failed", "stderr"))
        self.assertEqual(theirs["printed_bytes"], 100_000)
        self.assertEqual(socket["peers"], {})
        self.assertEqual(found["versions"], {"torchrl": "9.9"})
        self.assertEqual(found["setup"], {"num_envs": 8})
        page = (self.folder / "faults.md").read_text()
        for words in ["python3 bench/faults.py", "| endless sleep | `env-worker-crashed`", "no counterpart", "torchrl 9.9"]:
            self.assertIn(words, page)

    def test_nothing_of_a_peer_is_left(self):
        self.measure("sleep")
        pid = int((self.folder / "left").read_text())
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_who_does_not_run_is_a_row_that_says_so(self):
        found, errors = self.measure("leak", "stop")
        stop, leak = found["rows"]
        self.assertEqual(leak["ours"]["error"], "error[host-allocation-failed]: no room")
        self.assertIn("ended with 1: no torch", stop["peers"]["MultiAsyncCollector"]["error"])
        self.assertEqual(len(errors), 3)

    def test_a_leak_is_not_caused_where_it_would_end_others(self):
        with mock.patch.object(faults, "available_bytes", lambda: 1 << 30):
            found, _ = self.measure("leak")
        self.assertIn("12 GiB must be free for it, 1.0 GiB are", found["rows"][0]["peers"]["MultiSyncCollector"]["error"])

    def test_a_binary_that_is_missing_is_named(self):
        found, errors = self.measure("sleep", binary=self.folder / "none", skip="torchrl")
        self.assertIn("No such file", found["rows"][0]["ours"]["error"])
        self.assertEqual(len(errors), 1)

    def test_rows_that_differ_in_what_holds_for_all_are_refused(self):
        found = {"setup": {"num_envs": 8}, "versions": {}}
        self.assertRaises(ValueError, faults.note_setup, found, {"num_envs": 4})


if __name__ == "__main__":
    unittest.main()
