#!/usr/bin/env python3
"""Writes turns.json: advantages of turns within groups, in f64 with numpy, from the definitions and nothing of Plimsoll.

`returns`: the sum of an episode's rewards from turn k on, compared among the episodes of the group that have a turn k.
`process`: each reward compared among all rewards of the group, then summed from turn k on (arXiv 2402.03300, section
4.1.3, with the unbiased standard deviation as GRPO here). An episode without turns takes no part; one number alone has
nothing to be compared with and gets 0. Rewards are f32 numbers, so that both sides begin with the same.
"""

import json
import os

import numpy as np

EPS = 1e-4
CLIP = 10.0
GROUP = 4
rng = np.random.default_rng(20261127)


def episode(turns):
    return [float(np.float32(x)) for x in rng.choice([0.0, 1.0, rng.normal(), rng.normal() * 3], size=turns)]


def shaped(name, values, lengths):
    values, lengths = np.array(values), np.array(lengths, dtype=float)
    n = len(values)
    if n < 2:
        return np.zeros(n)
    if name == "group_norm":
        out = (values - values.mean()) / (values.std(ddof=1) + EPS)
    elif name == "mean_baseline":
        out = values - values.mean()
    elif name == "rloo":
        out = np.array([values[i] - np.delete(values, i).mean() for i in range(n)])
    elif name == "length_weighted":
        out = values - np.average(values, weights=lengths)
    return np.clip(out, -CLIP, CLIP)


def returns(name, group, lengths):
    out = [[0.0] * len(rewards) for rewards in group]
    for k in range(max(map(len, group))):
        here = [i for i, rewards in enumerate(group) if len(rewards) > k]
        to_go = [sum(group[i][k:]) for i in here]
        for i, advantage in zip(here, shaped(name, to_go, [lengths[i][k] for i in here])):
            out[i][k] = advantage
    return out


def process(name, group, lengths):
    flat = shaped(name, sum(group, []), sum(lengths, []))
    out, at = [], 0
    for rewards in group:
        own = flat[at : at + len(rewards)]
        out.append([float(own[k:].sum()) for k in range(len(rewards))])
        at += len(rewards)
    return out


shapes = [[3, 1, 2, 3], [1, 1, 1, 1], [5, 0, 2, 1], [0, 0, 4, 0], [2, 2, 2, 2], [8, 7, 3, 8]]
groups = [[episode(turns) for turns in group] for group in shapes]
groups.append([[0.1, 0.1]] * GROUP)  # Nothing differs: exactly 0.
groups.append([[40.0, -40.0], [0.0, 3.0], [0.0, 0.0], [1.0, -2.0]])  # Beyond the clip without a deviation.
lengths = [[[int(rng.integers(1, 40)) for _ in rewards] for rewards in group] for group in groups]


def flat(of, name):
    per_group = [of(name, group, of_group) for group, of_group in zip(groups, lengths)]
    return [float(x) for group in per_group for episode in group for x in episode]


golden = {
    "group_size": GROUP,
    "eps": EPS,
    "rewards": [episode for group in groups for episode in group],
    "tokens": [episode for group in lengths for episode in group],
    "returns": {name: flat(returns, name) for name in ["group_norm", "mean_baseline", "rloo", "length_weighted"]},
    "process": {name: flat(process, name) for name in ["group_norm", "mean_baseline"]},
}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "turns.json")
with open(path, "w") as file:
    json.dump(golden, file)
    file.write("\n")
