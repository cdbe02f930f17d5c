"""Settings, data, tests and page of overlay.py, with made-up runs.

    cd bench && python3 -m unittest

Needs no package and no model, and takes seconds.
"""

import contextlib
import io
import json
import random
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import overlay
import overlay_jobs as jobs
import overlay_page as page
import overlay_picture
import overlay_stats as stats

sys.path.insert(0, str(jobs.BENCH / "peers"))
import overlay_reward  # noqa: E402

# A binary that "trains": it writes a run directory whose metrics are numbers of the run file's seed.
BINARY = """#!{python}
import json, sys, tomllib
from pathlib import Path
run = tomllib.loads(Path(sys.argv[2]).read_text())
out = Path(run["run"]["dir"])
out.mkdir()
names = ["loss", "grad_norm", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]
names += ["learning_rate"]
event = lambda i: {{"event": "step", "metrics": {{"step_time": 1.0, **{{n: i + run["seed"] for n in names}}}}}}
(out / "events.jsonl").write_text("".join(json.dumps(event(i)) + "\\n" for i in range(run["train"]["steps"])))
(out / "summary.json").write_text(json.dumps({{"rss_peak_bytes": 2**30, "logprob_mismatch_max": 0.0}}))
"""

# A peer whose losses are the same, or OFF of them more.
PEER = """import json, sys
from pathlib import Path
for path in sys.argv[1:]:
    s = json.loads(Path(path).read_text())
    names = ["loss", "grad_norm", "accuracy", "margin", "logps_chosen", "logps_rejected", "learning_rate"]
    steps = [{n: i + s["seed"] for n in names} for i in range(s["steps"])]
    for step in steps:
        step["loss"] *= 1 + OFF
    found = {"steps": steps, "seconds": 12.0, "peak_rss_bytes": 3 * 2**30, "versions": {"torch": "9.9", "trl": "1.2"}}
    Path(s["out"]).write_text(json.dumps(found))
"""


class Table(unittest.TestCase):
    def test_both_programs_are_given_the_same_settings(self):
        for kind, table in jobs.JOBS.items():
            for job in table.values():
                run = tomllib.loads(jobs.run_file(job, kind, 3, "cpu", Path("/f"), "m", "/f/start", 2))
                peer = jobs.peer_settings(job, 3, "cpu", Path("/f"), Path("/o"), "m", "/f/start", True, 2)
                train = run["train"]
                self.assertEqual((run["method"], run["model"], run["seed"]), (peer["method"], "m", peer["seed"]))
                self.assertEqual(run["data"]["prompts"], peer["data"])
                self.assertEqual(run["rollout"]["prompts_per_step"], peer["rows"])
                self.assertEqual([train["steps"], train["learning_rate"]], [peer["steps"], peer["learning_rate"]])
                self.assertEqual([tuple(train["betas"]), train["adam_epsilon"]], [peer["betas"], peer["epsilon"]])
                self.assertEqual(run["rollout"].get("group_size", 1), peer["group"])
                self.assertEqual(run.get("lora", {}).get("rank", 0), peer["lora_rank"])
                self.assertEqual(run.get("loss", {}).get("kl_coef", 0.0), peer["kl_coef"])

    def test_rows_are_those_of_the_seed_and_no_prompt_comes_twice(self):
        for kind in jobs.JOBS:
            rows = jobs.task_rows(kind, 300, 1)
            self.assertEqual(rows, jobs.task_rows(kind, 300, 1))
            self.assertNotEqual(rows, jobs.task_rows(kind, 300, 2))
            self.assertEqual(len({json.dumps(row["prompt"]) for row in rows}), 300)
            self.assertTrue(all(row["chosen"] != row["rejected"] for row in rows))

    def test_reward_is_1_for_the_answer_and_less_for_digits_of_it(self):
        logged = {}
        texts = ["is 132", [{"role": "assistant", "content": "139"}], "no", "1132"]
        found = overlay_reward.reward([""] * 4, texts, [[]] * 4, ["132"] * 4, log_metric=logged.__setitem__)
        self.assertEqual(found, [1.0, 1 / 3, 0.0, 0.0])
        self.assertEqual(logged, {"accuracy": 0.25})

    def test_a_start_is_a_file_of_safetensors(self):
        with tempfile.TemporaryDirectory() as folder:
            adapter, head, job = Path(folder, "a"), Path(folder, "h"), jobs.JOBS["nano"]["grpo-lora"]
            jobs.write_adapter(adapter, jobs.NANO_FOLDER, job, 1)
            jobs.write_reward_model(head, jobs.NANO_FOLDER, 1)
            header = jobs.read_header(adapter / "adapter_model.safetensors")
            config = json.loads((jobs.NANO_FOLDER / "config.json").read_text())
            self.assertEqual(len(header), 2 * 7 * config["num_hidden_layers"])
            header = jobs.read_header(head / "model.safetensors")
            end = max(entry["data_offsets"][1] for entry in header.values())
            self.assertEqual(header["score.weight"]["data_offsets"][1], end)
            with (head / "model.safetensors").open("rb") as file:
                size = 8 + int.from_bytes(file.read(8), "little") + end
            self.assertEqual(size, (head / "model.safetensors").stat().st_size)


