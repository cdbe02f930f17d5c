"""Contenders, ratios and the page of compare.py, with a made-up binary and made-up peers.

    cd bench && python3 -m unittest

Needs no package and no model, and takes seconds.
"""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import compare
import environments
import machine
import results

# A binary that answers as `plimsoll bench` does: all weights in 4 s, adapters alone in 2 s, merged in 1 s.
BINARY = """#!{python}
import json, sys
if sys.argv[1] == "--version":
    print("plimsoll 9.9.9")
    sys.exit()
seconds = 1.0 if "--lora-merge" in sys.argv else 2.0 if "--lora-rank" in sys.argv else 4.0
print(json.dumps({{"bench": sys.argv[2], "median": seconds, "prompts": 8, "samples": 4, "share_of_peak": 0.5}}))
"""

# A peer that answers as trl_step.py does: 16 s, with adapters 12 s.
PEER = """import json, sys
rank = int(sys.argv[sys.argv.index("--lora-rank") + 1]) if "--lora-rank" in sys.argv else 0
trained = "float32" if rank else "bfloat16"
dtypes = {"frozen": ["bfloat16"] if rank else [], "trained": [trained], "optimizer": [trained]}
print(json.dumps({"ready": True, "versions": {"trl": "1.2"}, "dtypes": dtypes}), flush=True)
for line in sys.stdin:
    print(json.dumps({"value": 12.0 if rank == 32 else 16.0, "peak_rss_bytes": 8 << 30}), flush=True)
"""


class Parts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "peers").mkdir()
        self.script("peers/trl_step.py", PEER)
        self.binary = self.script("plimsoll", BINARY.format(python=sys.executable))
        self.binary.chmod(0o755)
        for name, value in [
            ("BENCH", self.folder), ("CACHE", self.folder / "logs"), ("python", lambda _: sys.executable),
            ("model_directory", lambda: self.folder),
        ]:
            patch = mock.patch.object(environments, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def run_part(self, part, code=0, more=()):
        """Runs a part twice into cpu.json: (results, the page, what it printed)."""
        path = self.folder / "cpu.json"
        command = ["compare.py", part, "--repeats", "2", "--binary", str(self.binary), "--json", str(path), *more]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(io.StringIO()) as said:
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(compare.main(), code)
        return json.loads(path.read_text()), path.with_suffix(".md").read_text(), said.getvalue()

    def test_a_peers_ratio_is_in_its_row(self):
        found, page, said = self.run_part("step")
        step = found["parts"]["step"]
        self.assertEqual(list(step["ratios"]), ["trl"])
        self.assertEqual((step["ratios"]["trl"]["median"], step["ratios"]["trl"]["holds"]), (4.0, True))
        self.assertTrue(step["ratios"]["trl"]["memory"]["holds"])
        self.assertIn("| step | trl | s | 16 | 16 | 16 |  | 8.00 | 4.00x | 4.00x | 3.2x, holds |", page)
        self.assertIn("- step: trl: trained bfloat16, optimizer bfloat16.", page)
        self.assertIn("step: Plimsoll: 4.00x trl (min 4.00), floor 3.2x: holds", said)

    def test_each_form_of_adapters_has_its_own_ratio(self):
        found, page, said = self.run_part("lora")
        lora = found["parts"]["lora"]
        self.assertEqual(lora["work"]["lora_rank"], 32)
        forms = {name: (ratio["peer"], ratio["median"], ratio["holds"]) for name, ratio in lora["ratios"].items()}
        self.assertEqual(forms, {"plimsoll": ("trl+peft", 6.0, True), "plimsoll merged": ("trl+peft", 12.0, True)})
        self.assertIsNone(lora["ratios"]["plimsoll"]["memory"]["holds"])
        for words in [
            "| 6.00x | 6.00x | 5.0x, holds |", "| 12.00x | 12.00x | 5.0x, holds |",
            "| lora | trl+peft | s | 12 | 12 | 12 |  | 8.00 |  |  |  |", "plimsoll merged's peak RSS is 0.00",
            "- lora: trl+peft: frozen bfloat16, trained float32, optimizer float32.",
        ]:
            self.assertIn(words, page)
        self.assertIn("lora: plimsoll merged: 12.00x trl+peft (min 12.00), floor 5.0x: holds", said)

    def test_everyone_is_held_to_a_path_and_a_lost_row_says_so(self):
        slow, slower = "40.0 if os.environ['PLIMSOLL_ISA'] else 4.0\n", "20.0 if os.environ['ONEDNN_MAX_CPU_ISA'] else 16.0"
        binary = BINARY.replace("4.0\n", slow).replace("json, sys", "json, os, sys")
        self.script("plimsoll", binary.format(python=sys.executable))
        self.script("peers/trl_step.py", PEER.replace("16.0", slower).replace("json, sys", "json, os, sys"))
        _, page, _ = self.run_part("step", more=["--isa", "avx512bf16"])
        self.assertIn("| 0.50x | 0.50x | 3.2x, lost |", page)
        self.assertIn("2 threads, everyone held to avx512bf16; ", page)

    def test_without_the_peer_our_forms_remain(self):
        self.script("peers/trl_step.py", "raise SystemExit('no peft')")
        found, _, _ = self.run_part("lora", code=1)
        self.assertEqual(list(found["parts"]["lora"]["contenders"]), ["plimsoll", "plimsoll merged"])
        self.assertEqual(found["parts"]["lora"]["ratios"], {})

    def test_a_part_from_another_machine_is_kept_and_named(self):
        _, page, _ = self.run_part("step")
        self.assertIn("\nMachine: ", page)
        with mock.patch.object(machine, "facts", lambda here=machine.facts(): {**here, "cpu": "Abacus"}):
            found, page, _ = self.run_part("lora")
        self.assertEqual(list(found["parts"]), ["step", "lora"])
        self.assertIn("\nMachine of step: ", page)
        self.assertIn("\nMachine of lora: Abacus (", page)

    def test_the_page_names_runs_that_others_disturbed(self):
        run = lambda cores, share: {"other_cores": cores, "share_of_peak": share}
        record = {"contenders": {"plimsoll": {"runs": [run(0.02, 0.7), run(0.38, 0.4), run(0.1, 0.8)]}}}
        self.assertEqual(
            results.cpu_noise(record), "other processes used at most 0.38 cores, above 0.1 in run 2 of plimsoll",
        )
        self.assertEqual(results.share_of_peak(record["contenders"]["plimsoll"]), 0.7)
        self.assertIsNone(results.share_of_peak({"runs": [{"other_cores": 0.0}]}))


if __name__ == "__main__":
    unittest.main()
