"""TorchRL's PPO loss and advantages over Plimsoll's batches: their learner, our collector.

    pip install plimsoll-rl torchrl
    python examples/torchrl_ppo.py [ENV] [FRAMES]
"""

import sys
import time

import numpy as np
import plimsoll.collect
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch.distributions import Categorical
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

NUM_ENVS, FRAMES_PER_BATCH = 8, 1024


def network(inputs: int, outputs: int) -> torch.nn.Sequential:
    sizes = [inputs, 64, 64, outputs]
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers[:-1])


def tensordict_of(batch: plimsoll.collect.Batch) -> TensorDict:
    """[E, T], as TorchRL's collectors lay it out. Tensors share the batch's memory where their type is the same."""
    done = batch.terminated | batch.truncated | batch.cut
    after = {
        "observation": torch.from_numpy(batch.next_observations),
        "reward": torch.from_numpy(batch.rewards).unsqueeze(-1),
        "terminated": torch.from_numpy(batch.terminated).unsqueeze(-1),
        "done": torch.from_numpy(done).unsqueeze(-1),
    }
    return TensorDict(
        {
            "observation": torch.from_numpy(batch.observations[:, :-1]),
            "action": torch.from_numpy(batch.actions),
            "action_log_prob": torch.from_numpy(batch.logprobs),
            "next": TensorDict(after, batch.actions.shape),
        },
        batch.actions.shape,
    )


def main(env: str = "CartPole-v1", frames: str = "100000"):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    spaces = plimsoll.collect.VectorEnv(env, 1)
    inputs, outputs = spaces.single_observation_space.shape[0], int(spaces.single_action_space.n)
    logits = network(inputs, outputs)

    @torch.no_grad()
    def policy(observations):
        chosen = Categorical(logits=logits(torch.tensor(observations)))
        actions = chosen.sample()
        return actions.numpy(), chosen.log_prob(actions).numpy()

    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(logits, ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True),
    )
    critic = ValueOperator(network(inputs, 1), ["observation"])
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    returns, taken, before = [], 0, time.perf_counter()
    with plimsoll.collect.Collector(env, NUM_ENVS, FRAMES_PER_BATCH, policy, extras=("logprobs",), seed=1) as collector:
        for batch in collector:
            returns = (returns + list(batch.episode_returns))[-100:]
            data = tensordict_of(batch)
            for _ in range(10):
                with torch.no_grad():
                    advantages(data)
                flat = data.reshape(-1)
                for part in torch.randperm(len(flat)).split(256):
                    terms = loss(flat[part])
                    optimizer.zero_grad()
                    (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
                    torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                    optimizer.step()
            collector.publish()
            taken += batch.num_frames
            if taken >= int(frames):
                break
    print(f"{env}: mean return {np.mean(returns):.1f} over the last {len(returns)} episodes, "
          f"{taken} frames in {time.perf_counter() - before:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
