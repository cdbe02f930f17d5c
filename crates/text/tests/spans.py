#!/usr/bin/env python3
"""Writes spans.json: two byte-level tokenizers that Hugging Face's library trained on these texts, and the groups into
which TRL 1.16 (`ULDLoss._align_by_byte_offsets`) puts their tokens, from the exact byte ends of each token.

TRL's own ends are those of characters, so a token that ends within one is counted to its end. Its last group takes what is
left on both sides, which whole texts do not have.
"""

import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from trl.experimental.gold.gold_trainer import ULDLoss

TEXTS = [
    "The planner sums the layouts, and the arena binds the same list of 1,024 regions.",
    "12+9=21, 120+99=219 and 1200+999=2199",
    "Größenordnung: 3 µm, naïve façade, Übermut — «ça va?»",
    "日本語のテキストと한국어, русский текст и ελληνικά",
    "emoji 😀😃 and 👩‍🚀, e\u0301 as two code points",
    "    indented\n\tdef f(x):\n        return x  # twice  \n\n",
    "a",
    " ",
]


def trained(size, before):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = before
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def byte_of():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(other)}


def encoded(tokenizer, text):
    """Ids with the byte range of each."""
    encoding, table, ranges, at = tokenizer.encode(text), byte_of(), [], 0
    for token in encoding.tokens:
        ranges.append((at, at + len(bytes(table[c] for c in token))))
        at = ranges[-1][1]
    assert at == len(text.encode())
    return encoding.ids, ranges


student = trained(330, pre_tokenizers.ByteLevel(add_prefix_space=False))
teacher = trained(
    420, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
)
cases = []
for text in TEXTS:
    (ours, our_ranges), (theirs, their_ranges) = encoded(student, text), encoded(teacher, text)
    groups = ULDLoss._align_by_byte_offsets(our_ranges, their_ranges)
    ends = [[s[-1] + 1, t[-1] + 1] for s, t in zip(*groups, strict=True)]
    cases.append({"text": text, "student": ours, "teacher": theirs, "ends": ends})

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spans.json")
with open(path, "w") as file:
    json.dump(
        {"student": json.loads(student.to_str()), "teacher": json.loads(teacher.to_str()), "cases": cases},
        file,
        ensure_ascii=False,
        separators=(",", ":"),
    )
    file.write("\n")