class Statistics(unittest.TestCase):
    def test_steps_agree_up_to_one_per_cent(self):
        ours = [[1.0, 2.0, 3.0]]
        for off, holds in ((1.0, True), (1.009, True), (1.02, False)):
            self.assertEqual(stats.compare_steps(ours, [[value * off for value in ours[0]]])["holds"], holds)
        self.assertTrue(stats.compare_steps([[0.0]], [[0.0]])["holds"])
        # One seed that differs is enough.
        self.assertFalse(stats.compare_steps(ours * 2, [ours[0], [1.0, 2.0, 4.0]])["holds"])

    def test_the_band_holds_the_mean_of_the_same_in_99_of_100(self):
        draw = random.Random(1)
        seeds = lambda: [[draw.gauss(0, 1)] for _ in range(5)]  # noqa: E731
        inside = 0
        for _ in range(2000):
            (our_mean, _), (their_mean, half) = (stats.band([run[0] for run in seeds()]) for _ in range(2))
            inside += abs(our_mean - their_mean) <= half
        self.assertTrue(0.98 <= inside / 2000 <= 0.998, inside)

    def test_bands_apart_differ(self):
        ours = [[1.0 + i / 100] for i in range(5)]
        self.assertTrue(stats.compare_bands(ours, [[one[0] + 0.01] for one in ours])["holds"])
        self.assertFalse(stats.compare_bands(ours, [[one[0] + 0.2] for one in ours])["holds"])
        self.assertTrue(stats.compare_bands([[4.0]] * 5, [[4.0]] * 5)["holds"])

    def test_a_seed_is_the_mean_of_its_last_third(self):
        self.assertEqual(stats.last_third([0, 0, 0, 0, 3, 5]), 4)
        self.assertEqual(stats.last_third([7]), 7)


class Whole(unittest.TestCase):
    def run_main(self, off, folder, seeds):
        """Runs overlay.py with the made-up programs; returns its exit code and what it printed."""
        binary, peer = folder / "plimsoll", folder / "peer.py"
        binary.write_text(BINARY.format(python=sys.executable))
        binary.chmod(0o755)
        peer.write_text(PEER.replace("OFF", str(off)))
        words = ["overlay.py", str(binary), "--jobs", "sft", "dpo", "--seeds", str(seeds), "--steps", "9", "--write"]
        places = dict(RESULTS=folder / "overlay.json", PAGE=folder / "proof.md", DETAILS=folder / "each.md", PICTURES=folder)
        out = io.StringIO()
        with (
            mock.patch.object(sys, "argv", words), mock.patch.dict(overlay.PEERS, trl=str(peer)),
            mock.patch.object(overlay.environments, "python", lambda _: sys.executable),
            mock.patch.multiple(page, **places), contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return overlay.main(), out.getvalue()

    def test_programs_that_do_the_same_agree(self):
        with tempfile.TemporaryDirectory() as name:
            code, said = self.run_main(0.0, Path(name), 5)
            self.assertEqual(code, 0, said)
            both = "3 of 3 metrics agree step by step, 2 of 2 metrics in both bands"
            self.assertIn(f"sft: {both}; 9.0 s, theirs 12.0 s", said)
            text = Path(name, "proof.md").read_text()
            missing = "SmolLM2-135M-Instruct next to TRL on a card: GRPO of all weights"
            self.assertIn(f"Not run with five seeds, {missing}", text)
            each = Path(name, "each.md").read_text()
            self.assertIn("| agrees |", each)
            self.assertNotIn("**differs**", each)
            self.assertIn("polyline", Path(name, "proof-nano-trl-cpu-dpo.svg").read_text())

    def test_a_loss_that_differs_is_named_and_comes_first(self):
        with tempfile.TemporaryDirectory() as name:
            code, said = self.run_main(0.5, Path(name), 2)
            self.assertEqual(code, 1)
            self.assertIn("DIFFERS", said)
            text = Path(name, "proof.md").read_text()
            self.assertIn("SFT, differs step by step: `loss` (3e-01 at the first step, 3e-01 over all).", text)
            self.assertLess(text.index("differs step by step"), text.index("In one table"))
            self.assertIn("with too few seeds for bands: SFT (2 x 9 steps), DPO (2 x 9 steps)", text)

    def test_a_picture_of_the_same_numbers_has_the_same_bytes(self):
        curve = [[i / 3, i / 4, i / 2] for i in range(200)]
        curves = {"loss": {"ours": curve, "theirs": curve}, "flat": {"ours": [[1, 1, 1]], "theirs": [[1, 1, 1]]}}
        self.assertEqual(overlay_picture.draw(curves, "TRL"), overlay_picture.draw(curves, "TRL"))
        self.assertLess(len(overlay_picture.draw(curves, "TRL")), 12_000)


if __name__ == "__main__":
    unittest.main()
