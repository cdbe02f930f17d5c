#!/usr/bin/env python3
"""Writes kin.json: losses, gradients and advantages of GRPO's kin in f64, by the code of those who publish them.

kin.py FOLDER, where FOLDER has the packages verl 0.9.1 and trl 1.16.0 unpacked (`pip download --no-deps`, `unzip`).
Their functions are read from the sources one by one, so that only torch and numpy need to be installed. LUSPO's and
GDPO's lines stand in the middle of a method of TRL, and are repeated here.
"""

import ast
import json
import math
import os
import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = sys.argv[1]
torch.set_default_dtype(torch.float64)


def functions(path, names, space):
    """Runs the definitions of `names` in a source file, without decorators and annotations."""
    tree = ast.parse(open(os.path.join(FOLDER, path)).read())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list, node.returns = [], None
            for arg in node.args.args + node.args.kwonlyargs:
                arg.annotation = None
            exec(compile(ast.Module([node], []), path, "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})


common = {"torch": torch, "np": np, "math": math, "defaultdict": defaultdict, "Any": object, "Optional": object}
torch_functional = functions("verl/utils/torch_functional.py", ["masked_sum", "masked_mean"], dict(common))
verl = functions(
    "verl/trainer/ppo/core_algos.py",
    [
        "agg_loss",
        "compute_policy_loss_geo_mean",
        "compute_policy_loss_dppo_tv",
        "compute_policy_loss_dppo_kl",
        "compute_policy_loss_clip_cov",
        "compute_policy_loss_kl_cov",
        "compute_opo_outcome_advantage",
        "compute_gpg_outcome_advantage",
        "compute_grpo_passk_outcome_advantage",
        "compute_remax_outcome_advantage",
        "compute_optimal_token_baseline_advantage",
    ],
    {**common, "verl_F": torch_functional, "AlgoConfig": type(None), "ActorConfig": object},
)
trl = functions("trl/trainer/grpo_trainer.py", ["get_gamma_weights"], dict(common))


class Config(dict):
    """What verl's losses read of their configuration."""

    clip_ratio = 0.2
    global_batch_info = {}

    def __init__(self, low, high, **policy_loss):
        super().__init__(clip_ratio_c=20.0)
        self.clip_ratio_low, self.clip_ratio_high = low, high
        self.policy_loss = SimpleNamespace(**policy_loss)


inputs = json.load(open(os.path.join(HERE, "rl_formulas.json")))["inputs"]
at = {name: torch.tensor(inputs[name]) for name in ["log_probs", "old_log_probs", "advantages", "action_mask"]}
old, advantages, mask = at["old_log_probs"], at["advantages"], at["action_mask"]


def graded(loss):
    """The value of a loss and its gradient."""
    logp = at["log_probs"].clone().requires_grad_(True)
    value = loss(logp)
    value.backward()
    return {"loss": value.item(), "grad_log_probs": logp.grad.tolist()}


def of_verl(function, low, high, **policy_loss):
    config = Config(low, high, **policy_loss)
    return graded(lambda logp: function(old, logp, advantages, mask, "token-mean", config)[0])


def vespo(logp):
    phi = trl.get_gamma_weights(advantages, (logp - old).detach(), mask, None, 2.0, 3.0, 3.0, 2.0)
    return ((-phi * advantages * logp) * mask).sum() / mask.sum()


def luspo(logp):
    mean = ((logp - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    ratio = torch.exp(mean)
    clipped = torch.clamp(ratio, 1 - 3e-4, 1 + 4e-4)
    per_token = -torch.min(ratio * advantages, clipped * advantages)
    return (per_token * mask).sum(-1).mean()


losses = {
    # A bound that some tokens of these inputs pass, and one that none does.
    "gmpo_0.4": of_verl(verl.compute_policy_loss_geo_mean, 0.4, 0.4),
    "gmpo_0.1": of_verl(verl.compute_policy_loss_geo_mean, 0.1, 0.1),
    "dppo_tv_0.15": of_verl(verl.compute_policy_loss_dppo_tv, 0.15, 0.15),
    "dppo_tv_0.02": of_verl(verl.compute_policy_loss_dppo_tv, 0.02, 0.02),
    "dppo_kl_0.05": of_verl(verl.compute_policy_loss_dppo_kl, 0.05, 0.05),
    "dppo_kl_0.001": of_verl(verl.compute_policy_loss_dppo_kl, 0.001, 0.001),
    # A share of all tokens, so that those inside the band are not drawn at random.
    "clip_cov": of_verl(
        verl.compute_policy_loss_clip_cov, 0.2, 0.2, clip_cov_ratio=1.0, clip_cov_lb=-0.2, clip_cov_ub=0.22
    ),
    "kl_cov": of_verl(verl.compute_policy_loss_kl_cov, 0.2, 0.2, kl_cov_ratio=0.3, ppo_kl_coef=0.5),
    "vespo": graded(vespo),
    "luspo": graded(luspo),
}

cpo = functions("trl/experimental/cpo/cpo_trainer.py", ["cpo_loss"], {**common, "F": torch.nn.functional})
orpo = functions(
    "trl/experimental/orpo/orpo_trainer.py",
    ["odds_ratio_loss"],
    # In f64, where no more is needed.
    {**common, "F": torch.nn.functional, "log1mexp": lambda x: torch.log(-torch.expm1(x))},
)

# Log-probs of the tokens of four pairs.
pairs = {
    "chosen": [[-0.3, -1.2, -0.1], [-2.0, -0.4], [-0.05], [-0.9, -0.9, -1.4, -0.2]],
    "rejected": [[-0.7, -0.8], [-0.3, -0.2, -2.2], [-3.0, -0.1], [-0.6]],
}


def of_pairs(loss):
    """A loss of pairs, with its gradient for each token."""
    sides = [[torch.tensor(row, requires_grad=True) for row in pairs[side]] for side in ["chosen", "rejected"]]
    value, rewards = loss(*sides)
    value.backward()
    grads = [[row.grad.tolist() for row in rows] for rows in sides]
    return {"loss": value.item(), "rewards": [side.sum().item() for side in rewards], "grads": grads}


def by_cpo(loss_type, beta, alpha, gamma=0.0, smoothing=0.0):
    device = SimpleNamespace(device="cpu")

    def loss(chosen, rejected):
        own = SimpleNamespace(
            alpha=0.0, loss_type=loss_type, beta=beta, simpo_gamma=gamma, label_smoothing=smoothing, accelerator=device
        )
        one = torch.mean if loss_type == "simpo" else torch.sum
        logps = [torch.stack([one(row) for row in rows]) for rows in [chosen, rejected]]
        losses, *rewards = cpo.cpo_loss(own, *logps)
        nll = -torch.cat(chosen).mean()
        return losses.mean() + alpha * nll, rewards

    return of_pairs(loss)


def by_orpo(chosen, rejected):
    own = SimpleNamespace(beta=0.1, accelerator=SimpleNamespace(device="cpu"))
    # `.float()` there is for half precision.
    torch.Tensor.float = lambda x: x
    logps = [torch.stack([row.mean() for row in rows]) for rows in [chosen, rejected]]
    losses, *rewards, _, _ = orpo.odds_ratio_loss(own, *logps)
    # The paper's supervised term: the mean over a response, then over pairs.
    return -logps[0].mean() - losses.mean(), rewards


GROUPS, SIZE = 3, 4
rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.2, 0.9, 0.9, 0.1, 0.0, 0.0, 0.7, 0.3])
lengths = [3, 7, 5, 2, 8, 1, 4, 6, 2, 2, 5, 8]
second = torch.tensor([0.1, 0.4, 0.4, 0.2, 1.0, 0.0, 0.5, 0.5, 0.3, 0.9, 0.6, 0.0])
weights = [1.0, 0.5]
# Rewards of the greedy answers, one a group.
greedy = torch.tensor([1.0, 0.2, 0.0])
responses = torch.zeros(len(lengths), max(lengths))
token_rewards = torch.zeros_like(responses)
for i, length in enumerate(lengths):
    responses[i, :length] = 1.0
    token_rewards[i, length - 1] = rewards[i]
index = np.repeat(np.arange(GROUPS), SIZE)


def first_token(given):
    return given[0][:, 0].tolist()


def gdpo():
    grouped = torch.stack([rewards, second], -1).view(GROUPS, SIZE, 2)
    mean, std = grouped.mean(1, keepdim=True), grouped.std(1, keepdim=True)
    each = ((grouped - mean) / (std + 1e-4)).view(-1, 2)
    sums = (each * torch.tensor(weights)).sum(1)
    return ((sums - sums.mean()) / (sums.std() + 1e-4)).tolist()


shaped = {
    "opo": first_token(verl.compute_opo_outcome_advantage(token_rewards.clone(), responses, index)),
    "gpg": first_token(verl.compute_gpg_outcome_advantage(token_rewards.clone(), responses, index)),
    "pass_k": first_token(
        verl.compute_grpo_passk_outcome_advantage(token_rewards.clone(), responses, index, epsilon=1e-4, config={})
    ),
    "gdpo": gdpo(),
    "remax": first_token(
        verl.compute_remax_outcome_advantage(token_rewards.clone(), greedy.repeat_interleave(SIZE), responses)
    ),
}



def optimal_token():
    """Two prompts of three samples; in each one response is longer than the others. Only trained tokens are written."""
    draw = torch.Generator().manual_seed(5)
    lengths, prompts = [3, 5, 2, 4, 1, 3], [0, 0, 0, 1, 1, 1]
    logits = 2 * torch.randn(6, 5, 7, generator=draw)
    drawn = torch.randint(7, (6, 5, 1), generator=draw)
    at = lambda factor: torch.log_softmax(factor * logits, -1).gather(-1, drawn)[..., 0]  # noqa: E731
    logp, sharp = at(1.0), at(2.0)
    given = torch.tensor([1.0, 0.0, 0.5, -1.0, 2.0, 0.25])
    responses = torch.tensor([[float(t < length) for t in range(5)] for length in lengths])
    rewards = torch.zeros(6, 5)
    rewards[torch.arange(6), torch.tensor(lengths) - 1] = given
    squares = torch.softmax(logits, -1).square().sum(-1)
    advantages, returns = verl.compute_optimal_token_baseline_advantage(
        rewards, responses, np.array(prompts), logp, squares
    )
    packed = lambda rows: [x for row, length in zip(rows.tolist(), lengths) for x in row[:length]]  # noqa: E731
    offsets = [sum(lengths[:i]) for i in range(7)]
    return {
        "prompts": prompts, "offsets": offsets, "mask": packed(responses), "logp": packed(logp),
        "sharp_logp": packed(sharp), "returns": packed(returns), "advantages": packed(advantages),
    }


with open(os.path.join(HERE, "kin.json"), "w") as file:
    groups = {
        "rewards": rewards.tolist(),
        "second": second.tolist(),
        "greedy": greedy.tolist(),
        "weights": weights,
        "lengths": lengths,
        "group_size": SIZE,
    }
    preference = {
        "pairs": pairs,
        "simpo": by_cpo("simpo", 2.0, 0.0, gamma=0.5),
        "cpo": by_cpo("sigmoid", 0.1, 1.0),
        "cpo_smooth": by_cpo("sigmoid", 0.3, 0.5, smoothing=0.1),
        "orpo": of_pairs(by_orpo),
    }
    found = {"loss": losses, "groups": groups, "shaped": shaped, "preference": preference}
    json.dump(found | {"optimal_token": optimal_token()}, file, indent=1)
    file.write("\n")
