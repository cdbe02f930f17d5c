"""GRPO as a loop of your own: the bits of `method = "grpo"`.

    plimsoll train runs/first.toml --set train.steps=6 --set run.dir=/tmp/by-method
    python examples/grpo_loop.py runs/first.toml /tmp/by-script train.steps=6
"""

import sys

import numpy as np
import plimsoll


def advantages_of(samples, eps=1e-4):
    """Each reward less the mean of its group, over the group's standard deviation (arXiv 2402.03300)."""
    found = np.zeros(len(samples))
    for group in range(len(samples.prompts)):
        own = np.flatnonzero(samples.groups == group)
        rewards = samples.rewards[own].astype(np.float64)
        given = rewards[~np.isnan(rewards)]
        if len(given) == 0:
            continue
        # One after the other, as the trainer adds them.
        mean = np.cumsum(given)[-1] / len(given)
        variance = np.cumsum((given - mean) ** 2)[-1] / max(len(given) - 1, 1)
        found[own] = (rewards - mean) / (np.sqrt(variance) + eps)
    return found.astype(np.float32).clip(-10, 10)


def main(run_file, folder, *settings):
    keys = dict(setting.split("=", 1) for setting in settings)
    keys = {key: int(value) if value.isdigit() else value for key, value in keys.items()}
    resume = keys.pop("resume", 0) == 1
    with plimsoll.Session(run_file, resume=resume, quiet=True, **{"run.dir": folder, **keys}) as session:
        print(f"planned: {session.plan.peak_bytes['host'] / 2**20:.1f} MiB of host memory")
        session.begin()
        best = float(session.state or b"-1")
        for step in session:
            samples = session.sample(session.prompts(session.prompts_per_step), n=session.group_size)
            # A response without a score is not trained.
            mask = samples.spread(~np.isnan(samples.rewards)).astype(np.float32)
            advantages = np.nan_to_num(advantages_of(samples))
            session.forward_backward(samples, advantages, loss="grpo", mask=mask)
            best = max(best, float(np.nanmean(samples.rewards)))
            numbers = session.step(state=repr(best).encode())
            print(f"step {step}: reward {numbers['reward']:.3f}, best {best:.3f}, grad_norm {numbers['grad_norm']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
