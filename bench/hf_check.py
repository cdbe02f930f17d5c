#!/usr/bin/env python3
"""Checks that a trained directory gives the same greedy tokens in transformers as in Plimsoll, both in f32.

    python bench/hf_check.py DIR [--prompt TEXT ...] [--new-tokens 32] [--raw] [--binary target/release/plimsoll]

Prints one JSON object per prompt: the tokens of both and, if they differ, the first position that differs with the two
best logits of transformers there. A small margin is a near tie: the order of f32 sums decides it, not the weights. Exit
code 0 if every prompt agrees or differs at a near tie, else 1.

If the interpreter has no torch, the script restarts itself in bench/.venv-torch (installed if necessary).
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import environments

PROMPTS = ["What is the capital of France?", "12+34=", "Write one sentence about the sea.", "What is 47 + 38?"]
NEAR_TIE = 1e-3  # Logits are about 10; f32 rounding over 30 layers changes them by about 1e-5.


def main():
    args = arguments()
    if importlib.util.find_spec("transformers") is None:
        interpreter = str(environments.python("torch"))
        os.execv(interpreter, [interpreter, __file__, *sys.argv[1:]])
    theirs = Transformers(args)
    rows = [check(args, theirs, prompt) for prompt in args.prompt or PROMPTS]
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))
    agree = sum(row["agree"] for row in rows)
    near = sum(not row["agree"] and row["near_tie"] for row in rows)
    environments.say(f"{agree} of {len(rows)} prompts agree, {near} part at a near tie")
    return 0 if agree + near == len(rows) else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="a model directory that `plimsoll train` wrote")
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--raw", action="store_true", help="no chat template, even where the tokenizer has one")
    parser.add_argument("--binary", type=Path, default=environments.BENCH.parent / "target" / "release" / "plimsoll")
    args = parser.parse_args()
    if not (args.directory / "config.json").exists():
        parser.error(f"{args.directory} has no config.json")
    return args


def check(args, theirs, prompt):
    """Compares one prompt."""
    prompt_ids = theirs.prompt_ids(prompt)
    expected = theirs.greedy(prompt_ids)
    ours = plimsoll(args, prompt)
    wanted, got = (theirs.without_end(tokens) for tokens in (expected, ours["tokens"]))
    row = {"prompt": prompt, "agree": wanted == got, "transformers": expected, "plimsoll": ours["tokens"],
           "text": ours["text"]}
    if not row["agree"]:
        at = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), min(len(wanted), len(got)))
        best = theirs.two_best(prompt_ids + wanted[:at])
        margin = best[0][1] - best[1][1]
        row.update(first_difference=at, two_best_logits=best, margin=margin, near_tie=margin < NEAR_TIE)
    return row


def plimsoll(args, prompt):
    """Returns the output of `plimsoll generate --json`, greedy and in f32."""
    command = [args.binary, "generate", "--model", args.directory, "--prompt", prompt, "--json"]
    command += ["--raw"] if args.raw else []
    for setting in ["model_options.dtype=f32", "rollout.temperature=0.0", f"rollout.max_new_tokens={args.new_tokens}"]:
        command += ["--set", setting]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {args.binary} generate ended with exit code {done.returncode}")
    return json.loads(done.stdout)


class Transformers:
    """The model directory, loaded by transformers in f32."""

    def __init__(self, args):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch, self.args = torch, args
        self.tokenizer = AutoTokenizer.from_pretrained(args.directory)
        self.model = AutoModelForCausalLM.from_pretrained(args.directory, dtype=torch.float32).eval()
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends]) - {None}

    def prompt_ids(self, prompt):
        if self.tokenizer.chat_template is None or self.args.raw:
            return self.tokenizer(prompt)["input_ids"]
        messages = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def greedy(self, prompt_ids):
        """Returns the new tokens."""
        tokens = self.torch.tensor([prompt_ids])
        with self.torch.inference_mode():
            out = self.model.generate(
                tokens, attention_mask=self.torch.ones_like(tokens), do_sample=False,
                max_new_tokens=self.args.new_tokens, pad_token_id=0,
            )
        return out[0, len(prompt_ids) :].tolist()

    def two_best(self, tokens):
        """Returns [(token, logit)] of the two best next tokens."""
        with self.torch.inference_mode():
            logits = self.model(input_ids=self.torch.tensor([tokens])).logits[0, -1]
        best = logits.topk(2)
        return list(zip(best.indices.tolist(), best.values.tolist()))

    def without_end(self, tokens):
        """Removes the end token, which either program may or may not list."""
        return tokens[:-1] if tokens and tokens[-1] in self.ends else tokens


if __name__ == "__main__":
    sys.exit(main())
