"""Tests of plimsoll.Session: a loop of a script's own. The command is PLIMSOLL_PROGRAM, or the installed one; numpy is needed."""

import contextlib
import importlib.util
import io
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np
import plimsoll

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TINY = {
    "method": "grpo",
    "model": "builtin:nano",
    "data.prompts": "builtin:addition",
    "data.eval": "none",
    "rollout.prompts_per_step": 8,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 5,
    "reward": [{"kind": "exact"}],
    "train.steps": 4,
    "train.learning_rate": 1e-4,
    "train.checkpoint_every": None,
    "run.device": "cpu",
    "run.threads": 1,
}


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(run):
    """The metrics of each step but those of time."""
    is_time = lambda name: name.startswith(("time/", "tokens_per_second/", "memory/", "host/")) or name == "step_time"
    return [{name: value for name, value in step.metrics.items() if not is_time(name)} for step in run.steps]


class Sessions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        from plimsoll._settings import toml

        self.file = self.folder / "tiny.toml"
        self.file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in TINY.items() if value is not None))

    def open(self, name="run", **keys):
        keys = {"quiet": True, "run.dir": str(self.folder / name), **keys}
        session = plimsoll.Session(str(self.file), **keys)
        self.addCleanup(session._link.close)
        return session

    def run_of(self, name):
        return plimsoll.Run(self.folder / name)

    def weights(self, name):
        return (self.run_of(name).latest / "model.safetensors").read_bytes()

    @contextlib.contextmanager
    def refused(self, slug, words=""):
        with self.assertRaises(plimsoll.PlimsollError) as caught:
            yield caught
        self.assertEqual(caught.exception.slug, slug)
        self.assertIn(words, str(caught.exception))

    def script(self, name, folder, *settings):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            example(name).main(str(self.file), str(self.folder / folder), *settings)
        return said.getvalue()

    def wait_for_the_end_of(self, folder):
        """Waits until no process of a run is left, whose script has left it."""
        words = str(self.folder / folder).encode()
        for _ in range(400):
            lines = [path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit()]
            if not any(words in self.read(line) for line in lines):
                return
            time.sleep(0.05)
        self.fail("the run did not end")

    def read(self, path):
        try:
            return path.read_bytes()
        except OSError:
            return b""

    def test_sixty_lines_are_the_method_bit_for_bit_also_after_a_kill(self):
        plimsoll.train(str(self.file), quiet=True, **{"run.dir": str(self.folder / "method")})
        said = self.script("grpo_loop", "script")
        self.assertEqual(said.count("step "), 4)
        self.assertEqual(self.weights("script"), self.weights("method"))
        self.assertEqual(numbers(self.run_of("script")), numbers(self.run_of("method")))
        self.assertEqual(self.run_of("script").samples(4), self.run_of("method").samples(4))
        # The same, killed in the middle of its third step.
        command = [sys.executable, "-u", str(EXAMPLES / "grpo_loop.py"), str(self.file), str(self.folder / "killed"), "checkpoint.every=1"]
        script = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in script.stdout:
            if line.startswith("step 2"):
                script.send_signal(signal.SIGKILL)
        script.wait()
        script.stdout.close()
        self.assertFalse((self.folder / "killed/summary.json").exists())
        self.wait_for_the_end_of("killed")
        said = self.script("grpo_loop", "killed", "checkpoint.every=1", "resume=1")
        self.assertNotIn("step 1:", said)
        self.assertEqual(self.weights("killed"), self.weights("method"))
        self.assertEqual(numbers(self.run_of("killed")), numbers(self.run_of("method")))

    def test_several_updates_a_step_are_those_of_the_method(self):
        keys = {"train.steps": 2, "train.mini_batch": 16, "train.epochs_per_rollout": 2, "loss.kl_coef": 0.1}
        plimsoll.train(str(self.file), quiet=True, **{"run.dir": str(self.folder / "method"), **keys})
        advantages_of = example("grpo_loop").advantages_of
        with self.open("script", **keys) as session:
            for _ in session:
                samples = session.sample()
                reference, advantages = session.score(samples), samples.spread(advantages_of(samples))
                for number in range(4):
                    first = 16 * (number % 2)
                    tokens = slice(samples.offsets[first], samples.offsets[first + 16])
                    some = samples[first : first + 16]
                    session.forward_backward(some, advantages[tokens], reference=reference[tokens])
                    session.step(more=number < 3)
        self.assertEqual(self.weights("script"), self.weights("method"))
        self.assertEqual(numbers(self.run_of("script")), numbers(self.run_of("method")))

    def test_eighty_lines_are_a_method_that_no_row_has_and_resume_with_their_own_state(self):
        self.script("topr_loop", "whole")
        self.assertEqual([step.metrics["topr/tapered"] >= 0 for step in self.run_of("whole").steps], [True] * 4)
        self.assertGreater(sum(step.metrics["topr/tapered"] for step in self.run_of("whole").steps), 0)

        class Stop(Exception):
            pass

        module, made = example("topr_loop"), []
        original = module.mini_batches

        def stops(samples, generator):
            made.append(1)
            if len(made) == 4:  # Within the second step.
                raise Stop
            return original(samples, generator)

        module.mini_batches = stops
        with self.assertRaises(Stop), contextlib.redirect_stdout(io.StringIO()):
            module.main(str(self.file), str(self.folder / "parts"), "checkpoint.every=1")
        self.script("topr_loop", "parts", "checkpoint.every=1", "resume=1")
        self.assertEqual(self.weights("parts"), self.weights("whole"))

    def test_the_plan_comes_before_anything_is_allocated(self):
        session = self.open()
        self.assertTrue(session.plan.fits)
        rows = {region["name"]: region["bytes"] for region in session.plan.regions}
        self.assertGreater(rows["script.arrays"], 4 * 32 * 5)
        self.assertFalse((self.folder / "run/events.jsonl").exists())
        session.close()
        with self.assertRaises(plimsoll.PlanDoesNotFit):
            self.open("small", **{"memory.host": "20MiB"})

    def test_samples_are_arrays_that_follow_from_their_seed(self):
        with self.open() as session:
            prompts = session.prompts(3)
            self.assertEqual((len(prompts.texts), "ground_truth" in prompts.columns[0]), (3, True))
            drawn = session.sample(prompts, n=2, seed=5)
            again = session.sample(prompts, n=2, seed=5)
            other = session.sample(prompts, n=2, seed=6)
            self.assertEqual((len(drawn), drawn.tokens.dtype, drawn.logprobs.dtype), (6, np.uint32, np.float32))
            np.testing.assert_array_equal(drawn.tokens, again.tokens)
            np.testing.assert_array_equal(drawn.logprobs, again.logprobs)
            self.assertNotEqual(drawn.tokens.tolist(), other.tokens.tolist())
            # What is drawn is what is trained: the actor's own scores are the bits of the rollout.
            np.testing.assert_array_equal(session.score(drawn, "actor"), drawn.logprobs)
            np.testing.assert_array_equal(session.score(drawn[1:4], "actor"), drawn[1:4].logprobs)
            own = session.sample([{"prompt": "1+1=", "ground_truth": "2"}], n=4, temperature=0.0)
            self.assertEqual((len(set(own.texts)), own.rewards.shape), (1, (4,)))
            texts = session.sample(["1+1=", "2+2="], n=1, grade=False, stop="9", max_new_tokens=2)
            self.assertEqual((texts.rewards, max(texts.lengths) <= 2), (None, True))
            ids = session.sample([texts.prompts[0]], n=1, grade=False, temperature=0.0)
            np.testing.assert_array_equal(ids.tokens, own[:1].tokens)
            session.step(update=False, reward=0.5)
            self.assertEqual(session.metrics.get("grad_norm"), 0.0)

    def test_a_call_has_a_form_of_its_own_and_its_log_probs_are_of_that_form(self):
        with self.open(**{"rollout.schema": "regex:[0-9]{1,3}"}) as session:
            own, other = session.sample(), session.sample(schema="regex:[0-4]{2}")
            self.assertTrue(all(text.isdigit() for text in own.texts), own.texts)
            self.assertTrue(all(set(text) <= set("01234") for text in other.texts), other.texts)
            for samples in (own, other[3:9], own):
                np.testing.assert_array_equal(session.score(samples, "actor"), samples.logprobs)
            learned = session.forward_backward(other, np.ones(len(other)))
            self.assertEqual(learned.metrics["logprob_mismatch_max"], 0.0)
            session.step()
            with self.refused("schema-unreadable"):
                session.sample(schema="no-such-file.json")
        with self.open("plain") as session, self.refused("script-bad-request", "plans no masks"):
            session.sample(schema={"type": "object"})

    def test_gradients_of_ones_own_are_those_of_the_loss_and_add_up(self):
        with self.open() as session:
            samples = session.sample()
            advantages = samples.spread(samples.rewards - samples.rewards.mean())
            n = len(samples.tokens)
            own = (-advantages.astype(np.float64) / n).astype(np.float32)
            norms = []

            def norm(*calls):
                for some, how in calls:
                    session.forward_backward(some, **how)
                norms.append(session.step(lr=0.0, more=True)["grad_norm"])

            norm((samples, {"advantages": advantages, "loss": "reinforce"}))
            norm((samples, {"gradients": own}))
            norm((samples, {"loss": lambda logprobs, part: (0.0, own[part.tokens])}))
            half = samples.offsets[16]
            parts = [(samples[:16], advantages[:half]), (samples[16:], advantages[half:])]
            norm(*((some, {"advantages": of, "loss": "reinforce", "total_tokens": n}) for some, of in parts))
            self.assertGreater(norms[0], 0.0)
            self.assertEqual(norms[1], norms[2])
            np.testing.assert_allclose(norms, norms[0], rtol=1e-3)
            learned = session.forward_backward(samples, advantages)
            np.testing.assert_array_equal(learned.logprobs, samples.logprobs)
            session.drop()
            session.step(update=False)

    def test_other_arrays_come_by_dlpack(self):
        class Foreign:
            """What another library has: DLPack and nothing else."""

            def __init__(self, array):
                self._array = array

            def __dlpack__(self, **how):
                return self._array.__dlpack__(**how)

            def __dlpack_device__(self):
                return self._array.__dlpack_device__()

        with self.open() as session:
            samples = session.sample()
            session.forward_backward(samples, Foreign(np.ones(len(samples), np.float32)))
            session.step(metrics={"own/number": 2.5})
            self.assertEqual(self.run_of("run").steps[0].metrics["own/number"], 2.5)

    def test_what_cannot_be_is_refused_by_name_and_the_session_goes_on(self):
        with self.open() as session:
            with self.refused("script-out-of-order", "no step is made"):
                session.save()
            with self.refused("script-out-of-order", "no gradients"):
                session.step()
            with self.refused("script-too-large", "8 prompts"):
                session.sample(session.prompts(8), n=5)
            with self.refused("script-too-large", "33 prompts"):
                session.prompts(33)
            samples = session.sample()
            ones = np.ones(len(samples.tokens), np.float32)
            for slug, words, arguments in [
                ("script-bad-request", 'did you mean "grpo"', {"loss": "grop"}),
                ("script-bad-array", "3 entries", {"advantages": ones[:3]}),
                ("script-bad-array", "entry 0 is NaN", {"advantages": ones * np.nan}),
                ("script-bad-array", "2-dimensional", {"advantages": ones[None]}),
                ("script-bad-array", "complex64", {"advantages": ones.astype(np.complex64)}),
                ("script-bad-array", "must be 0 or 1", {"mask": ones / 2}),
                ("script-bad-array", "0 entries", {"kl_coef": 0.1}),
                ("script-bad-request", "unknown field `wings`", {"wings": 2}),
                ("script-bad-request", "clip_low is -1", {"clip_low": -1.0}),
            ]:
                with self.subTest(words), self.refused(slug, words):
                    session.forward_backward(samples, **{"advantages": ones, **arguments})
            changed = plimsoll.Samples(samples.tokens, samples.offsets, samples.prompts, samples.groups, logprobs=ones, version=0)
            with self.refused("logprob-mismatch"):
                session.forward_backward(changed, ones)
            with self.assertRaisesRegex(ZeroDivisionError, "division"):
                session.forward_backward(samples, loss=lambda logprobs, part: (1 / 0, logprobs))
            with self.refused("loss-not-finite"):
                session.forward_backward(samples, loss=lambda logprobs, part: (np.nan, logprobs))
            with self.refused("script-bad-array", "1 entries"):
                session.forward_backward(samples, loss=lambda logprobs, part: (0.0, ones[:1]))
            with self.refused("script-bad-request", "no reference"):
                session.score(samples)
            session.forward_backward(samples, ones)
            for verb in (session.sample, lambda: session.score(samples, "actor"), session.save):
                with self.refused("script-out-of-order"):
                    verb()
            with self.refused("script-bad-request", "lr"):
                session.step(lr=float("nan"))
            session.step()
            session.save()
            self.assertEqual([path.name for path in self.run_of("run").checkpoints], ["step-000001"])

    def test_runs_that_a_script_cannot_lead_are_refused_before_they_begin(self):
        for words, keys in [
            ("a critic", {"method": "ppo"}),
            ("dynamic_sampling", {"loss.dynamic_sampling": True}),
            ("samples nothing", {"method": "sft", "rollout.group_size": None, "reward": None}),
        ]:
            with self.subTest(words), self.refused("script-unsupported", words):
                self.open("none", **keys)
        self.assertFalse((self.folder / "none").exists())

    def test_a_script_that_dies_leaves_a_checkpoint_only_if_it_asked(self):
        session = self.open("gone")
        session.forward_backward(session.sample(), np.ones(32))
        session.step()
        # Its end of the socket closes, as when it is killed.
        error = session._link.ended()
        self.assertEqual((error.slug, error.exit_code), ("script-ended", 130))
        self.assertEqual(self.run_of("gone").checkpoints, [])
        with self.open("kept") as session:
            session.forward_backward(session.sample(), np.ones(32))
            session.step(state=b"\x00mine")
        self.assertEqual(len(self.run_of("kept").checkpoints), 1)
        with self.open("kept", resume=True) as session:
            session.begin()
            self.assertEqual((session.number, session.state), (1, b"\x00mine"))

    def test_a_loop_that_is_left_within_a_step_keeps_the_steps_before(self):
        with self.open("left") as session:
            for step in session:
                samples = session.sample()
                if step == 2:
                    with self.refused("script-out-of-order", "under way"):
                        session.close(save=True)
                    break
                session.forward_backward(samples, np.ones(len(samples)))
                session.step()
            session.drop()
            session.step(update=False)
        self.assertEqual([path.name for path in self.run_of("left").checkpoints], ["step-000002"])
        with self.open("broken") as session:
            session.sample()
        self.assertEqual(self.run_of("broken").checkpoints, [])

    def test_what_is_no_frame_ends_the_run(self):
        session = self.open()
        session._link._socket.sendall(b"\xff\xff\xff\xff")
        with self.refused("script-bad-frame", "at most"):
            session.begin()


if __name__ == "__main__":
    unittest.main()
