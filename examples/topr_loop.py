"""Tapered off-policy REINFORCE (TOPR, arXiv 2503.14286) as a loop of your own: a method that no row of the table has.

Good responses are learned as they are; bad ones are unlearned less the more the policy has already left them, by the
ratio of the whole response, held to [0, 1]. So a rollout serves several updates without a clip that stops them.

    python examples/topr_loop.py runs/first.toml /tmp/topr train.steps=12
"""

import json
import sys

import numpy as np
import plimsoll

EPOCHS, MINI_BATCHES = 2, 2


class Topr:
    """The loss of some samples: -mean over responses of R w log p(response), w = 1 if R > 0 else min(p / p_old, 1)."""

    def __init__(self, samples, rewards):
        self.samples, self.rewards = samples, rewards
        self.tapered = 0

    def __call__(self, logprobs, part):
        own = part.samples
        rewards = self.rewards[part.sequences]
        log_ratio = own.sums(logprobs - self.samples.logprobs[part.tokens])
        weights = np.where(rewards > 0, 1.0, np.exp(np.minimum(log_ratio, 0.0)))
        self.tapered += int(np.sum((rewards < 0) & (log_ratio < 0)))
        of_response = -weights * rewards / len(self.samples)
        # The weight is no part of the derivative.
        return float(np.sum(of_response * own.sums(logprobs))), own.spread(of_response)


def mini_batches(samples, generator):
    """Whole groups, in an order that the script draws."""
    groups = np.array_split(generator.permutation(len(samples.prompts)), MINI_BATCHES)
    return [np.flatnonzero(np.isin(samples.groups, some)) for some in groups]


def main(run_file, folder, *settings):
    keys = dict(setting.split("=", 1) for setting in settings)
    keys = {key: int(value) if value.isdigit() else value for key, value in keys.items()}
    resume = keys.pop("resume", 0) == 1
    with plimsoll.Session(run_file, resume=resume, quiet=True, **{"run.dir": folder, **keys}) as session:
        session.begin()
        generator = np.random.default_rng(3)
        if session.state:
            generator.bit_generator.state = json.loads(session.state)
        for step in session:
            samples = session.sample()
            # The paper's rewards are 1 and -1; a response without a score counts as neither.
            rewards = np.nan_to_num(2.0 * samples.rewards - 1.0)
            tapered, updates = 0, EPOCHS * MINI_BATCHES
            for epoch in range(EPOCHS):
                for which in mini_batches(samples, generator):
                    loss = Topr(samples[which], rewards[which])
                    session.forward_backward(loss.samples, loss=loss)
                    tapered += loss.tapered
                    updates -= 1
                    if updates:
                        session.step(more=True)
            state = json.dumps(generator.bit_generator.state).encode()
            numbers = session.step(metrics={"topr/tapered": tapered}, state=state)
            print(f"step {step}: reward {numbers['reward']:.3f}, tapered {tapered}")


if __name__ == "__main__":
    main(*sys.argv[1:])
