#!/usr/bin/env python3
"""Writes divergence.json: divergences of a student from a teacher's K most likely tokens and a bucket of the rest, with their
gradients by the student's logits, by the code of TRL 1.16.0 in f64: `_add_tail_bucket` and `generalized_jsd_loss`.

K of the whole vocabulary has no bucket: it is the divergence itself.

Also writes divergence_whole.txt, by `generalized_jsd_loss` over a whole vocabulary of 40 tokens, for the head's operation of every
device: a line with name and beta, then lines with the student's and the teacher's logits, the value, and the gradient.
"""

import json
import os

import torch
from trl.experimental.gkd.gkd_trainer import GKDTrainer
from trl.experimental.server_distillation.server_distillation_trainer import _add_tail_bucket

VOCABULARY = 12
# By name: the beta of TRL's.
DIVERGENCES = {"forward": 0.0, "reverse": 1.0, "jsd 0.5": 0.5, "jsd 0.1": 0.1, "jsd 0.9": 0.9}


def case(name, beta, k, student, teacher):
    student = student.clone().requires_grad_(True)
    lp, lq = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
    ids = lq.topk(k).indices
    buckets = [logps.gather(-1, ids) for logps in (lp, lq)]
    listed = [logps.detach().tolist() for logps in buckets]
    if k < VOCABULARY:
        valid = torch.ones(1, 1, k, dtype=torch.bool)
        buckets = [_add_tail_bucket(logps.view(1, 1, k), valid)[0].view(-1) for logps in buckets]
    p, q = buckets
    value = GKDTrainer.generalized_jsd_loss(p.view(1, 1, -1), q.view(1, 1, -1), beta=beta, reduction="sum")
    value.backward()
    return {
        "divergence": name.split()[0],
        "beta": beta,
        "ids": ids.tolist(),
        "student": listed[0],
        "teacher": listed[1],
        "logp": lp.detach().tolist(),
        "value": value.item(),
        "d_logits": student.grad.tolist(),
    }


torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
pairs = [(2 * torch.randn(VOCABULARY), 2 * torch.randn(VOCABULARY)) for _ in range(2)]
# A student that is sure of a token that the teacher finds unlikely, and one that is nearly its teacher.
pairs.append((torch.tensor([6.0] + [0.1 * v for v in range(11)]), torch.tensor([-4.0] + [0.3 * v for v in range(11)])))
pairs.append((pairs[0][1] + 0.01 * torch.randn(VOCABULARY), pairs[0][1]))
cases = [case(*how, k, *pair) for how in DIVERGENCES.items() for k in (1, 4, 12) for pair in pairs]



def whole(name, beta, student, teacher):
    student = student.clone().requires_grad_(True)
    value = GKDTrainer.generalized_jsd_loss(student.view(1, 1, -1), teacher.view(1, 1, -1), beta=beta, reduction="sum")
    value.backward()
    lines = [student.tolist(), teacher.tolist(), [value.item()], student.grad.tolist()]
    return "".join([f"{name.split()[0]} {beta}\n", *(" ".join(map(repr, line)) + "\n" for line in lines)])


WIDE = 40
wide = [(3 * torch.randn(WIDE), 3 * torch.randn(WIDE)) for _ in range(2)]
# A student that is sure of what the teacher finds impossible, and one that is nearly its teacher.
wide.append((torch.tensor([30.0] + [0.0] * (WIDE - 1)), torch.tensor([-20.0] + [0.05 * v for v in range(WIDE - 1)])))
wide.append((wide[0][1] + 0.01 * torch.randn(WIDE), wide[0][1]))
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "divergence_whole.txt"), "w") as file:
    file.writelines(whole(*how, *pair) for how in DIVERGENCES.items() for pair in wide)

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "divergence.json")
with open(path, "w") as file:
    json.dump({"cases": cases}, file)
    file.write("\n")
