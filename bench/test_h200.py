"""Rows, merging, rendering and the running of processes of h200.py, with made-up numbers, binaries and peers.

    cd bench && python3 -m unittest

Needs no GPU, no network, no package, and takes seconds.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import environments
import h200
import h200_run
from results import MIB, Results, plan, row
from shapes import SHAPES

GIB = 2**30

# A binary that answers as `plimsoll bench` does: speeds by part, and an error for the layer level.
BINARY = """#!{python}
import json, sys
if sys.argv[1] == "--version":
    print("plimsoll 9.9.9")
    sys.exit()
part, words = sys.argv[2], sys.argv[3:]
if "layer" in words:
    print("some progress\\nerror[too-much]: 9 GiB\\nhint: less", file=sys.stderr)
    sys.exit(3)
found = {{"bench": part, "unit": "tokens/s", "median": 300.0, "min": 290.0, "max": 310.0, "repeats": 2,
         "device_planned_bytes": 3 << 30, "device_used_bytes": (3 << 30) - (10 << 20), "device_arena_bytes": 2 << 30}}
if "--profile" in words:
    found["profile"] = [["norm", 30, 0.001], ["attention", 60, 0.003]]
if part == "exactness":
    found = {{"bench": part, "tokens": 1200, "mismatches": 0, "max_abs_diff": 0.0}}
print(json.dumps(found))
"""

# A peer that answers as those of peers/ do; one that is compiled fails.
PEER = """import json, sys
if "--compiled" in sys.argv:
    print("a line\\nRuntimeError: no compiler", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"ready": True, "versions": {"torch": "1.2"}}))
speed = 150.0 if "--liger" in sys.argv else 7.0 if "--lora-rank" in sys.argv else 100.0
for _ in sys.stdin:
    print(json.dumps({"value": speed, "device_bytes": 4 << 30, "device_reserved_bytes": 5 << 30}))
"""


# A vLLM that measures the first shape, without and with log-probabilities, and fails at the second.
VLLM = """import json, sys
rows = sys.argv[sys.argv.index("--rows") + 1].split(",")
for row in rows[:2]:
    row = list(map(int, row.split(":")))[:4]
    speed = 150.0 if row[3] else 600.0
    print(json.dumps({"row": row, "median": speed, "min": speed, "max": speed, "repeats": 2, "versions": {"vllm": "0.26.0"}}))
