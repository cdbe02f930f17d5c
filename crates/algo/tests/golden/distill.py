#!/usr/bin/env python3
"""Writes distill.json: reverse KLs of a student from a teacher over three tokens, and their gradients, in f64 by definition.

Two positions: the first token has one distribution, the second one for each first token.
"""

import json
import math
import os

STUDENT = [[0.3, -0.8, 0.5], [1.2, 0.0, -0.4], [-0.6, 0.9, 0.1], [0.2, 0.2, -1.5]]
TEACHER = [[-0.2, 0.4, 0.9], [0.1, 0.7, -0.3], [1.1, -0.5, 0.0], [-0.9, 0.6, 0.8]]
COEF = 1.5


def log_softmax(logits):
    top = math.log(math.fsum(math.exp(z) for z in logits))
    return [z - top for z in logits]


rows = []
for student, teacher in zip(STUDENT, TEACHER):
    lp, lq = log_softmax(student), log_softmax(teacher)
    p = [math.exp(l) for l in lp]
    kl = math.fsum(p[k] * (lp[k] - lq[k]) for k in range(3))
    # d KL / d z_k = p_k (log p_k - log q_k - KL).
    rows.append({
        "student": student,
        "teacher": teacher,
        "logp": lp,
        "teacher_logp": lq,
        "advantages": [-COEF * (lp[k] - lq[k]) for k in range(3)],
        "kl": kl,
        "d_kl": [p[k] * (lp[k] - lq[k] - kl) for k in range(3)],
    })

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distill.json")
with open(path, "w") as file:
    json.dump({"coef": COEF, "rows": rows}, file, indent=1)
    file.write("\n")
