"""Reward functions in the forms that TRL's documentation shows, with nothing changed for this project."""
import asyncio
import re


def longer(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def longer_ids(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def format_of_messages(completions, **kwargs):
    pattern = r"^<think>.*?</think>\s*<answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content, re.DOTALL) else 0.0 for content in contents]


def boxed(completions, ground_truth, **kwargs):
    matches = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]


def only_math(prompts, completions, task, ground_truth, **kwargs):
    rewards = []
    for completion, t, truth in zip(completions, task, ground_truth):
        rewards.append((1.0 if completion == truth else -1.0) if t == "math" else None)
    return rewards


async def async_reward(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 if completion else 0.0 for completion in completions]


def logs(completions, ground_truth, log_extra=None, log_metric=None, **kwargs):
    rewards = [1.0 if c == gt else 0.0 for c, gt in zip(completions, ground_truth)]
    if log_extra:
        log_extra("golden_answer", list(ground_truth))
    if log_metric:
        log_metric("accuracy", sum(rewards) / len(rewards) if rewards else 0.0)
    return rewards
