"""``gymnasium.vector.VectorEnv`` over Plimsoll's environments."""

import json

import gymnasium.vector
import numpy as np
from gymnasium.vector.utils import batch_space

from . import _native
from .workers import asked
from .spaces import Slot

TERMINATED, TRUNCATED, ABORTED = 1, 2, 16


class VectorEnv(gymnasium.vector.VectorEnv):
    """``num_envs`` environments stepped together; the same step that ends an episode begins the next.

    ``env``: a native id (``CartPole-v1``), ``gym:ID`` or ``python:FILE.py:FUNCTION``. Python's are stepped by
    ``num_workers`` processes; one that dies or hangs is started again, its episodes end as truncated, and
    ``infos["fault"]`` says why. Further keywords: ``env_options`` (passed to the environment), ``python``
    (interpreter of the workers), ``worker_memory`` (bytes), ``gpu`` ("deny" or "allow"), ``restarts_max``,
    ``episode_steps_max``.

    Arrays that are returned are not written again.
    """

    def __init__(self, env: str, num_envs: int, *, seed: int = 0, num_workers: int = 0, **options):
        options["num_workers"] = num_workers
        self._vector = _native.Vector(json.dumps(asked(env, num_envs, options)), seed)
        spaces = json.loads(self._vector.spaces)
        self._observation, self._action = Slot(spaces["observation"]), Slot(spaces["action"])
        self.num_envs = num_envs
        self.single_observation_space = self._observation.space
        self.single_action_space = self._action.space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begins an episode of each environment; a seed determines all of them."""
        if options:
            raise ValueError("options of a reset are not passed on; give env_options to the constructor")
        return self._view(self._vector.reset(seed)), {}

    def step(self, actions):
        """Steps every environment with its action."""
        answer = self._vector.step(self._action.pack(actions, self.num_envs))
        observations, finals, rewards, flags = answer
        flags = np.frombuffer(flags, np.uint8)
        terminated = (flags & TERMINATED) != 0
        truncated = (flags & (TRUNCATED | ABORTED)) != 0
        infos = {}
        done = (flags & (TERMINATED | TRUNCATED)) != 0
        if done.any():
            infos = {"final_obs": self._view(finals), "_final_obs": done}
        faults = self._vector.take_faults()
        if faults:
            infos["fault"] = faults
        return self._view(observations), np.frombuffer(rewards, np.float64), terminated, truncated, infos

    def _view(self, slots: bytes):
        return self._observation.view(np.frombuffer(slots, self._observation.dtype))

    def close_extras(self, **kwargs):
        """Ends the workers."""
        self._vector = None
