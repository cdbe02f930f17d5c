#!/usr/bin/env python3
"""Compares the loss curve of `method = "sft"` with that of transformers: same start, same rows, same order, both in f32.

    python bench/peers/sft.py [--binary target/release/plimsoll] [--steps 60] [--rows 32]

transformers creates a small Llama with random weights and saves it once; both programs open it. Rows are sums of
three-digit numbers as JSON lines, in the order of the file; the transformers code reads that file and the tokenizer
itself. Loss: mean of -log p over the completion tokens of a step, including the end of text. AdamW (0.9, 0.95), weight
decay, warm-up, cosine to the end, gradient norm 1. Writes results/sft.json and sft.md. Exit code 0 if every step agrees
within 1 %.

Needs torch, transformers and tokenizers (requirements-torch.txt). If the interpreter lacks them, the script restarts
itself in bench/.venv-torch (installed if necessary).
"""

import argparse
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))
import environments  # noqa: E402
import machine  # noqa: E402
import results  # noqa: E402

TOLERANCE = 0.01
LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 1e-3, 5, 0.1
BETAS, EPSILON, GRAD_CLIP = (0.9, 0.95), 1e-8, 1.0
NANO = BENCH.parent / "crates" / "files" / "assets" / "nano"

RUN = """method = "sft"
model  = "{model}"
[model_options]
dtype = "f32"
[data]
prompts = "{data}"
shuffle = false
[rollout]
prompts_per_step = {rows}
[train]
steps         = {steps}
learning_rate = {rate}
schedule      = "cosine"
warmup_steps  = {warm_up}
weight_decay  = {decay}
betas         = [0.9, 0.95]
grad_clip     = 1.0
[run]
device = "cpu"
dir    = "{dir}"
"""


def main():
    args = arguments()
    if importlib.util.find_spec("transformers") is None:
        interpreter = str(environments.python("torch"))
        os.execv(interpreter, [interpreter, __file__, *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rows = write_rows(folder / "rows.jsonl", args.steps * args.rows)
        make_model(folder / "model")
        theirs = transformers_losses(folder / "model", rows, args)
        ours = plimsoll_losses(folder, args)
    steps = [
        {"step": i + 1, "ours": a, "theirs": b, "differs_by": abs(a - b) / b} for i, (a, b) in enumerate(zip(ours, theirs))
    ]
    assert len(steps) == len(ours) == len(theirs) == args.steps
    worst = max(steps, key=lambda step: step["differs_by"])
    write(args, steps, worst)
    print(json.dumps({"worst": worst, "holds": worst["differs_by"] <= TOLERANCE}))
    return 0 if worst["differs_by"] <= TOLERANCE else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=BENCH.parent / "target" / "release" / "plimsoll")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=32, help="rows a step")
    return parser.parse_args()


def write_rows(path, count):
    """Writes sums of two numbers in training order."""
    numbers = random.Random(7)
    rows = []
    for _ in range(count):
        a, b = numbers.randrange(100, 1000), numbers.randrange(100, 1000)
        rows.append({"prompt": f"{a}+{b}=", "completion": str(a + b)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def make_model(folder):
    """Writes a model with the shape of the built-in one and random weights, and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    shape = json.loads((NANO / "config.json").read_text())
    keys = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "eos_token_id"]
    keys += ["num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"]
    LlamaForCausalLM(LlamaConfig(**{key: shape[key] for key in keys})).float().save_pretrained(folder)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        (folder / name).write_bytes((NANO / name).read_bytes())


def transformers_losses(folder, rows, args):
    """Returns the loss of each step before its update, from transformers and PyTorch."""
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.train()
    eos, losses = model.config.eos_token_id, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    for step in range(1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate_factor(step, args.steps)
        tokens, labels = batch(tokenizer, rows[(step - 1) * args.rows : step * args.rows], eos)
        logits = model(input_ids=tokens, attention_mask=(tokens >= 0).long()).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def batch(tokenizer, rows, eos):
    """Token ids [B, T], padded on the right where no loss reads them, and labels with -100 on prompts and padding."""
    import torch

    ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
    pairs = [(ids(row["prompt"]), [*ids(row["completion"]), eos]) for row in rows]
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    tokens, labels = torch.zeros(len(pairs), longest, dtype=torch.long), torch.full((len(pairs), longest), -100)
    for i, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        tokens[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
    return tokens, labels


def rate_factor(step, steps):
    """Returns the warm-up factor, then a cosine whose last step is above 0, as in Plimsoll."""
    if step <= WARM_UP:
        return step / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - 1 - WARM_UP) / max(steps - WARM_UP, 1)))


def plimsoll_losses(folder, args):
    """Returns the losses of Plimsoll."""
    run = RUN.format(
        model=folder / "model", data=folder / "rows.jsonl", rows=args.rows, steps=args.steps, rate=LEARNING_RATE,
        warm_up=WARM_UP, decay=WEIGHT_DECAY, dir=folder / "out",
    )
    (folder / "sft.toml").write_text(run)
    subprocess.run([str(args.binary), "train", str(folder / "sft.toml")], check=True, stdout=subprocess.DEVNULL)
    events = [json.loads(line) for line in (folder / "out" / "events.jsonl").read_text().splitlines()]
    return [event["metrics"]["loss"] for event in events if event["event"] == "step"]


def write(args, steps, worst):
    import torch
    import transformers

    result = {
        "command": f"python bench/peers/sft.py --steps {args.steps} --rows {args.rows}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "machine": machine.facts(),
        "tolerance": TOLERANCE,
        "holds": worst["differs_by"] <= TOLERANCE,
        "worst": worst,
        "steps": steps,
    }
    results.write(BENCH / "results" / "sft.json", result, page)


def page(result):
    """Renders the Markdown page."""
    steps, worst, versions = result["steps"], result["worst"], result["versions"]
    shown = [step for step in steps if step["step"] == 1 or step["step"] % 10 == 0]
    cells = lambda s: [str(s["step"]), f"{s['ours']:.6f}", f"{s['theirs']:.6f}", f"{s['differs_by']:.1e}"]  # noqa: E731
    table = "\n".join(results.table(["step", "Plimsoll", "transformers", "relative difference"], map(cells, shown)))
    holds = "holds" if result["holds"] else "does not hold"
    return f"""# The loss curve of `method = "sft"` next to transformers

Made by `{result["command"]}`; its head says what is done. torch {versions["torch"]}, transformers
{versions["transformers"]}, both sides in f32. {len(steps)} steps from the same random weights. The largest relative difference of a step's
loss is {worst["differs_by"]:.1e}, in step {worst["step"]} (at most {result["tolerance"]}: {holds}).

{table}

All steps: `sft.json`.
"""


if __name__ == "__main__":
    sys.exit(main())
