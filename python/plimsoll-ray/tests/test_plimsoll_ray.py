"""What plimsoll-ray gives each rank, what it makes of their ends, and what it refuses. Needs ray; the binary is a shell script here.

    python3 -m unittest discover python/plimsoll-ray/tests
"""

import io
import os
import stat
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).parent.parent))
import plimsoll_ray  # noqa: E402

SHOWS = 'echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT: $*"'
FAILS = """[ "$RANK" = 1 ] || { sleep 1; exit 5; }
echo '{"message": {"message": "error[trainer-killed]: rank 1 was killed"}}' >"$TORCHELASTIC_ERROR_FILE"
exit 4"""


class Words(unittest.TestCase):
    def test_what_follows_two_dashes_goes_to_train_and_help_says_so(self):
        args = plimsoll_ray.arguments(["x.toml", "--hosts", "2", "--", "--set", "a=1"])
        self.assertEqual((args.hosts, args.train), (2, ["--set", "a=1"]))
        with redirect_stdout(io.StringIO()) as said, self.assertRaises(SystemExit):
            plimsoll_ray.arguments(["--help"])
        self.assertIn("[-- TRAIN_OPTIONS]", said.getvalue())


class Ends(unittest.TestCase):
    def test_the_first_own_reason_is_the_verdict(self):
        for ends, expect in [
            ([(0, 0, None), (1, 0, None)], (0, None)),
            ([(0, 5, None), (1, 4, "killed")], (4, "killed")),
            ([(0, 5, "lost rank 1"), (1, 1, None)], (1, "lost rank 1")),
            ([(0, 143, None), (1, 143, None)], (143, "error: rank 0 ended with exit code 143")),
            ([(0, -9, None)], (137, "error: rank 0 ended with exit code -9")),
        ]:
            self.assertEqual(plimsoll_ray.verdict(ends), expect)

    def test_what_a_node_lacks_is_in_words(self):
        needs = {"CPU": 4, "GPU": 2, "memory": 8 << 30}
        self.assertEqual(plimsoll_ray.lacking({"CPU": 4, "GPU": 2, "memory": 9 << 30}, needs), "")
        self.assertEqual(plimsoll_ray.lacking({"CPU": 8, "memory": 1 << 30}, needs), "0 GPU of 2 GPU, 1.0 GiB of memory of 8.0 GiB of memory")

    def test_lines_arrive_whole_and_the_last_without_its_end(self):
        out, into = os.pipe()
        os.write(into, b"a\nb\xff\nrest")
        os.close(into)
        self.assertEqual(sum(plimsoll_ray.lines(out), []), ["a", "b\ufffd", "rest"])

    def test_options_of_train_follow_the_dashes(self):
        args = plimsoll_ray.arguments(["run.toml", "--hosts", "2", "--", "--set", "a=1"])
        self.assertEqual((args.run, args.hosts, args.train), ("run.toml", 2, ["--set", "a=1"]))


class OnTwoNodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["RAY_AUTH_MODE"] = "disabled"
        cls.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"first": 1}})
        cls.cluster.add_node(num_cpus=2)
        ray.init(address=cls.cluster.address, log_to_driver=False)
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
        cls.cluster.shutdown()
        cls.folder.cleanup()

    def once(self, script, *words):
        program = Path(self.folder.name) / "plimsoll"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        args = plimsoll_ray.arguments(["run.toml", "--program", str(program), "--workdir", self.folder.name, *words])
        out = io.StringIO()
        with redirect_stdout(out):
            end = plimsoll_ray.once(args, "test", 3)
        return end, sorted(out.getvalue().splitlines())

    def test_ranks_of_a_host_are_neighbours(self):
        end, lines = self.once(SHOWS, "--hosts", "2", "--ranks-per-host", "2")
        self.assertEqual(end, (0, None))
        words = [f"rank {r}/4 local {r % 2}/2 restart 3: train run.toml --resume" for r in range(4)]
        self.assertEqual(lines, sorted([words[0]] + [f"rank {r}: {words[r]}" for r in range(1, 4)]))

    def test_the_sentence_of_the_dead_rank_is_the_end(self):
        end, _ = self.once(FAILS, "--hosts", "2", "--ranks-per-host", "1")
        self.assertEqual(end, (4, "error[trainer-killed]: rank 1 was killed"))

    def test_what_no_node_has_is_refused_before_it_waits(self):
        for words in (["--hosts", "3"], ["--ranks-per-host", "3"], ["--gpus-per-rank", "1"]):
            with self.assertRaises(plimsoll_ray.Refused) as refused:
                self.once(SHOWS, *words)
            self.assertEqual(refused.exception.code, 2)
            self.assertIn("error[ray-unschedulable]", str(refused.exception))


if __name__ == "__main__":
    unittest.main()
