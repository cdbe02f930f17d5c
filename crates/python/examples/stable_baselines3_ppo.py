"""Stable-Baselines3's PPO over Plimsoll's environments: their learner, our collectors.

    pip install plimsoll-rl stable-baselines3
    python examples/stable_baselines3_ppo.py [ENV] [FRAMES]
"""

import sys
import time

import numpy as np
import plimsoll.collect
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor


class PlimsollVecEnv(VecEnv):
    """Stable-Baselines3's own interface over ``plimsoll.collect.VectorEnv``."""

    def __init__(self, env: str, num_envs: int, **options):
        self.envs = plimsoll.collect.VectorEnv(env, num_envs, **options)
        super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)

    def reset(self):
        return self.envs.reset(seed=self._seeds[0])[0]

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        observations, rewards, terminated, truncated, infos = self.envs.step(self.actions)
        done = terminated | truncated
        each = [{} for _ in range(self.num_envs)]
        for env in np.flatnonzero(done):
            each[env]["terminal_observation"] = infos.get("final_obs", observations)[env]
            each[env]["TimeLimit.truncated"] = bool(truncated[env] and not terminated[env])
        return observations, rewards.astype(np.float32), done, each

    def close(self):
        self.envs.close()

    def get_attr(self, attr_name, indices=None):
        return [getattr(self.envs, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        raise NotImplementedError("environments live in other threads or processes")

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError("environments live in other threads or processes")

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


def main(env: str = "CartPole-v1", frames: str = "100000"):
    envs = VecMonitor(PlimsollVecEnv(env, 8, seed=1))
    learner = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=10, learning_rate=1e-3, seed=1, device="cpu")
    before = time.perf_counter()
    learner.learn(int(frames))
    last = [episode["r"] for episode in learner.ep_info_buffer]
    print(f"{env}: mean return {np.mean(last):.1f} over the last {len(last)} episodes, "
          f"{learner.num_timesteps} frames in {time.perf_counter() - before:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
