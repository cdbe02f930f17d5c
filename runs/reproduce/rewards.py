"""Rewards of the reproductions, in TRL's form."""
import difflib
import re


def final_text(message):
    """Returns the text of a prompt: a string, or the last message of a conversation."""
    return message if isinstance(message, str) else message[-1]["content"]


def gsm8k_strict(completions, answer, **columns):
    """1 if the first number after `####` is that of the worked solution; without `####` 0, as verl scores GSM8K."""
    scores = []
    for completion, solution in zip(completions, answer):
        found = re.search(r"#### (-?[0-9.,]+)", final_text(completion))
        right = solution.rsplit("####", 1)[-1].strip().replace(",", "")
        scores.append(float(found is not None and found.group(1).replace(",", "").rstrip(".") == right))
    return scores


def reversed_text(prompts, completions, **columns):
    """The share of characters that the text in <reversed_text> has in common with the reversed prompt."""
    scores = []
    for prompt, completion in zip(prompts, completions):
        found = re.findall(r"<reversed_text>(.*?)</reversed_text>", final_text(completion), re.DOTALL)
        given = found[-1].strip() if found else ""
        scores.append(difflib.SequenceMatcher(None, given, final_text(prompt)[::-1]).ratio())
    return scores


def reversal(completions, ground_truth, **columns):
    """The share of characters that an answer has in common with the right one, without tags."""
    pairs = zip(completions, ground_truth)
    return [difflib.SequenceMatcher(None, text.strip(), truth).ratio() for text, truth in pairs]


def countdown(prompts, completions, **columns):
    """1 if `82+74` has the value before the first `=` of `156=82 94 74=`, and each number of it is used once at most."""
    scores = []
    for prompt, completion in zip(prompts, completions):
        target, numbers = prompt.rstrip("=").split("=")
        left, used = numbers.split(), completion.strip().split("+")
        right = all(number.isascii() and number.isdigit() for number in used)
        for number in used if right else []:
            right = right and number in left
            left = left[:left.index(number)] + left[left.index(number) + 1:] if right else left
        scores.append(float(right and sum(map(int, used)) == int(target)))
    return scores
