"""The logs that logs.py writes, and its verdicts, with made-up numbers.

    cd bench && python3 -m unittest
"""

import random
import tempfile
import unittest
from pathlib import Path

import logs

ROW = {
    "what": "training",
    "bytes": 5_000_000_000,
    "bytes_per_second": {"median": 300e6, "min": 250e6, "max": 310e6, "repeats": 3},
    "bytes_per_cpu_second": 320e6,
    "cat_bytes_per_second": 2e9,
    "memory_bytes": 8 * 2**20,
    "named": ["cuda-oom"],
}


class Logs(unittest.TestCase):
    def test_a_log_is_as_long_as_asked_and_ends_with_its_death(self):
        for kind in ("training", "junk", "long lines"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "a.log"
                logs.write(kind, path, 1_000_000, random.Random(7))
                text = path.read_bytes()
            self.assertEqual(len(text), 1_000_000 + len(logs.DEATH))
            self.assertTrue(text.endswith(logs.DEATH))
            self.assertEqual(text.count(b"\n") == logs.DEATH.count(b"\n"), kind == "long lines")

    def test_a_floor_that_is_missed_says_so(self):
        slow = {**ROW, "bytes_per_second": {**ROW["bytes_per_second"], "median": 199e6}}
        for row, expect in [
            (ROW, True),
            (slow, False),
            ({**ROW, "memory_bytes": 65 * 2**20}, False),
            ({**ROW, "named": ["unknown"]}, False),
        ]:
            self.assertEqual(logs.holds(row), expect)
        facts = {"cpu": "a CPU", "num_cores": 2, "kernel": "Linux 6"}
        rows = [{**ROW, "holds": True}, {**slow, "holds": False}]
        page = logs.page({"machine": facts, "commit": "abc", "when": "now", "empty_bytes": 2**24, "rows": rows})
        self.assertIn("| training | 5.00 | 300 (250 to 310) | 320 | 2000 | 8.0 | cuda-oom | holds |", page)
        self.assertEqual(page.count("missed"), 1)


if __name__ == "__main__":
    unittest.main()