print("RuntimeError: no memory", file=sys.stderr)
sys.exit(1)
"""


class Verdicts(unittest.TestCase):
    def test_a_row_holds_by_its_floor_in_its_unit(self):
        cases = [  # ours, peer, floor, ratio_floor, better -> floor, ratio, holds
            ((150.0, 5.0, 130.0, None, "more"), (130.0, 30.0, True)),
            ((150.0, None, 160.0, None, "more"), (160.0, None, False)),
            ((150.0, 100.0, None, 1.5, "more"), (150.0, 1.5, True)),
            ((149.0, 100.0, None, 1.5, "more"), (150.0, 1.49, False)),
            ((0.9, 10.0, None, 10, "less"), (1.0, 10.0 / 0.9, True)),
            ((1.1, 10.0, None, 10, "less"), (1.0, 10.0 / 1.1, False)),
            ((2.4, 2.8, 2.5, None, "less"), (2.5, 2.8 / 2.4, True)),
            ((0, None, 0, None, "less"), (0, None, True)),
            ((1, None, 0, None, "less"), (0, None, False)),
            ((7.0, 3.0, None, None, "more"), (None, 7.0 / 3.0, None)),
            ((7.0, None, None, 1.5, "more"), (None, None, None)),  # The peer failed: the ratio is unknown.
            ((None, 3.0, None, 1.5, "more"), (4.5, None, False)),  # We failed.
        ]
        for (ours, peer, floor, ratio_floor, better), expect in cases:
            found = row("p", "w", "m", "u", ours, peer, floor, ratio_floor, better)
            self.assertEqual((found["floor"], found["ratio"], found["holds"]), expect, (ours, peer, floor, ratio_floor))

    def test_a_plan_is_never_below_the_card_and_little_above(self):
        cases = [(1000, 1000, True), (999, 1000, False), (1256, 1000, True), (1257, 1000, False)]
        cases += [(20_400, 20_000, True), (20_401, 20_000, False)]
        for planned, measured, holds in cases:
            found = plan("r", planned * MIB, {"cuMemGetInfo": measured * MIB, "NVML": measured * MIB - 1})
            self.assertEqual((found["holds"], found["measured"]), (holds, measured * MIB), (planned, measured))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "new" / "h200.json"

    def results(self, **more):
        facts = {"when": "now", "commit": "c0ffee", "machine": {"cpu": "CPU", "num_cores": 16, "kernel": "Linux 6"},
                 "gpu": {"name": "NVIDIA H200", "driver": "580"}, "versions": {"torch": "2.11"}}
        results = Results(self.path, **more)
        results.begin("train", facts)
        results.add_row(row("train", "training", "m", "tokens/s", 150e3, 1e5, ratio_floor=1.5, peer_name="liger"))
        results.add_plan("train", plan("training m", 3 * GIB, {"NVML": 3 * GIB - MIB}))
        return results, facts

    def test_a_part_measured_again_leaves_the_others(self):
        results, facts = self.results()
        results.begin("step", facts)
        results.add_row(row("step", "step", "m", "s", 1.0))
        results.put(exactness={"tokens": 5, "mismatches": 0, "models": ["m"]})
        again = Results(self.path)
        again.begin("train", facts)
        self.assertEqual([row["part"] for row in again.found["rows"]], ["step"])
        self.assertEqual(again.found["plans"], [])
        again.add_row(row("train", "training", "m", "tokens/s", 160e3))
        kept = json.loads(self.path.read_text())
        self.assertEqual([(row["part"], row["ours"]) for row in kept["rows"]], [("step", 1.0), ("train", 160e3)])
        self.assertEqual(kept["exactness"]["tokens"], 5)
        self.assertEqual(set(kept["parts"]), {"step", "train"})

    def test_another_folder_goes_on_from_the_stored_file(self):
        self.results()
        other = Results(self.path.parent / "other" / "h200.json", before=self.path)
        self.assertEqual(len(other.found["rows"]), 1)

    def test_a_plan_of_the_same_run_takes_the_place_of_the_old_one(self):
        results, _ = self.results()
        results.add_plan("ours", plan("training m", 2 * GIB, {"NVML": 2 * GIB}))
        self.assertEqual([(p["part"], p["planned"]) for p in results.found["plans"]], [("ours", 2 * GIB)])

    def test_the_page_tells_rows_plans_and_errors(self):
        results, _ = self.results()
        results.add_row(row(
            "train", "step", "m", "s", 2.0, ratio_floor=10, better="less",
            peers={"TRL": {"error": "ImportError: no trl"}}, share_of_peak=0.5, command="plimsoll bench step",
        ))
        results.put(memory_free={"before": 100, "after": 100})
        page = self.path.with_suffix(".md").read_text()
        for words in [
            "| train | training | m | tokens/s | 150,000 | 100,000 (liger) | 1.50x | 150,000 (1.5x) | holds |",
            "| train | step | m | s | 2 |  |  | 10x |  |",
            "TRL `ImportError: no trl`", "50% of the card",
            "| training m | 3,072.0 | 3,071.0 | 1.0 MiB (0.03%) | holds |",
            "driver 580", "torch 2.11", "cut before its end", "    plimsoll bench step", "after the last: 100",
        ]:
            self.assertIn(words, page)


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "bench" / "peers").mkdir(parents=True)
        for name, value in [("BENCH", self.folder / "bench"), ("CACHE", self.folder / "logs")]:
            patch = mock.patch.object(environments, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.binary = self.script("plimsoll", BINARY.format(python=sys.executable))
        self.binary.chmod(0o755)
        for name in ("hf_generate.py", "torch_train.py", "trl_step.py"):
            self.script(f"bench/peers/{name}", PEER)

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def part(self, name, *words, code=1):
        """A part run with the made-up binary and peers: (results, what it printed). 1 says that someone failed."""
        command = ["h200.py", str(self.binary), name, "--rehearse", "--results", str(self.folder / "out"), *words]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(h200.main(), code)
        return json.loads((self.folder / "out" / "h200.json").read_text()), said.getvalue()

    def test_what_ended_before_the_limit_counts(self):
        peer = "import json, time\nprint(json.dumps({'value': 2.0}), flush=True)\ntime.sleep(60)"
        self.script("bench/peers/slow.py", peer)
        with contextlib.redirect_stdout(io.StringIO()):
            found = h200_run.peer("slow.py", "random:nano", "cpu", repeats=3, limit_s=2)
        self.assertEqual((found["median"], found["repeats"], found["error"]), (2.0, 1, "stopped after 2 s"))

    def test_a_missing_program_and_a_failing_one_are_values(self):
        self.assertEqual(h200_run.run(["/no/such"], "x", 5)[1], "/no/such: No such file or directory")
        with contextlib.redirect_stdout(io.StringIO()):
            _, error, _ = h200_run.run([sys.executable, "-c", "import os; os.abort()"], "x", 30)
        self.assertIn("exit code -6", error)

    def test_ours_has_exactness_and_plans(self):
        found, said = self.part("ours", code=0)
        rows = {row["what"]: row for row in found["rows"]}
        self.assertEqual(rows["training 2 x 16, recompute none: peak device memory"]["ours"], 2.0)
        self.assertEqual(found["exactness"], {"tokens": 1200, "mismatches": 0, "max_abs_diff": 0.0, "models": ["nano"]})
        self.assertIn("training 2 x 16, recompute none, f32, nano", [plan["run"] for plan in found["plans"]])
        self.assertTrue(all(plan["holds"] for plan in found["plans"]))
        self.assertEqual(found["parts"]["ours"]["versions"], {"plimsoll": "9.9.9"})
        self.assertIn("rollout 4 x (8 + 8), f32, nano: plimsoll 300 tokens/s", said)

    def test_a_peer_that_fails_leaves_the_best_of_the_others(self):
        with mock.patch.dict(h200.TRAIN_FLOORS, {"nano": 375}):
            found, said = self.part("train")
        fast = next(row for row in found["rows"] if row["what"] == "training 2 x 16, recompute cheap")
        self.assertEqual((fast["peer"], fast["peer_name"], fast["floor"]), (150.0, "liger", 375.0))
        lean = next(row for row in found["rows"] if row["what"] == "training 2 x 16, recompute layer")
        self.assertEqual((lean["error"], lean["ours"]), ("error[too-much]: 9 GiB", None))
        self.assertIs(fast["holds"], False)
        self.assertEqual(fast["profile"][0], ["norm", 30, 0.001])
        page = (self.folder / "out" / "h200.md").read_text()
        self.assertIn("| attention | 60 | 3.00 | 75.0% |", page)
        self.assertNotIn("profile", "".join(plan["run"] for plan in found["plans"]))
        self.assertEqual(fast["peers"]["compile"]["error"], "RuntimeError: no compiler")
        self.assertIn("below their floor: 1", said)
        memory = next(row for row in found["rows"] if row["what"].endswith("recompute cheap: peak device memory"))
        self.assertEqual((memory["ours"], memory["peer"]), (2.0, 4.0))

    def test_the_slower_of_two_runs_counts(self):
        fast, slow = {"median": 3.0, "min": 2.0, "command": "x"}, {"median": 1.0, "min": 0.5}
        for before, after in [(fast, slow), ({**slow, "command": "x"}, fast)]:
            self.assertEqual(h200.slower(before, after), {"median": 1.0, "min": 0.5, "command": "x"})
        self.assertEqual(h200.slower(fast, {"error": "no"}), fast)
        self.assertEqual(h200.slower({"error": "no"}, {"error": "no"}), {"error": "no"})

    def test_every_part_keeps_the_others_and_an_overrun_is_told(self):
        self.part("rollout", code=0)
        found, _ = self.part("step", "--seconds", "0")
        self.assertEqual({row["part"] for row in found["rows"]}, {"rollout", "step"})
        (step,) = [row for row in found["rows"] if row["part"] == "step"]
        self.assertIn("not run", step["error"])
        self.assertIn("not run", step["peers"]["TRL"]["error"])


    def test_a_row_lost_to_vllm_is_missed_and_a_row_that_did_not_run_says_why(self):
        self.script("bench/peers/vllm_rollout.py", VLLM)
        found, _ = self.part("peers-7b")
        plain, logprobs, late, _ = found["rows"]
        self.assertEqual((plain["ours"], plain["peer"], plain["holds"]), (300.0, 600.0, False))
        self.assertEqual((logprobs["peer"], logprobs["holds"]), (150.0, True))
        self.assertIn("before vLLM 300, after it 300", plain["note"])
        self.assertEqual(late["peers"]["vLLM"]["error"], "RuntimeError: no memory")
        self.assertIsNone(late["peer"])
        page = (self.folder / "out" / "h200.md").read_text()
        self.assertIn("| 300 | 600 (vLLM) | 0.50x | 660 (1.1x) | missed |", page)
        self.assertEqual(found["parts"]["peers-7b"]["versions"]["vllm"], "0.26.0")

    def test_a_part_of_vllm_without_time_starts_nothing(self):
        found, _ = self.part("peers-7b", "--seconds", "0")
        for row in found["rows"]:
            self.assertIn("not run", row["error"])
            self.assertIn("not run", row["peers"]["vLLM"]["error"])

    def test_adapters_have_rows_and_plans_of_their_own(self):
        self.part("lora", code=0)
        found, _ = self.part("lora-step", code=0)
        rows = {row["what"]: row for row in found["rows"]}
        for form in (", LoRA of rank 8", ", LoRA of rank 8, merged"):
            step = rows[f"GRPO step 4 x 4 x (8 + 8){form}"]
            self.assertEqual((step["peer"], step["peer_name"], step["holds"]), (7.0, "TRL + peft", None))
            self.assertIn("--lora-rank 8", step["command"])
        plans = [plan["run"] for plan in found["plans"]]
        self.assertEqual(len(plans), len(set(plans)))
        for run in ("training 2 x 16, recompute cheap", "rollout 2 x (8 + 8)"):
            self.assertIn(f"{run}, nano", plans)
            self.assertIn(f"{run}, LoRA of rank 8, merged, nano", plans)


class Shapes(unittest.TestCase):
    def test_the_peers_shapes_are_those_of_the_binary(self):
        source = Path(__file__).resolve().parent.parent / "crates" / "arch" / "src" / "presets.rs"
        presets = dict(re.findall(r'\("([\w.-]+)", shape\(Family::(.*?)\)\.spec\(\)\)', source.read_text()))
        for name, shape in SHAPES.items():
            words = [word.strip() for word in presets[name].split(",")]
            self.assertEqual(words.pop(-2), str(shape.tied).lower(), f"{name}: tied")
            self.assertEqual(words.pop(0).lower(), shape.family, name)
            self.assertEqual([float(word) for word in words], [float(number) for number in shape[1:-1]], name)


if __name__ == "__main__":
    unittest.main()
