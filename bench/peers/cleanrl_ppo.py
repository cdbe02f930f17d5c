"""PPO on a Gymnasium environment as in CleanRL's ppo.py, in its shortest form.

    python cleanrl_ppo.py CartPole-v1 SEED [THRESHOLD]

Prints one JSON object: frames and seconds until the mean return of the last 100 episodes reached the threshold (475),
wall time and CPU time. Needs torch, numpy and gymnasium. Uses one thread: more make networks of this size slower.
"""

import collections
import json
import sys
import time

import gymnasium
import numpy
import torch

ENVS, STEPS, TOTAL, EPOCHS, PARTS = 4, 128, 500_000, 4, 4
RATE, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 2.5e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def layer(inputs, outputs, gain=2**0.5):
    linear = torch.nn.Linear(inputs, outputs)
    torch.nn.init.orthogonal_(linear.weight, gain)
    torch.nn.init.zeros_(linear.bias)
    return linear


def stack(inputs, outputs, gain):
    tanh = torch.nn.Tanh
    return torch.nn.Sequential(layer(inputs, 64), tanh(), layer(64, 64), tanh(), layer(64, outputs, gain))


def estimate(rewards, values, dones, next_value, next_done):
    advantages, carry = torch.zeros_like(rewards), 0.0
    for t in reversed(range(STEPS)):
        alive = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
        behind = next_value if t == STEPS - 1 else values[t + 1]
        carry = rewards[t] + GAMMA * behind * alive - values[t] + GAMMA * LAMBDA * alive * carry
        advantages[t] = carry
    return advantages, advantages + values


def train(name, seed, threshold):
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(name)] * ENVS, autoreset_mode=mode)
    inputs, choices = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    actor, critic = stack(inputs, choices, 0.01), stack(inputs, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
    shape = (STEPS, ENVS)
    seen = torch.zeros((*shape, inputs))
    actions, logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    recent, running = collections.deque(maxlen=100), numpy.zeros(ENVS)
    observation = torch.tensor(envs.reset(seed=seed)[0])
    done, frames = torch.zeros(ENVS), 0
    began, cpu = time.perf_counter(), time.process_time()
    batches = TOTAL // (STEPS * ENVS)
    for batch in range(batches):
        optimizer.param_groups[0]["lr"] = (1.0 - batch / batches) * RATE
        for t in range(STEPS):
            frames += ENVS
            seen[t], dones[t] = observation, done
            with torch.no_grad():
                dist = torch.distributions.Categorical(logits=actor(observation))
                action = dist.sample()
                values[t], logprobs[t], actions[t] = critic(observation).flatten(), dist.log_prob(action), action
            after, reward, ended, cut, _ = envs.step(action.numpy())
            over = numpy.logical_or(ended, cut)
            rewards[t] = torch.tensor(reward, dtype=torch.float32)
            observation, done = torch.tensor(after), torch.tensor(over, dtype=torch.float32)
            running += reward
            for i in numpy.flatnonzero(over):
                recent.append(running[i])
                running[i] = 0.0
        if len(recent) == 100 and numpy.mean(recent) >= threshold:
            break
        with torch.no_grad():
            last = critic(observation).flatten()
            advantages, returns = estimate(rewards, values, dones, last, done)
        flat = seen.reshape(-1, inputs), actions.reshape(-1), logprobs.reshape(-1), values.reshape(-1)
        flat_seen, flat_actions, flat_logprobs, flat_values = flat
        flat_advantages, flat_returns = advantages.reshape(-1), returns.reshape(-1)
        for _ in range(EPOCHS):
            for which in numpy.split(numpy.random.permutation(STEPS * ENVS), PARTS):
                dist = torch.distributions.Categorical(logits=actor(flat_seen[which]))
                ratio = (dist.log_prob(flat_actions[which]) - flat_logprobs[which]).exp()
                gain = flat_advantages[which]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                now, before, wanted = critic(flat_seen[which]).flatten(), flat_values[which], flat_returns[which]
                held = before + (now - before).clamp(-CLIP, CLIP)
                value = 0.5 * torch.max((now - wanted) ** 2, (held - wanted) ** 2).mean()
                loss = policy - ENTROPY * dist.entropy().mean() + VALUE * value
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, NORM)
                optimizer.step()
    return {
        "peer": "cleanrl",
        "env": name,
        "seed": seed,
        "reached": bool(len(recent) == 100 and numpy.mean(recent) >= threshold),
        "frames": frames,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


if __name__ == "__main__":
    name, seed, *rest = sys.argv[1:]
    print(json.dumps(train(name, int(seed), float(rest[0]) if rest else 475.0)), flush=True)
