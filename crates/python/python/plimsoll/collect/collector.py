"""Batches of frames as numpy arrays over the collector's own memory."""

import json
import threading
from collections.abc import Callable

import numpy as np

from . import _native
from .workers import asked
from .spaces import Slot

TERMINATED, TRUNCATED, CUT, RESET_ROW, ABORTED, INVALID = 1, 2, 4, 8, 16, 32


class Collector:
    """Iterates over batches of ``frames_per_batch`` frames of ``num_envs`` environments.

    ``policy``: called with the observations of some environments, a value of the observation space with a leading
    axis, and answers with their actions; with ``extras=("logprobs", "values")`` with a tuple of the actions and those,
    in this order. It is called from the collector's threads, one call at a time. None draws actions at random.

    ``mode``: "sync", "semi-sync" (with ``preemptive_threshold``) or "async" (with ``policy_lag_max``). After changing
    the policy's weights, say ``publish()``; each frame carries the version that chose its action.

    Keep at most ``batches_in_flight - 1`` batches (or arrays of them) while asking for the next: environments write
    into the others. The environments and further keywords are those of ``VectorEnv``, and ``threads``.
    """

    def __init__(
        self,
        env: str,
        num_envs: int,
        frames_per_batch: int,
        policy: Callable | None = None,
        *,
        seed: int = 0,
        mode: str = "sync",
        preemptive_threshold: float | None = None,
        policy_lag_max: int | None = None,
        batches_in_flight: int = 2,
        random_steps: int = 0,
        reset_each_batch: bool = False,
        clip_actions: bool = False,
        extras: tuple = (),
        **options,
    ):
        unknown = set(extras) - {"logprobs", "values"}
        if unknown:
            raise ValueError(f"extras are logprobs and values, not {sorted(unknown)}")
        plan = {
            "frames_per_batch": frames_per_batch,
            "seed": seed,
            "mode": mode,
            "preemptive_threshold": preemptive_threshold,
            "policy_lag_max": policy_lag_max,
            "batches_in_flight": batches_in_flight,
            "random_steps": random_steps,
            "reset_each_batch": reset_each_batch,
            "clip_actions": clip_actions,
            "extras": list(extras),
        }
        self.version, self.num_envs = 0, num_envs
        self._policy, self._extras = policy, tuple(extras)
        # The spaces come with the collector, whose threads may call the policy before it is here.
        self._is_described = threading.Event()
        call = self._call if policy is not None else None
        self._collector = _native.Collector(json.dumps(asked(env, num_envs, options)), json.dumps(plan), call)
        self._description = json.loads(self._collector.description)
        self._observation, self._action = (Slot(self._description[part]) for part in ("observation", "action"))
        self._is_described.set()

    @property
    def observation_space(self):
        """Of one environment."""
        return self._observation.space

    @property
    def action_space(self):
        """Of one environment."""
        return self._action.space

    @property
    def slots(self):
        """The places of the leaves of an observation and of an action in bytes."""
        return self._observation, self._action

    def publish(self, version: int | None = None):
        """Announces that the policy's weights have changed."""
        self.version = self.version + 1 if version is None else version
        self._collector.publish(self.version)

    def stats(self) -> dict:
        """The account of frames (produced = delivered + lagged + frames_aborted + in_flight) and the counters."""
        return json.loads(self._collector.stats())

    def take_faults(self) -> list[str]:
        """Takes the failures since the last call."""
        return self._collector.take_faults()

    def close(self):
        """Ends threads and workers."""
        self._collector.close()

    def __iter__(self):
        return self

    def __next__(self) -> "Batch":
        batch = self._collector.next()
        if batch is None:
            raise StopIteration
        return Batch(batch, self._description, self._observation, self._action)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _call(self, slots: bytes, first_env: int, episodes: bytes, steps: bytes):
        self._is_described.wait()
        slots = np.frombuffer(slots, self._observation.dtype)
        answer = self._policy(self._observation.view(slots))
        actions, *extras = answer if self._extras else (answer,)
        given = dict(zip(self._extras, extras, strict=True))
        numbers = (
            np.ascontiguousarray(given[name], np.float32).tobytes() if name in given else b""
            for name in ("logprobs", "values")
        )
        return self._action.pack(actions, len(slots)), *numbers


