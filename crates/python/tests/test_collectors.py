"""The wheel from outside: parity with Gymnasium, memory without copies, modes, faults. Run with the standard library's unittest."""

import gc
import os
import pathlib
import signal
import tempfile
import textwrap
import unittest

import gymnasium
import numpy as np
import plimsoll.collect
from plimsoll.collect import Collector, PlimsollError, Replay, VectorEnv

ENVIRONMENT = textwrap.dedent(
    """
    import gymnasium, numpy as np, os

    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict(
            {"count": gymnasium.spaces.Discrete(100), "noise": gymnasium.spaces.Box(-1, 1, (2, 3), np.float32)})
        action_space = gymnasium.spaces.MultiDiscrete([3, 4])

        def __init__(self, dies_at=-1):
            self.dies_at = dies_at

        def observe(self):
            return {"count": self.count, "noise": self.np_random.uniform(-1, 1, (2, 3)).astype(np.float32)}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return self.observe(), {}

        def step(self, action):
            self.count += 1
            if self.count == self.dies_at and not os.path.exists("died"):
                open("died", "w").close()
                os.kill(os.getpid(), 9)
            return self.observe(), float(action[0]), self.count == 5, False, {}

    def make(**options):
        return Counting(**options)
    """
)


class InAFolder(unittest.TestCase):
    """Runs each test in its own folder, with an environment in Python."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        before = os.getcwd()
        os.chdir(folder.name)
        self.addCleanup(os.chdir, before)
        pathlib.Path("counting.py").write_text(ENVIRONMENT)


class Vectors(InAFolder):
    def test_native_steps_equal_gymnasiums(self):
        envs = VectorEnv("CartPole-v1", 3, seed=7)
        observations, _ = envs.reset(seed=7)
        theirs = gymnasium.make("CartPole-v1").unwrapped
        theirs.reset(seed=0)
        theirs.state = observations[1].astype(np.float64)
        # The state is kept in f64 and shown in f32, so the first step differs by the rounding of what is shown.
        for step in range(4):
            observations, rewards, terminated, truncated, _ = envs.step(np.array([1, step % 2, 0]))
            expect, reward, *_ = theirs.step(step % 2)
            np.testing.assert_allclose(observations[1], expect, atol=1e-5)
            self.assertEqual((rewards[1], reward), (1.0, 1.0))
        self.assertEqual(observations.shape, (3, 4))
        self.assertTrue(envs.observation_space.contains(observations))

    def test_a_seed_begins_the_same_episodes_and_arrays_stay_as_they_were(self):
        def roll(envs):
            shown = [envs.reset(seed=3)[0]]
            rng = np.random.default_rng(0)
            for _ in range(60):
                shown.append(envs.step(rng.integers(0, 2, envs.num_envs))[0])
            return np.stack(shown)

        first, again = roll(VectorEnv("CartPole-v1", 5)), roll(VectorEnv("CartPole-v1", 5, seed=9))
        np.testing.assert_array_equal(first, again)
        self.assertEqual(len(np.unique(first[:, 0], axis=0)), 61)

    def test_an_episode_that_ends_shows_its_last_observation(self):
        envs = VectorEnv("CartPole-v1", 2)
        envs.reset(seed=1)
        for _ in range(200):
            observations, _, terminated, _, infos = envs.step(np.ones(2, int))
            if terminated.any():
                break
        ended = int(np.argmax(terminated))
        self.assertGreater(abs(infos["final_obs"][ended][2]), 0.2)
        self.assertLess(abs(observations[ended][2]), 0.06)
        np.testing.assert_array_equal(infos["_final_obs"], terminated)

    def test_python_environments_have_nested_spaces(self):
        envs = VectorEnv("python:counting.py:make", 4, num_workers=2)
        observations, _ = envs.reset(seed=1)
        self.assertEqual(observations["noise"].shape, (4, 2, 3))
        for step in range(1, 5):
            actions = np.stack([np.full(4, step % 3), np.zeros(4, int)], axis=1)
            observations, rewards, terminated, *_ = envs.step(actions)
            self.assertEqual(set(observations["count"]), {step})
            self.assertEqual(set(rewards), {float(step % 3)})
        *_, terminated, _, infos = envs.step(actions)
        self.assertTrue(terminated.all())
        self.assertEqual(set(infos["final_obs"]["count"]), {5})
        envs.close()

    def test_a_worker_that_dies_ends_its_episodes_and_no_more(self):
        envs = VectorEnv("python:counting.py:make", 2, num_workers=1, env_options={"dies_at": 3})
        envs.reset(seed=1)
        faults, truncated_any = [], False
        for _ in range(12):
            _, _, _, truncated, infos = envs.step(np.zeros((2, 2), int))
            faults += infos.get("fault", [])
            truncated_any |= truncated.all()
        self.assertTrue(any("env-worker" in fault for fault in faults), faults)
        self.assertTrue(truncated_any)
        envs.close()

    def test_errors_have_their_names(self):
        for env, options, slug in [
            ("CartPole-v2", {}, "unknown-environment"),
            ("python:none.py:make", {}, "unknown-environment"),
            ("CartPole-v1", {"frobnicate": 1}, "bad-value"),
        ]:
            with self.assertRaises(PlimsollError) as caught:
                VectorEnv(env, 2, **options)
            self.assertEqual(caught.exception.slug, slug)
        with self.assertRaisesRegex(ValueError, "takes"):
            VectorEnv("CartPole-v1", 2).step(np.zeros(3, int))


class Batches(InAFolder):
    def test_a_batch_is_memory_of_the_collector(self):
        with Collector("CartPole-v1", 8, 8 * 32, seed=1, threads=2) as collector:
            batch = next(collector)
            observations = batch.observations
            self.assertEqual(observations.shape, (8, 33, 4))
            self.assertFalse(observations.flags.owndata)
            self.assertTrue(np.shares_memory(observations, batch.observations))
            self.assertTrue(observations.flags.writeable)
            kept = observations.copy()
            del batch
            gc.collect()
            # What is held is not written: the third batch takes other rows.
            later = next(collector)
            np.testing.assert_array_equal(observations, kept)
            self.assertFalse(np.shares_memory(observations, later.observations))

    def test_batches_that_are_held_are_named(self):
        with Collector("CartPole-v1", 2, 8, batches_in_flight=2) as collector:
            held = [next(collector), next(collector)]
            with self.assertRaises(PlimsollError) as caught:
                next(collector)
            self.assertEqual((caught.exception.slug, len(held)), ("batches-held", 2))

    def test_the_policy_chooses_and_its_numbers_are_stored(self):
        def policy(observations):
            actions = (observations[:, 2] > 0).astype(np.int64)
            return actions, np.full(len(actions), -0.5), observations[:, 0]

        with Collector("CartPole-v1", 4, 64, policy, extras=("logprobs", "values"), threads=2) as collector:
            batch = next(collector)
            before = batch.observations[:, :-1]
            np.testing.assert_array_equal(batch.actions, before[..., 2] > 0)
            np.testing.assert_array_equal(batch.values, before[..., 0])
            self.assertTrue((batch.logprobs == -0.5).all() and batch.valid.all())
            collector.publish()
            self.assertEqual(next(collector).versions, (1, 1))

    def test_frames_do_not_depend_on_threads(self):
        def frames(threads):
            with Collector("Pendulum-v1", 6, 60, seed=5, threads=threads) as collector:
                return [next(collector).observations.copy() for _ in range(3)]

        for one, two in zip(frames(1), frames(3), strict=True):
            np.testing.assert_array_equal(one, two)

    def test_what_came_next_is_the_last_observation_where_an_episode_ended(self):
        with Collector("CartPole-v1", 4, 4 * 100, seed=2) as collector:
            batch = next(collector)
            after, ended = batch.next_observations, batch.terminated
            self.assertTrue(ended.any())
            self.assertTrue((np.abs(after[ended][:, 2]) > 0.2).any())
            going = ~ended & ~batch.truncated
            np.testing.assert_array_equal(after[going], batch.observations[:, 1:][going])
            self.assertEqual(len(batch.episode_returns), int((ended | batch.truncated).sum()))

    def test_async_batches_say_whose_rows_they_are_and_nothing_is_lost(self):
        with Collector("CartPole-v1", 4, 40, mode="async", threads=2, batches_in_flight=3) as collector:
            for _ in range(5):
                batch = next(collector)
                self.assertEqual(batch.observations.shape[:2], (4, 11))
                self.assertTrue(set(batch.env_indices) <= set(range(4)))
            stats = collector.stats()
            parts = sum(stats[key] for key in ("delivered", "lagged", "frames_aborted", "in_flight"))
            self.assertEqual(stats["produced"], parts)

    def test_an_exception_of_the_policy_is_raised_as_it_was(self):
        def policy(observations):
            raise KeyError("no such head")

        with Collector("CartPole-v1", 2, 8, policy) as collector, self.assertRaisesRegex(KeyError, "no such head"):
            next(collector)

    def test_python_environments_fill_batches(self):
        with Collector("python:counting.py:make", 4, 40, num_workers=2) as collector:
            batch = next(collector)
            self.assertEqual(batch.observations["noise"].shape, (4, 11, 2, 3))
            self.assertEqual(batch.actions.shape, (4, 10, 2))
            self.assertEqual(int(batch.terminated.sum()), 8)

    def test_a_batch_is_whole(self):
        with self.assertRaises(PlimsollError) as caught:
            Collector("CartPole-v1", 3, 10)
        self.assertEqual(caught.exception.slug, "frames-not-whole")
        self.assertIn("12", str(caught.exception))


class Rings(InAFolder):
    def test_transitions_are_frames_that_were_pushed(self):
        with Collector("CartPole-v1", 4, 4 * 50, seed=3) as collector:
            ring = Replay(collector, 80, seed=5)
            with self.assertRaisesRegex(ValueError, "empty"):
                ring.sample(1)
            frames = {}
            for _ in range(2):
                batch = next(collector)
                ring.push(batch)
                last = batch.terminated | batch.truncated
                for env, t in np.ndindex(4, 50):
                    key = batch.observations[env, t].tobytes()
                    frames[key] = (batch.actions[env, t], batch.next_observations[env, t], last[env, t])
            self.assertEqual(len(ring), 4 * 80)
            drawn = ring.sample(64, discount=0.9)
            for i in range(64):
                action, after, ended = frames[drawn.observations[i].tobytes()]
                self.assertEqual(drawn.actions[i], action)
                np.testing.assert_array_equal(drawn.next_observations[i], after)
                self.assertEqual(drawn.rewards[i], 1.0)
                self.assertAlmostEqual(float(drawn.bootstrap_discounts[i]), 0.0 if ended else 0.9, places=6)
            three = ring.sample(64, n=3, discount=0.5)
            self.assertTrue(set(np.round(three.rewards, 4)) <= {1.0, 1.5, 1.75}, set(three.rewards))
            again = Replay(collector, 80, seed=5)
            self.assertEqual(len(again), 0)


if __name__ == "__main__":
    signal.alarm(120)
    unittest.main()
