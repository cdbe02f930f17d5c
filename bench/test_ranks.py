"""h200_ranks.py without a GPU: a run whose trainer is killed, what runs leave, and verdicts, with a made-up binary and numbers.

    cd bench && python3 -m unittest
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

import h200_ranks
import ranks_page
from ranks_life import Life, differ, left

# Starts a "trainer", writes the table of ranks, and says why it ends when the trainer has ended.
RUN = """
import json, os, pathlib, subprocess, sys
out = pathlib.Path(sys.argv[1])
trainer = subprocess.Popen(["sleep", "30"])
(out / "events.jsonl").write_text(json.dumps({"event": "step", "step": 1, "metrics": {}}) + "\\n{\\"event\\": \\"st")
table = {"rows": [{"supervisor": os.getpid(), "trainer": trainer.pid}]}
(out / "new.json").write_text(json.dumps(table))
os.replace(out / "new.json", out / "ranks.json")
trainer.wait()
print("note\\nerror[rank-lost]: rank 0 was killed", file=sys.stderr)
sys.exit(4)
"""


def write_run(folder, metrics, weights):
    """Writes what a run leaves: a checkpoint, a file of samples, and events of steps, the last of which was made twice."""
    for name, bytes in [("checkpoints/latest/model.safetensors", weights), ("samples/step-000001.jsonl", b"{}")]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes)
    steps = [(1, {"loss": 0.5}), (2, {"loss": 9.0}), (2, metrics)]
    lines = [json.dumps({"event": "step", "step": step, "metrics": found}) for step, found in steps]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")


class Killed(unittest.TestCase):
    def test_a_killed_trainer_ends_the_run_and_its_words_and_times_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            life = Life([sys.executable, "-c", RUN, folder], folder)
            self.assertEqual(len(life.steps(1, 20)), 1)
            seen = life.kill(0)
        self.assertEqual((seen["exit"], seen["hit"], seen["sentence"]), (4, 0, "error[rank-lost]: rank 0 was killed"))
        self.assertTrue(seen["holds"] and 0 <= seen["said_s"] <= 2.5 and seen["trainers_ended_s"] <= seen["ended_s"], seen)


class Left(unittest.TestCase):
    def test_what_differs_is_named_and_times_do_not_count(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = [Path(folder) / name for name in "abc"]
            for run, metrics, weights in zip(runs, [{"loss": 1, "step_time": 1}, {"loss": 1, "step_time": 2}, {"loss": 2}], [b"w", b"w", b"v"]):
                write_run(run, metrics, weights)
            a, b, c = map(left, runs)
        self.assertEqual((differ(a, b), differ(a, c)), ([], ["metrics", "model.safetensors"]))
        self.assertEqual(differ(a, {**a, "more": "1"}), ["more"])


class Verdicts(unittest.TestCase):
    def test_a_plan_is_true_within_a_percent_and_never_below(self):
        for held, expect in [([1000, 995], True), ([1001, 995], False), ([1000, 989], False)]:
            self.assertEqual(h200_ranks.is_true({"planned_bytes": 1000}, {"card_bytes": held}), expect, held)

    def test_floors_are_of_one_ranks_time(self):
        row = lambda ranks, seconds: {"ranks": ranks, "update_s": {"median": seconds}, "step_s": {"median": seconds}}
        self.assertEqual(ranks_page.share(row(4, 1.04), row(1, 1.0), "update_s"), ["96.2%", "96%: holds"])
        self.assertEqual(ranks_page.share(row(2, 1.04), row(1, 1.0), "update_s"), ["96.2%", "98%: missed"])
        self.assertEqual(ranks_page.share(row(16, 1.04), row(1, 1.0), "step_s"), ["96.2%", ""])

    def test_a_row_that_failed_keeps_its_columns(self):
        failed = {"part": "scale", "model": "7b", "ranks": 4, "error": "error[x]: a\nhint: b", "commit": "c", "cards": 4}
        lines = ranks_page.of_scale([failed])
        self.assertEqual({line.count("|") for line in lines if line.startswith("|")}, {11})
        self.assertIn("error[x]: a hint: b", "\n".join(lines))


if __name__ == "__main__":
    unittest.main()
