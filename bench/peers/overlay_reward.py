"""The reward of overlay.py, in TRL's form: Plimsoll and its peers run a copy of this one file.

1 where the last number of a completion is the answer; otherwise half the share of the answer's digits that stand in
their place, so that rewards of a group take many values. The metric `accuracy` is the share of right answers. If a
file `samples.jsonl` lies next to the copy, what was graded is added to it: a peer can then learn from the same
samples.
"""

import json
import re
from pathlib import Path


def reward(prompts, completions, completion_ids, ground_truth, log_metric=None, **_):
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    numbers = [(re.findall(r"\d+", text) or [""])[-1] for text in texts]
    right = [float(number == answer) for number, answer in zip(numbers, ground_truth)]
    if log_metric:
        log_metric("accuracy", sum(right) / len(right))
    keep(prompts, completion_ids)
    return [one or closeness(number, answer) for one, number, answer in zip(right, numbers, ground_truth)]


def closeness(number, answer):
    if len(number) != len(answer):
        return 0.0
    return 0.5 * sum(a == b for a, b in zip(number, answer)) / len(answer)


def keep(prompts, completion_ids):
    path = Path(__file__).with_name("samples.jsonl")
    if path.exists():
        lines = [json.dumps([prompt, list(ids)]) + "\n" for prompt, ids in zip(prompts, completion_ids)]
        with path.open("a") as file:
            file.write("".join(lines))