class Batch:
    """E rows of T frames. Arrays are views of the collector's memory where its rows lie evenly (always in the
    synchronous modes), else of a copy; the memory goes back once none of them is held.

    ``observations`` [E, T + 1, ...] (the last is what the next batch begins with), ``actions`` [E, T, ...], ``rewards``
    f32, ``terminated``, ``truncated``, ``cut`` (the batch or an aborted episode ended here, the task did not), ``valid``,
    ``policy_versions``, ``episode_indices``, ``steps``, each [E, T]; ``logprobs`` and ``values`` if the policy gives
    them; ``env_indices`` [E].
    """

    def __init__(self, batch, description: dict, observation: Slot, action: Slot):
        self.native, self._columns = batch, description["columns"]
        self._slots = {"observations": observation, "final_observations": observation, "actions": action}
        self.frames = description["frames"]
        self.index, self.num_frames, self.versions = batch.index, batch.num_frames, batch.versions
        self.env_indices = np.frombuffer(batch.env_indices(), np.uint32)
        memory = batch.memory()
        if memory is not None:
            self._rows = np.from_dlpack(memory)
        else:
            self._rows = np.frombuffer(batch.copied(), np.uint8).reshape(len(self.env_indices), -1)

    def _column(self, name: str, dtype) -> np.ndarray:
        first, last = self._columns[name]
        return self._rows[:, first:last].view(dtype)

    def _slot(self, name: str):
        slot = self._slots[name]
        return slot.view(self._column(name, slot.dtype))

    @property
    def observations(self):
        """[E, T + 1, ...]."""
        return self._slot("observations")

    @property
    def actions(self):
        """[E, T, ...]; the policy's choice."""
        return self._slot("actions")

    @property
    def rewards(self):
        """[E, T] f32."""
        return self._column("rewards", np.float32)

    @property
    def flags(self):
        """[E, T] u8."""
        return self._column("flags", np.uint8)

    @property
    def terminated(self):
        """[E, T]: the task ended with this frame."""
        return (self.flags & TERMINATED) != 0

    @property
    def truncated(self):
        """[E, T]: the episode was stopped with this frame."""
        return (self.flags & TRUNCATED) != 0

    @property
    def cut(self):
        """[E, T]: the stored part of an episode ends with this frame, the episode does not."""
        return (self.flags & CUT) != 0

    @property
    def valid(self):
        """[E, T]: there is a frame."""
        return (self.flags & (INVALID | RESET_ROW)) == 0

    @property
    def policy_versions(self):
        """[E, T] u64."""
        return self._column("policy_versions", np.uint64)

    @property
    def episode_indices(self):
        """[E, T] u32."""
        return self._column("episode_indices", np.uint32)

    @property
    def steps(self):
        """[E, T] u32: steps of the episode before each frame."""
        return self._column("steps", np.uint32)

    @property
    def logprobs(self):
        """[E, T] f32."""
        return self._column("logprobs", np.float32)

    @property
    def values(self):
        """[E, T] f32."""
        return self._column("values", np.float32)

    @property
    def next_observations(self):
        """[E, T, ...], a copy: the observation after each frame; at the end of an episode, its last one."""
        slot = self._slots["observations"]
        after = self._column("observations", slot.dtype)[:, 1:].copy()
        for env, frame, final in self._finals():
            after[env, frame] = final
        return slot.view(after)

    @property
    def episode_returns(self):
        """Sums of rewards of the episodes that ended in this batch."""
        returns = self._column("final_returns", np.float64)
        counts = np.frombuffer(self.native.num_finals(), np.uint32)
        return np.concatenate([returns[env, :count] for env, count in enumerate(counts)] or [np.zeros(0)])

    def _finals(self):
        slot = self._slots["final_observations"]
        finals = self._column("final_observations", slot.dtype)
        frames = self._column("final_frames", np.uint32)
        for env, count in enumerate(np.frombuffer(self.native.num_finals(), np.uint32)):
            for i in range(count):
                yield env, frames[env, i], finals[env, i]
