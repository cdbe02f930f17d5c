"""Rows, floors, the page and the running of `compare.py collect`, with made-up numbers, binaries and peers.

    cd bench && python3 -m unittest
"""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import collectors
import collectors_run
import environments
import results
from results import MIB

collectors_cases = collectors.cases
CASE = collectors.python_case(8, 1, "python3", (1, 1, 1, 1), above_bare_us=4.0)
NATIVE = collectors.cases("python3")[1]

# A binary that answers as ours does: 2 s and a worker's 3 s to start, then 10 us of wall time, 4 and 8 of CPU a frame.
BINARY = """#!{python} -S
import json, sys
if sys.argv[1] == "--version":
    print("plimsoll 9.9.9")
    sys.exit()
import tomllib
file = tomllib.load(open(sys.argv[2], "rb"))
if file["env"].startswith("gym:") and {failing}:
    print("error[env-not-made]: no such environment\\nhint: another", file=sys.stderr)
    sys.exit(2)
if sys.argv[1] == "plan":
    rows = [("host", "heap", 5), ("host", "workers", 1 << 40), ("host", "kernel", 7), ("disk", "file", 9)]
    print(json.dumps({{"regions": [dict(zip(("pool", "place", "bytes"), row)) for row in rows]}}))
    sys.exit()
n = file["total_frames"]
workers = {{"worker_cpu_seconds": 3 + n * 8e-6}} if file["env"].startswith("gym:") else {{}}
start = 2 if workers else 0
print(json.dumps({{"frames": n, "frames_per_second": n / (start + n * 1e-5), "cpu_us_per_frame": 4.0,
                  "rss_peak_bytes": 1 << 20, "rss_planned_bytes": 1 << 40, **workers}}))
"""

PEER = """import json, sys
if "async" in sys.argv[1]:
    sys.exit("RuntimeError: a worker is gone")
print(json.dumps({"wall_us": 60.0, "cpu_us": 7.0, "seconds": 1.0, "versions": {"gymnasium": "1.2"}}))
"""


def runs_at(*times):
    return [{"cpu_us": us, "wall_us": us} for us in times]


class Rows(unittest.TestCase):
    def test_python_environments_may_take_a_constant_above_the_bare_loop(self):
        for ours, bare, holds in [(11.0, 7.0, True), (11.1, 7.0, False), (3.0, None, None), (None, 7.0, False)]:
            runs = {"plimsoll": runs_at(ours) if ours else [], "bare loop": runs_at(bare) if bare else []}
            found = results.collect_rows(CASE, runs, {})[0]
            self.assertEqual((found["holds"], found["floor"]), (holds, bare and bare + 4.0), (ours, bare))

    def test_a_multiple_of_a_peer_and_a_time_are_two_rows(self):
        for ours, holds in [(0.05, [True, True]), (0.08, [True, False]), (0.2, [False, False])]:
            runs = {"plimsoll": runs_at(ours), "Gymnasium numpy": runs_at(0.1)}
            rows = results.collect_rows(NATIVE, runs, {})
            self.assertEqual([row["holds"] for row in rows], holds, ours)
            self.assertEqual([row["floor"] for row in rows], [0.1, 0.06])

    def test_a_fifth_of_envpool_is_the_floor_of_64(self):
        case = collectors.cases("python3")[0]
        runs = {"plimsoll": runs_at(0.3), "EnvPool": runs_at(1.5), "Gymnasium Sync": runs_at(7.0)}
        envpool, sync = results.collect_rows(case, runs, {})
        self.assertEqual((envpool["floor"], envpool["holds"]), (0.3, True))
        self.assertEqual((sync["floor"], sync["holds"]), (None, None))

    def test_a_fiftieth_of_torchrl_is_the_floor_with_a_policy(self):
        for ours, holds in [(2.0, True), (2.1, False)]:
            runs = {"plimsoll": runs_at(ours), "TorchRL, vector": runs_at(100.0), "TorchRL, SerialEnv": runs_at(400.0)}
            found = results.collect_rows(collectors.policy_case(), runs, {})
            self.assertEqual([(row["floor"], row["holds"]) for row in found], [(2.0, holds), (None, None)])

    def test_a_policy_file_has_the_names_and_shapes_of_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "policy.safetensors")
            collectors.write_policy(path)
            data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        shapes = {name: of["shape"] for name, of in header.items()}
        wanted = {"actor.0.weight": [64, 4], "actor.2.weight": [64, 64], "actor.4.weight": [2, 64]}
        self.assertEqual({name: shape for name, shape in shapes.items() if "weight" in name}, wanted)
        self.assertEqual(shapes["actor.4.bias"], [2])
        self.assertEqual(max(of["data_offsets"][1] for of in header.values()), len(data) - 8 - size)

    def test_start_up_is_not_in_a_frame_of_a_python_environment(self):
        summary = lambda n: {
            "frames": n, "frames_per_second": n / (2 + n * 1e-5), "cpu_us_per_frame": 4.0, "worker_cpu_seconds": 3 + n * 8e-6,
        }
        found = collectors_run.per_frame(summary(400_000), summary(100_000))
        self.assertAlmostEqual(found["wall_us"], 10.0)
        self.assertAlmostEqual(found["cpu_us"], 12.0)
        native = {"frames": 1000, "frames_per_second": 1e6, "cpu_us_per_frame": 1.5, "worker_cpu_seconds": None}
        self.assertAlmostEqual(collectors_run.per_frame(native, None)["cpu_us"], 1.5)

    def test_the_kernel_and_files_are_not_in_what_processes_hold(self):
        places = ["heap", "process", "workers", "kernel"]
        regions = [{"pool": "host", "place": place, "bytes": 1 << n} for n, place in enumerate(places)]
        regions.append({"pool": "disk", "place": "file", "bytes": 16})
        self.assertEqual(collectors.planned_bytes({"regions": regions}), 7)

    def test_an_environment_file_is_toml(self):
        text = collectors_run.toml({"env": "gym:CartPole-v1", "num_envs": 8, "policy.kind": "mlp"})
        self.assertEqual(text, 'env = "gym:CartPole-v1"\nnum_envs = 8\npolicy.kind = "mlp"\n')


