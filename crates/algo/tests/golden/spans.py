#!/usr/bin/env python3
"""Writes spans.json: reverse KLs of a student from a teacher with other tokens over texts of two letters, a or b, in f64
by definition, and their derivatives by the student's logits by differences of fourth order.

`letters`: a token a letter, of which the second depends on the first. `pairs`: a token for each text.
"""

import json
import math
import os

LETTERS = [[[0.4, -0.3], [1.1, 0.2], [-0.7, 0.5]], [[-0.2, 0.6], [0.1, -0.8], [0.9, 0.3]]]
PAIRS = [[0.3, -0.9, 0.5, 1.0], [-0.4, 0.8, 0.0, 0.6]]
COEF = 1.5
STEP = 1e-3
TEXTS = [(first, second) for first in range(2) for second in range(2)]


def log_softmax(logits):
    top = math.log(math.fsum(math.exp(z) for z in logits))
    return [z - top for z in logits]


def letters(logits):
    """The log-probs of the tokens of each text."""
    of = [log_softmax(row) for row in logits]
    return [[of[0][first], of[1 + first][second]] for first, second in TEXTS]


def pairs(logits):
    of = log_softmax(logits[0])
    return [[of[2 * first + second]] for first, second in TEXTS]


def kl(student, teacher):
    p, q = [math.fsum(l) for l in student], [math.fsum(l) for l in teacher]
    return math.fsum(math.exp(p[i]) * (p[i] - q[i]) for i in range(4))


def derivatives(of, logits, teacher):
    def at(row, k, by):
        moved = [list(r) for r in logits]
        moved[row][k] += by
        return kl(of(moved), teacher)

    def one(row, k):
        near, far = (at(row, k, by) - at(row, k, -by) for by in (STEP, 2 * STEP))
        return (8 * near - far) / (12 * STEP)

    return [[one(row, k) for k in range(len(logits[row]))] for row in range(len(logits))]


cases = []
for name, of, logits, teacher in [
    ("letters", letters, LETTERS[0], pairs([PAIRS[0]])),
    ("pairs", pairs, [PAIRS[1]], letters(LETTERS[1])),
]:
    cases.append({
        "name": name,
        "probabilities": [[math.exp(l) for l in log_softmax(row)] for row in logits],
        "logp": of(logits),
        "teacher_logp": teacher,
        "kl": kl(of(logits), teacher),
        "d_kl": derivatives(of, logits, teacher),
    })

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spans.json")
with open(path, "w") as file:
    json.dump({"coef": COEF, "cases": cases}, file, indent=1)
    file.write("\n")
