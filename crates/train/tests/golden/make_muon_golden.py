"""Writes muon.json: three steps of Muon on small matrices, by the formula in f64 and by torch.optim.Muon.

torch rounds to bf16 within the iteration, so its numbers are near the formula's and not equal. Needs torch 2.9 or later.
"""

import json
import pathlib

import torch

SHAPES = [(6, 10), (10, 6), (8, 8), (1, 7)]
CASES = [
    {"nesterov": True, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.1},
    {"nesterov": False, "adjust_lr_fn": "original", "weight_decay": 0.0},
]
LR, MOMENTUM, STEPS, EPS = 0.02, 0.95, 5, 1e-7
A, B, C = 3.4445, -4.775, 2.0315


def orthogonalized(x):
    turned = x.size(0) > x.size(1)
    x = x.T if turned else x
    x = x / x.norm().clamp(min=EPS)
    for _ in range(STEPS):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.T if turned else x


def by_formula(weight, grads, nesterov, adjust_lr_fn, weight_decay):
    w, m = weight.double(), torch.zeros_like(weight).double()
    rows, cols = w.shape
    factor = max(1, rows / cols) ** 0.5 if adjust_lr_fn == "original" else 0.2 * max(rows, cols) ** 0.5
    for grad in grads:
        grad = grad.double()
        m = MOMENTUM * m + (1 - MOMENTUM) * grad
        update = MOMENTUM * m + (1 - MOMENTUM) * grad if nesterov else m
        w = w * (1 - LR * weight_decay) - LR * factor * orthogonalized(update)
    return w


def by_torch(weight, grads, **how):
    w = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.Muon([w], lr=LR, momentum=MOMENTUM, ns_steps=STEPS, eps=EPS, **how)
    for grad in grads:
        w.grad = grad.clone()
        optimizer.step()
    return w.detach()


def main():
    torch.manual_seed(1)
    cases = []
    for rows, cols in SHAPES:
        weight = torch.randn(rows, cols) * 0.1
        grads = [torch.randn(rows, cols) * 0.01 for _ in range(3)]
        for how in CASES:
            case = {"rows": rows, "cols": cols, **how}
            case["weight"] = weight.flatten().tolist()
            case["grads"] = [grad.flatten().tolist() for grad in grads]
            case["formula"] = by_formula(weight, grads, **how).flatten().tolist()
            case["torch"] = by_torch(weight, grads, **how).flatten().tolist()
            far = max(abs(a - b) for a, b in zip(case["formula"], case["torch"]))
            print(rows, cols, how, "torch is within", far)
            cases.append(case)
    out = {"lr": LR, "momentum": MOMENTUM, "torch": torch.__version__, "cases": cases}
    pathlib.Path(__file__).with_name("muon.json").write_text(json.dumps(out) + "\n")


main()