class Page(unittest.TestCase):
    def test_bytes_floors_and_those_who_did_not_run_are_told(self):
        runs = {"plimsoll": [], "bare loop": runs_at(6.0, 7.0, 9.0)}
        rows = results.collect_rows(CASE, runs, {"plimsoll": "too much"})
        worker = results.collect_row(
            "a worker", "bytes", 26 * MIB, None, 30 * MIB, peer_name="TorchRL", peer_error="stopped after 120 s"
        )
        page = results.collect_page({
            "machine": {"cpu": "a CPU", "num_cores": 2, "memory_bytes": 2**34, "kernel": "Linux 6"}, "commit": "abc",
            "when": "2026-01-01 00:00", "repeats": 3, "other_cores": [0.02, 0.1], "versions": {"numpy": "2.0"},
            "rows": [*rows, worker],
        })
        for words in [
            "| did not run | bare loop | 7 (6 to 9) |  | 11 (peer + 4) | missed |",
            "| a worker | bytes | 26.0 MiB | TorchRL | did not run |  | 30.0 MiB | holds |",
            "- a worker: TorchRL: stopped after 120 s.", "Plimsoll: too much.", "at most 0.1 cores", "numpy 2.0",
        ]:
            self.assertIn(words, page)
        self.assertEqual(page.count("Plimsoll: too much."), 1)


class Watching(unittest.TestCase):
    def test_workers_are_those_below_the_first_without_the_library_s_own(self):
        me, commands = collectors_run.os.getpid(), {2: "first", 3: "worker", 4: "worker", 5: "resource_tracker"}
        watch = collectors_run.Watch(2)
        with (
            mock.patch.object(collectors_run.machine, "pss_bytes", lambda pid: pid * 10),
            mock.patch.object(collectors_run, "gpu_files", lambda pid: pid == 4),
            mock.patch.object(collectors_run.Path, "read_text", lambda path, **_: commands[int(path.parts[2])]),
        ):
            watch.read({2: me, 3: 2})
            self.assertIsNone(watch.worker_bytes)
            watch.read({2: me, 3: 2, 4: 2, 5: 2})
        self.assertEqual((watch.worker_bytes, watch.total_bytes, watch.gpu_files), (35.0, 140, 1))


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "peers").mkdir()
        (self.folder / "peers" / "collect.py").write_text(PEER)
        few = lambda python: [collectors_cases(python)[at] for at in (0, 2, 3)]  # A native one, one with a policy, a Python one.
        python = lambda name: self.no_envpool() if name == "envpool" else Path(sys.executable)
        patches = [(environments, "BENCH", self.folder), (environments, "CACHE", self.folder / "logs")]
        for module, name, value in [*patches, (environments, "python", python), (collectors, "cases", few)]:
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def no_envpool(self):
        raise collectors_run.subprocess.CalledProcessError(1, ["pip"])

    def compare(self, failing=False, **options):
        binary = self.folder / "plimsoll"
        binary.write_text(BINARY.format(python=sys.executable, failing=failing))
        binary.chmod(0o755)
        options = SimpleNamespace(**{"binary": binary, "repeats": 1, "skip": {"torchrl"}, **options})
        failures = []
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = collectors.compare(options, failures)
        path = self.folder / "collect.json"
        results.write(path, found, results.collect_page)
        return json.loads(path.read_text()), failures

    def test_a_peer_that_fails_is_a_row_that_says_so(self):
        found, failures = self.compare()
        rows = {(row["what"], row.get("peer_name")): row for row in found["rows"]}
        self.assertIn("not installed", rows["native CartPole, 64 environments", "EnvPool"]["peer_error"])
        self.assertIsNone(rows["native CartPole, 64 environments", "EnvPool"]["holds"])
        bare = rows["Python CartPole, 8 environments in 1 worker(s)", "bare loop"]
        self.assertAlmostEqual(bare["ours"], 12.0)
        self.assertAlmostEqual(bare["clocks"]["wall_us"], 10.0)
        self.assertEqual((bare["peer"], bare["floor"], bare["holds"]), (7.0, 11.0, False))
        lost = rows["Python CartPole, 8 environments in 1 worker(s)", "Gymnasium Async"]
        self.assertEqual(lost["peer_error"], "RuntimeError: a worker is gone")
        self.assertTrue(rows["64 Python workers, all processes", None]["holds"])
        self.assertEqual(found["versions"], {"plimsoll": "9.9.9", "gymnasium": "1.2"})
        self.assertNotIn("TorchRL MultiSync", {name for _, name in rows})
        self.assertTrue(any("a worker is gone" in failure for failure in failures))

    def test_ours_that_fails_misses_its_floors(self):
        found, failures = self.compare(failing=True)
        of_python = [row for row in found["rows"] if "Python" in row["what"] and row["floor"] is not None]
        self.assertEqual({row["holds"] for row in of_python}, {False})
        self.assertEqual({row["error"] for row in of_python}, {"error[env-not-made]: no such environment"})
        self.assertTrue(failures)

    def test_without_a_binary_there_are_no_rows(self):
        options = SimpleNamespace(binary=self.folder / "none", repeats=1, skip=set())
        failures = []
        self.assertEqual(collectors.compare(options, failures)["rows"], [])
        self.assertIn("No such file", failures[0])


if __name__ == "__main__":
    unittest.main()
