"""Estimators of advantages for `loss.advantage = "python:examples/estimators.py:FUNCTION"`, equal to built-in ones bit for bit.

A function gets numpy arrays of a step and returns one number for each token. It names those that it wants:

rewards [S]        of each sequence after the length penalty, NaN without a score
token_rewards [N]  the reward at the last trained token, less the KL where loss.kl_in = "reward"
mask [N]           True where a token is trained
offsets [S + 1]    sequence s has the tokens offsets[s]:offsets[s + 1]
lengths [S]        tokens of each sequence
samples [S]        the sample that a sequence belongs to; an agent's sample may have several
groups [S]         the group of samples of one prompt
turns [N]          the turn in which a token was drawn, -1 for tokens of the environment
logprobs [N]       of the policy that sampled
ref_logprobs [N]   of the reference, None without one
columns [S]        the data's columns of each sequence, a list of dicts
step, seed         of the run
"""
import numpy as np


def total(values):
    """A sum from left to right, as the built-in ones add; numpy's own adds in pairs."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


def group_norm(rewards, groups, lengths, eps=1e-4):
    """GRPO (arXiv 2402.03300): (R - mean of the group) / (standard deviation + eps)."""
    advantages = np.zeros(len(rewards))
    scored = ~np.isnan(rewards)
    for group in np.unique(groups[scored]):
        own = scored & (groups == group)
        r = rewards[own].astype(np.float64)
        if len(r) > 1:
            mean = total(r) / len(r)
            std = (total((r - mean) ** 2) / (len(r) - 1)) ** 0.5
            advantages[own] = (r - mean) / (std + eps)
    return np.repeat(advantages, lengths)


def length_weighted(rewards, groups, lengths):
    """OPO (arXiv 2505.23585): R - the mean of the group in which a sample counts by its tokens."""
    advantages = np.zeros(len(rewards))
    scored = ~np.isnan(rewards)
    for group in np.unique(groups[scored]):
        own = scored & (groups == group)
        r, weights = rewards[own].astype(np.float64), lengths[own].astype(np.float64)
        if len(r) > 1:
            advantages[own] = r - total(weights * r) / max(total(weights), 1.0)
    return np.repeat(advantages, lengths)
