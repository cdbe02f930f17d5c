"""Runs PPO of Stable-Baselines3 with its defaults on a Gymnasium environment.

    python sb3_ppo.py CartPole-v1 SEED [THRESHOLD]

Prints what cleanrl_ppo.py prints. Needs stable-baselines3. The mean return is checked after each rollout.
"""

import json
import sys
import time

import numpy
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

TOTAL = 500_000


class Until(BaseCallback):
    """Stops when the mean return of the last 100 episodes reaches a threshold."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold, self.reached = threshold, False

    def _on_step(self):
        return not self.reached

    def _on_rollout_end(self):
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        self.reached = len(returns) == 100 and bool(numpy.mean(returns) >= self.threshold)


def train(name, seed, threshold):
    torch.set_num_threads(1)
    model, until = PPO("MlpPolicy", name, seed=seed, device="cpu"), Until(threshold)
    began, cpu = time.perf_counter(), time.process_time()
    model.learn(TOTAL, callback=until)
    return {
        "peer": "sb3",
        "env": name,
        "seed": seed,
        "reached": until.reached,
        "frames": model.num_timesteps,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


if __name__ == "__main__":
    name, seed, *rest = sys.argv[1:]
    print(json.dumps(train(name, int(seed), float(rest[0]) if rest else 475.0)), flush=True)
