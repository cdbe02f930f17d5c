"""The page and the verdicts of save.py, with made-up numbers.

    cd bench && python3 -m unittest
"""

import unittest

import save

FOUND = {
    "machine": {"cpu": "a CPU", "num_cores": 2, "memory_bytes": 2**34, "kernel": "Linux 6"},
    "commit": "abc",
    "when": "2026-01-01 00:00",
    "parameters": 1_000_000,
    "least_bytes": 100 * 2**20,
    "limit_bytes": 110 * 2**20,
    "ended": [
        {"who": "Plimsoll, 4 steps of training", "exit": 0, "oom_kills": 0, "saves": 4},
        {"who": "PyTorch, gathered", "exit": -9, "oom_kills": 1},
    ],
    "save": {
        "bytes": 2**30, "median": 2.0, "min": 1.0, "max": 3.0, "times_dd": 1.0,
        "dd": {"median": 2.0, "min": 1.0, "max": 3.0}, "anonymous_growth_bytes": 2**20, "staging_bytes": 2**26,
    },
}


class Page(unittest.TestCase):
    def test_the_ends_are_told_as_they_were(self):
        page = save.page({**FOUND, "holds": save.verdicts(FOUND)})
        self.assertIn("| Plimsoll, 4 steps of training | 4 | exit 0 | 0 |", page)
        self.assertIn("| PyTorch, gathered | 0 | SIGKILL | 1 |", page)
        self.assertEqual(page.count("holds"), 2)

    def test_a_bar_that_is_missed_says_so(self):
        slow = {**FOUND["save"], "times_dd": 3.1, "anonymous_growth_bytes": 2**27}
        killed = [{**FOUND["ended"][0], "exit": 4}]
        holds = save.verdicts({**FOUND, "ended": killed, "save": slow})
        self.assertEqual(set(holds.values()), {False})
        self.assertEqual(save.page({**FOUND, "save": slow, "holds": holds}).count("missed"), 2)


if __name__ == "__main__":
    unittest.main()
