#!/usr/bin/env python3
"""Writes kto.json: KTO's loss and its gradient in f64, by the lines of TRL 1.16.0 (`KTOTrainer._compute_loss`), which stand
in the middle of a method and are repeated here. Needs torch alone."""

import json
import os

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_default_dtype(torch.float64)
# f32 is what a run has.
f32 = lambda numbers: torch.tensor(numbers, dtype=torch.float32).double()
POLICY = f32([-3.1, -7.4, -2.2, -11.8, -0.6, -5.5, -4.0])
REFERENCE = f32([-3.6, -7.0, -2.9, -9.5, -0.6, -8.1, -4.4])
LABELS = [True, False, True, False, False, True, False]
KL_POLICY = f32([-8.1, -6.0, -7.7, -9.0, -12.0, -3.3, -5.1])
KL_REFERENCE = f32([-8.8, -6.3, -7.2, -9.9, -12.4, -3.1, -6.0])


def case(beta, desirable_weight, undesirable_weight, kl_policy):
    logps = POLICY.clone().requires_grad_()
    chosen = [i for i, label in enumerate(LABELS) if label]
    rejected = [i for i, label in enumerate(LABELS) if not label]
    kl = (kl_policy - KL_REFERENCE).mean().detach()
    kl = kl.clamp(min=0)
    chosen_logratios = logps[chosen] - REFERENCE[chosen]
    chosen_losses = 1 - F.sigmoid(beta * (chosen_logratios - kl))
    rejected_logratios = logps[rejected] - REFERENCE[rejected]
    rejected_losses = 1 - F.sigmoid(beta * (kl - rejected_logratios))
    losses = torch.cat((desirable_weight * chosen_losses, undesirable_weight * rejected_losses), 0)
    loss = losses.nanmean()
    loss.backward()
    return {
        "beta": beta,
        "weights": [desirable_weight, undesirable_weight],
        "kl_policy": kl_policy.tolist(),
        "kl": kl.item(),
        "loss": loss.item(),
        "slopes": logps.grad.tolist(),
        "rewards": [(beta * chosen_logratios).sum().item(), (beta * rejected_logratios).sum().item()],
    }


cases = [
    case(0.1, 1.0, 1.0, KL_POLICY),
    case(0.5, 1.33, 0.8, KL_POLICY),
    # The policy gives less than the reference: the KL is 0.
    case(0.1, 1.0, 1.0, KL_POLICY - 2.0),
]
inputs = {"policy": POLICY.tolist(), "reference": REFERENCE.tolist(), "labels": LABELS, "kl_reference": KL_REFERENCE.tolist()}
with open(os.path.join(HERE, "kto.json"), "w") as file:
    json.dump({"inputs": inputs, "cases": cases}, file, indent=1)
    file.write("\n")
