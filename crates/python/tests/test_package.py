"""Tests of the package plimsoll: what a notebook does. The command is PLIMSOLL_PROGRAM, or the installed one."""

import asyncio
import contextlib
import io
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import warnings
from pathlib import Path

import plimsoll

TINY = {
    "method": "grpo",
    "model": "builtin:nano",
    "data.prompts": "builtin:addition",
    "data.eval": "none",
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 5,
    "reward": [{"kind": "exact"}],
    "train.steps": 3,
    "train.learning_rate": 1e-4,
    "run.device": "cpu",
    "run.threads": 1,
}
FACTOR = 0.5


def half(prompts, completions, ground_truth, log_metric=None, **columns):
    """Uses a global of its notebook."""
    if log_metric:
        log_metric("chars", [len(text) for text in completions])
    return [FACTOR * float(truth == text) for truth, text in zip(ground_truth, completions)]


def length(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


class Stairs:
    """Ends an episode after its first turn; the reward is the length of what was said."""

    made = 0

    def __init__(self):
        Stairs.made += 1

    def reset(self, seed):
        return f"{seed % 10}+1="

    def step(self, response):
        return None, min(len(response), 4) / 4, True


class Package(unittest.TestCase):
    def setUp(self):
        # A run whose notebook was killed may write its last file while the folder goes.
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)

    def train(self, name="run", **options):
        options = {"quiet": True, **options}
        return plimsoll.train({**TINY, "run.dir": str(self.folder / name)}, **options)

    def raises(self, slug, kind=plimsoll.PlimsollError):
        """Expects a named error."""
        test = self

        class Raises:
            def __enter__(self):
                self.context = test.assertRaises(kind)
                self.caught = self.context.__enter__()
                return self.caught

            def __exit__(self, *about):
                done = self.context.__exit__(*about)
                test.assertEqual(self.caught.exception.slug, slug)
                return done

        return Raises()

    def weights(self, run):
        return (run.latest / "model.safetensors").read_bytes()

    def write_run_file(self, name="tiny.toml", **more):
        from plimsoll._settings import toml

        (self.folder / name).write_text("".join(f"{key} = {toml(value)}\n" for key, value in {**TINY, **more}.items()))
        return name

    def test_a_run_of_python_is_that_of_the_command(self):
        file = self.write_run_file()
        command = [plimsoll._program.program(), "train", file, "--set", "run.dir=by-hand", "--quiet"]
        subprocess.run(command, check=True)
        run = plimsoll.train(file, run={"dir": "by-python"}, quiet=True)
        self.assertEqual(self.weights(run), self.weights(plimsoll.Run("by-hand")))
        self.assertEqual(run.summary["steps"], 3)
        self.assertEqual([step.number for step in run], [1, 2, 3])

    def test_a_function_of_the_notebook_is_a_reward(self):
        told = self.train("told", reward=half)
        steps, values = told.curve("rewards/half/mean")
        self.assertEqual(list(steps), [1, 2, 3])
        self.assertTrue(0 < max(values) <= 0.5, values)
        self.assertIn("rewards/half/chars", told.steps[0].metrics)
        sample = told.samples(1)[0]
        self.assertIn(sample["rewards"]["half"], (0.0, 0.5))
        again = self.train("again", reward={"kind": half, "weight": 1.0})
        self.assertEqual(self.weights(again), self.weights(told))
        with self.assertRaisesRegex(KeyError, "no metric `nothing`; there are: .*reward"):
            told.curve("nothing")

    def test_a_reward_of_a_cell_uses_what_its_notebook_has(self):
        # A cell whose source nothing keeps.
        cell = {"seen": []}
        text = """
            SCALE = 0.25
            def scaled(prompts, completions, ground_truth, **columns):
                seen.append(SCALE)
                return [SCALE * float(truth == text) for truth, text in zip(ground_truth, completions)]
        """
        exec(textwrap.dedent(text), cell)

        def another_cell(step):
            cell["SCALE"] = 0.5

        run = self.train(reward=cell["scaled"], callbacks=[another_cell], train={"steps": 2})
        self.assertEqual((cell["seen"][0], cell["seen"][-1]), (0.25, 0.5))
        for number, scale in ((1, 0.25), (2, 0.5)):
            self.assertEqual({sample["rewards"]["scaled"] for sample in run.samples(number)}, {0.0, scale})
        del cell["SCALE"]
        with self.raises("reward-function-raised") as caught:
            self.train("gone", reward=cell["scaled"])
        self.assertIsInstance(caught.exception.__cause__, NameError)

    def test_functions_that_differ_in_a_constant_are_two(self):
        cell = {}
        for name, value in (("high", 1.0), ("low", 0.25)):
            exec(f"def {name}(prompts, completions, **columns): return [{value}] * len(completions)", cell)
        run = self.train(reward=[cell["high"], cell["low"]], train={"steps": 1})
        means = [run.curve(f"rewards/{name}/mean")[1][0] for name in ("high", "low")]
        self.assertEqual(means, [1.0, 0.25])

        def made(name, value):
            def constant(prompts, completions, **columns):
                return [value] * len(completions)

            constant.__name__ = name
            return constant

        run = self.train("made", reward=[made("high", 1.0), made("low", 0.25)], train={"steps": 1})
        self.assertEqual([run.curve(f"rewards/{name}/mean")[1][0] for name in ("high", "low")], [1.0, 0.25])
        exec("def high(prompts, completions, **columns): return [0.5] * len(completions)", cell)
        with self.raises("run-file-changed"):
            self.train(reward=[cell["high"], cell["low"]], train={"steps": 2}, resume=True)

    def test_what_a_reward_raises_is_the_cause(self):
        def wrong(prompts, completions, **columns):
            return [columns["no_such_column"] for _ in completions]

        with self.raises("reward-function-raised") as caught:
            self.train(reward=wrong)
        self.assertIsInstance(caught.exception.__cause__, KeyError)
        self.assertIn("no_such_column", str(caught.exception))

        async def slow(prompts, completions, **columns):
            await asyncio.sleep(0)
            return [1.0] * len(completions)

        self.assertEqual(self.train("slow", reward=slow, train={"steps": 1}).steps[0].reward, 1.0)

    def test_what_a_worker_sends_runs_nothing(self):
        from plimsoll._relay import Relay

        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(folder / "reached"),)

        folder = self.folder
        relay = Relay(str(folder))
        relay.start()
        self.addCleanup(relay.close)
        for request in (pickle.dumps(Attack()), b'{"call": "x"}', b'{"get": 1, "name": "__class__"}', b"[" * 100_000):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(relay.path)
                link.sendall(struct.pack("<Q", len(request)) + request)
                link.shutdown(socket.SHUT_WR)
                reply = b"".join(iter(lambda: link.recv(1 << 16), b""))
                self.assertTrue(not reply or pickle.loads(reply[8:])[0] == "raised", reply)
        self.assertFalse((folder / "reached").exists())

    def test_a_class_of_the_notebook_is_an_environment(self):
        Stairs.made = 0
        run = self.train(environment=Stairs, reward=[], **{"data.prompts": None, "data.prompt_tokens_max": 8, "environment.turns_max": 1, "environment.turn_tokens_max": 8})
        self.assertEqual(len(run.steps), 3)
        self.assertGreater(Stairs.made, 0)
        self.assertTrue(0 < run.steps[0].reward <= 1)

    def test_a_function_of_the_notebook_estimates_advantages(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not there")

        def centred(rewards, groups, lengths):
            own = rewards - numpy.array([rewards[groups == group].mean() for group in groups])
            return numpy.repeat(own, lengths)

        run = self.train(estimator=centred)
        self.assertEqual(len(run.steps), 3)
        with self.raises("advantage-bad-reply"):
            self.train("bad", estimator=lambda rewards: rewards[:1])

    def test_callbacks_see_steps_and_stop_or_save(self):
        seen = []

        class Watcher:
            def on_start(self, run):
                seen.append(("start", run.dir.name))

            def on_step(self, step):
                seen.append(("step", step.number, len(step.samples) > 0))
                return "save" if step.number == 1 else None

            def on_saved(self, event):
                seen.append(("saved", event["step"]))

            def on_end(self, run):
                seen.append(("end", run.stopped))

        def stop_at_2(step):
            return "stop" if step.number == 2 else None

        run = self.train(callbacks=[Watcher(), stop_at_2])
        self.assertEqual(
            seen,
            [("start", "run"), ("step", 1, True), ("saved", 1), ("step", 2, True), ("saved", 2), ("end", True)],
        )
        self.assertTrue(run.stopped)
        self.assertIsNone(run.summary)
        # It resumes to what an undisturbed run has.
        ended = self.train(resume=True)
        self.assertEqual(self.weights(ended), self.weights(self.train("undisturbed")))

    def test_two_ranks_save_and_stop_after_the_same_step(self):
        wishes = {1: "save", 2: "stop"}
        saved = []

        class Watcher:
            def on_step(self, step):
                return wishes.get(step.number)

            def on_saved(self, event):
                saved.append(event["step"])

        run = self.train(ranks=2, callbacks=[Watcher()])
        self.assertEqual((saved, run.stopped), ([1, 2], True))
        self.assertEqual(self.weights(self.train(ranks=2, resume=True)), self.weights(self.train("undisturbed")))

    def test_the_loop_over_steps_is_live(self):
        numbers = []
        for step in self.train(stream=True):
            numbers.append(step.number)
            if step.number == 2:
                break
        self.assertEqual(numbers, [1, 2])
        run = plimsoll.Run("run")
        self.assertEqual(run.latest.name, "step-000002")
        with self.raises("bad-usage"):
            run.steps[0].stop()
        with self.raises("bad-usage"):
            run.resume()
        with self.train(stream=True, resume=True) as stream:
            self.assertEqual([step.number for step in stream], [3])
        self.assertEqual(self.weights(run), self.weights(self.train("undisturbed")))

    def test_two_runs_side_by_side(self):
        first, second = self.train("a", stream=True, reward=half), self.train("b", stream=True, reward=half, seed=2)
        pairs = [(a.number, b.number) for a, b in zip(first, second)]
        self.assertEqual(pairs, [(1, 1), (2, 2), (3, 3)])
        first.close()
        second.close()
        with self.raises("run-dir-locked"):
            with self.train("c", stream=True) as stream:
                next(stream)
                self.train("c", overwrite=True)

    def test_two_notebooks_on_one_run_directory(self):
        other = self.script()
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        self.assertEqual(other.stdout.readline(), "1\n")
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with self.raises("run-dir-locked"):
                self.train("run", train={"steps": 300, "schedule": "constant"}, **options)
        # The other goes on.
        self.assertEqual(other.stdout.readline(), "2\n")

    def test_what_may_change_changes_after_a_step(self):
        def more_memory(step):
            if step.number == 1:
                step.change(**{"reward.0.timeout_ms": 50_000})
            if step.number == 2:
                self.assertEqual(step.run.dir.name, "run")

        run = self.train(reward=half, callbacks=[more_memory])
        self.assertEqual([step.number for step in run], [1, 2, 3])
        self.assertEqual(self.weights(run), self.weights(self.train("undisturbed", reward=half)))
        with self.raises("run-file-changed"):
            self.train("other", callbacks=[lambda step: step.change(train={"learning_rate": 1e-3})])

    def test_a_callback_that_raises_or_returns_nonsense_leaves_a_run_that_resumes(self):
        def broken(step):
            raise ZeroDivisionError("in the cell")

        with self.assertRaisesRegex(ZeroDivisionError, "in the cell") as caught:
            self.train(callbacks=[broken])
        if sys.version_info >= (3, 11):
            self.assertIn("resumes", caught.exception.__notes__[0])
        self.assertEqual(len(self.train(resume=True).steps), 3)
        with self.raises("callback-failed", plimsoll.CallbackError) as caught:
            self.train("nonsense", callbacks=[lambda step: 3])
        self.assertIn("returned 3", caught.exception.message)
        self.assertEqual(len(self.train("nonsense", resume=True).steps), 3)

        async def later(step):
            return "stop"

        for index, (nonsense, words) in enumerate([(lambda step: "stopp", "'stopp'"), (lambda step: True, "True"), (later, "coroutine")]):
            with warnings.catch_warnings(), self.raises("callback-failed", plimsoll.CallbackError) as caught:
                warnings.simplefilter("ignore")  # Of the coroutine, which is never awaited.
                self.train(f"nonsense-{index}", callbacks=[nonsense])
            self.assertIn(words, caught.exception.message)

        class Watcher:
            def on_saved(self, event):
                raise ZeroDivisionError("when saved")

        with self.assertRaisesRegex(ZeroDivisionError, "when saved"):
            self.train("saved", checkpoint={"every": 1}, callbacks=[Watcher()])
        self.assertEqual(len(self.train("saved", checkpoint={"every": 1}, resume=True).steps), 3)
        with self.raises("bad-value"):
            self.train("none", callbacks=[3])
        with self.raises("callback-failed") as caught:
            self.train("hangs", callbacks=[lambda step: time.sleep(3)], callback_seconds=1)
        self.assertIn("did not answer for 1 s", caught.exception.message)
        self.assertEqual(len(self.train("hangs", resume=True).steps), 3)

    def script(self, dies=None, **options):
        """Runs a script as another process, which prints the number of each step; ``dies`` within the reward of the third."""
        keys = {**TINY, "run.dir": "run", "train.steps": 300, "train.schedule": "constant"}
        reward = "" if dies is None else ", reward=length"
        text = f"""
            import os, plimsoll, signal
            made = []
            def say(step):
                made.append(step.number)
                print(step.number, flush=True)
            def length(prompts, completions, **columns):
                if made == [1, 2] and os.environ["DIES"] == "True":
                    os.kill(os.getpid(), signal.SIGKILL)
                return [float(len(text)) for text in completions]
            plimsoll.train({keys!r}, callbacks=[say], quiet=True{reward}, **{options!r})
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DIES": str(dies)}
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def test_a_kernel_that_is_killed_leaves_a_run_that_resumes(self):
        process = self.script()
        self.assertEqual(process.stdout.readline(), "1\n")
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 600
        while not (self.folder / "run/checkpoints/latest/manifest.json").exists():
            self.assertLess(time.monotonic(), deadline, "nothing was saved")
            time.sleep(0.05)
        done = plimsoll.Run("run").latest.name
        for step in plimsoll.train(
            {**TINY, "run.dir": "run", "train.steps": 300, "train.schedule": "constant"}, resume=True, stream=True, quiet=True
        ):
            self.assertEqual(f"step-{step.number - 1:06}", done)
            break

    def test_a_kernel_that_dies_within_a_reward_leaves_a_run_that_resumes(self):
        options = {"checkpoint": {"every": 1}, "train": {"steps": 5}}
        process = self.script(dies=True, **options)
        said, _ = process.communicate()
        self.assertEqual((process.returncode, said.split()), (-signal.SIGKILL, ["1", "2"]))
        # The trainer ends when it finds no one to ask, and then lets go of the directory.
        deadline = time.monotonic() + 600
        while True:
            again = self.script(dies=False, resume=True, **options)
            _, said = again.communicate()
            if "run-dir-locked" not in said:
                break
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(again.returncode, 0, said)
        undisturbed = self.train("undisturbed", reward=length, **options)
        self.assertEqual(self.weights(plimsoll.Run("run")), self.weights(undisturbed))

    def test_an_interrupt_saves(self):
        process = self.script()
        self.assertEqual(process.stdout.readline(), "1\n")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        self.assertIn("KeyboardInterrupt: the run is saved in run and resumes", said)
        self.assertTrue(plimsoll.Run("run").checkpoints)

    def test_mistakes_are_named_before_anything_runs(self):
        with self.raises("unknown-key", plimsoll.UsageError) as caught:
            self.train(train={"stps": 3})
        self.assertEqual(caught.exception.hints, ["did you mean `train.steps`?"])
        for misspelt in ({"train.stps": 3}, {"train": {"stps": 3}}):
            with self.raises("unknown-key", plimsoll.UsageError):
                plimsoll.train({**TINY, **misspelt}, quiet=True)
        for misspelt in ({"epochs": 3}, {"reward": {"kind": half, "wieght": 2.0}}, {"reward": {"knd": "exact"}}):
            with self.assertRaises(plimsoll.UsageError):
                self.train(**misspelt)
        with self.raises("bad-value"):
            self.train(train={"steps": object()})
        with self.raises("bad-value"):
            plimsoll.train({1: 2})
        with self.raises("bad-value"):
            plimsoll.train()
        with self.raises("unknown-reward"):
            self.train(reward=3)
        with self.raises("bad-value"):
            self.train(reward=[half, half])
        with self.raises("bad-usage"):
            self.train(resume=True, overwrite=True)
        with self.raises("run-dir-unreadable"):
            plimsoll.Run(self.folder)
        self.assertFalse((self.folder / "run").exists())
        error = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(error), error.slug, str(error)), (plimsoll.UsageError, "unknown-key", str(caught.exception)))

    def test_a_dataset_with_other_columns_is_named_with_those_that_it_has(self):
        other = [{"question": "1+1=", "answer": "2"}] * 8
        for data, words in (
            ({"prompts": other}, "prompt"),
            ({"prompts": other, "prompt_column": "qestion"}, "question"),
            ({"prompts": other, "prompt_column": "question"}, "ground_truth"),
            ({"prompts": other, "prompt_column": "question", "answer_column": "anser"}, "data.answer_column=answer"),
        ):
            with self.raises("data-column-missing") as caught:
                self.train(data=data)
            self.assertIn(words, str(caught.exception))
        with self.raises("reward-function-signature") as caught:
            self.train("asks", reward=half, data={"prompts": other, "prompt_column": "question"})
        self.assertIn("ground_truth", str(caught.exception))
        trainer = plimsoll.GRPO("builtin:nano", half, {"num_generations": 4, "output_dir": "trl", "max_steps": 1}, other)
        with self.raises("data-column-missing"):
            trainer.train(quiet=True, **{"run.device": "cpu"})

    def test_every_error_of_the_package_has_a_page(self):
        here = Path(__file__).resolve().parent.parent
        sources = "".join(path.read_text() for path in (here / "python/plimsoll").glob("*.py"))
        slugs = set(re.findall(r'(?:usage\(|slug=)\s*"([a-z-]+)"', sources)) - {"internal"}
        self.assertGreater(len(slugs), 8)
        pages = {path.stem for path in (here.parent.parent / "docs/errors").glob("*.md")}
        self.assertEqual(slugs - pages, set())

    def test_a_run_leaves_no_thread(self):
        before = threading.active_count()
        self.train(reward=half, train={"steps": 1})
        for thread in [one for one in threading.enumerate() if one.name.startswith("plimsoll")]:
            thread.join(60)
        self.assertEqual(threading.active_count(), before)

    def test_a_plan_that_does_not_fit_is_an_exception_with_numbers(self):
        plan = plimsoll.plan(TINY)
        self.assertTrue(plan.fits and plan.peak_bytes["host"] > 2**20)
        with self.raises("host-pool-exceeded", plimsoll.PlanDoesNotFit) as caught:
            plimsoll.plan(TINY, limit="host=20MiB")
        self.assertIn("the limit is 20.0 MiB", caught.exception.message)
        self.assertTrue(caught.exception.hints)

    def test_rows_stand_where_a_key_names_data(self):
        rows = [{"prompt": f"{a}+1=", "ground_truth": str(a + 1)} for a in range(100, 120)]
        run = self.train(data={"prompts": rows}, train={"steps": 1})
        self.assertEqual(len(run.steps), 1)

    def test_the_other_commands(self):
        self.assertEqual(plimsoll.generate("builtin:nano", "123+456=", max_new_tokens=5), "579")
        self.assertEqual(plimsoll.grade("exact", [{"response": "3", "ground_truth": "3"}]), [1.0])
        self.assertEqual(plimsoll.grade(half, [{"response": "3", "ground_truth": "3"}]), [0.5])
        self.assertLessEqual(plimsoll.eval("builtin:nano", "builtin:addition", reward=half, prompts_max=4)["score"], 0.5)
        self.assertTrue(plimsoll.explain("interrupted").startswith("# interrupted"))
        with self.raises("unknown-slug"):
            plimsoll.explain("nothing-of-this-name")
        self.assertTrue(Path(plimsoll.init("first")).is_file())
        with plimsoll.serve("builtin:nano") as server:
            self.assertRegex(server.url, r"^http://127\.0\.0\.1:\d+/v1$")

    def test_the_arguments_of_trl_become_a_run(self):
        rows = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(100, 140)]

        def is_short(prompts, completions, **columns):
            return [float(len(text) < 5) for text in completions]

        arguments = {"num_generations": 4, "per_device_train_batch_size": 16, "max_steps": 2, "max_completion_length": 5, "output_dir": "run"}
        trainer = plimsoll.GRPO("builtin:nano", is_short, arguments, rows)
        self.assertIn("group_size = 4", trainer.run_file)
        self.assertTrue(trainer.plan().fits)
        run = trainer.train(quiet=True, **{"run.device": "cpu"})
        self.assertEqual(len(run.curve("rewards/is_short/mean")[0]), 2)
        with self.raises("unknown-key"):
            plimsoll.GRPO("builtin:nano", is_short, {"num_generatons": 4}, rows)
        with self.raises("import-unreadable"):
            plimsoll.GRPO(object(), is_short, arguments, rows)
        with self.raises("import-unreadable"):
            plimsoll.GRPO("builtin:nano", is_short, arguments, rows, optimizers=(object(), None))
        text = plimsoll.DPO("builtin:nano", {"beta": 0.2, "output_dir": "d"}, [{"prompt": "a", "chosen": "b", "rejected": "c"}]).run_file
        self.assertIn('method = "dpo"', text)
        self.assertIn("beta = 0.2", text)

    def test_a_run_shows_what_the_command_says(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.train(quiet=False, train={"steps": 1})
        self.assertIn("step 1/1", said.getvalue())
        self.assertIn("planned of", said.getvalue())


if __name__ == "__main__":
    unittest.main()
