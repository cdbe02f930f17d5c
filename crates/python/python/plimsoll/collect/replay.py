"""A replay ring for off-policy learners."""

from typing import NamedTuple

import numpy as np

from . import _native
from .collector import Batch, Collector


class Transitions(NamedTuple):
    """Arrays with one entry per transition. ``rewards`` are sums over the steps, discounted; the value of
    ``next_observations`` counts with ``bootstrap_discounts``, which is 0 where the task ended."""

    observations: object
    actions: object
    next_observations: object
    rewards: np.ndarray
    bootstrap_discounts: np.ndarray
    env_indices: np.ndarray


class Replay:
    """The last ``capacity`` frames of each environment of a collector, allocated with the first batch.

    ``sample`` draws uniformly; draw number i of a seed is the same whenever it is asked for.
    """

    def __init__(self, collector: Collector, capacity: int, *, seed: int = 0):
        self._collector = collector
        self._ring = _native.Replay(collector.num_envs, capacity, seed)
        self._draws = 0

    def __len__(self) -> int:
        return self._ring.len()

    def push(self, batch: Batch):
        """Copies a batch over the oldest frames of its environments."""
        self._ring.push(batch.native)

    def sample(self, count: int, *, n: int = 1, discount: float = 0.99) -> Transitions:
        """Samples ``count`` transitions of up to ``n`` steps."""
        if not len(self):
            raise ValueError("the ring is empty: push a batch first")
        parts = self._ring.sample(self._draws, count, n, discount)
        self._draws += 1
        observation, action = self._collector.slots
        slots = zip((observation, action, observation), parts[:3], strict=True)
        shown = [slot.view(np.frombuffer(part, slot.dtype)) for slot, part in slots]
        numbers = (np.frombuffer(part, dtype) for part, dtype in zip(parts[3:], ("f4", "f4", "u4"), strict=True))
        return Transitions(*shown, *numbers)
