#!/usr/bin/env python3
"""Model families: the golden error, exactness, speed, and the plan against the truth, in one table.

    bench/models.py BINARY golden                   # runs the tests against transformers: needs cargo and a checkout
    bench/models.py BINARY exact [--device cuda]    # bench exactness of every tiny model, with and without --perturb
    bench/models.py BINARY greedy                   # 300 greedy tokens of every tiny model, here and in transformers
    bench/models.py BINARY speed [--device cuda]    # rollout and training of published shapes with random weights

Each part adds its rows to bench/results/models.json (rows of other parts and devices stay) and renders models.md next to it. --results
names another folder, --only some models. `greedy` runs in an environment with torch (see environments.py), installed if necessary.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import environments

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "crates/model/tests/golden"
# (tiny model, what it stands for)
TINY = {
    "llama": "Llama, SmolLM2",
    "llama3_rope": "Llama 3",
    "qwen2": "Qwen2.5",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "mistral_window": "Mistral with a window",
    "qwen2_window": "Qwen2 with windows",
    "qwen2_yarn": "Qwen2.5 with YaRN",
    "qwen3_yarn": "Qwen3 with YaRN",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_moe_mixed": "Qwen3-MoE with dense layers",
    "qwen3_5": "Qwen3.5",
    "qwen3_5_wide": "Qwen3.5, two heads of values a key",
    "smollm3": "SmolLM3",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "granite": "Granite 3",
    "llama_bias": "Llama with biases",
    "phi3": "Phi-3",
    "phi4_mini": "Phi-4 mini",
    "phi4_mini_long": "Phi-4 mini, long factors",
    "qwen3_5_moe": "Qwen3.5-MoE",
    "qwen3_next": "Qwen3-Next",
    "glm4_moe": "GLM-4.5",
    "glm4_moe_groups": "GLM-4.5 with groups of experts",
    "deepseek_v3": "DeepSeek V3, Kimi K2",
    "moonlight": "Moonlight",
    "glm4_moe_lite": "GLM-4.7-Flash",
    "ministral3": "Ministral 3",
    "ministral3_window": "Ministral 3 with a window",
    "gemma4": "Gemma 4 31B",
    "gemma4_own": "Gemma 4, values of their own",
    "gpt_oss": "gpt-oss",
    "gpt_oss_mxfp4": "gpt-oss with experts in MXFP4",
}
# Shapes on a card; the first ones are what the others are compared with.
CARD_SHAPES = ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3.5-0.8b", "qwen3.5-4b", "olmo-2-1b", "gemma-3-1b", "granite-3.3-2b", "smollm3-3b", "gemma-3-4b", "olmo-3-7b",
               "qwen3-30b-a3b"]
# Those whose weights are frozen, because states of all do not fit a card: what is trained, and the words for it.
FROZEN = {"olmo-3-7b": ("LoRA 32", ["--lora-rank", 32]),
          "qwen3-30b-a3b": ("LoRA 16, recompute layer", ["--lora-rank", 16, "--recompute", "layer"])}
CPU_SHAPES = ["smollm2-135m"]
# Sequences, tokens of a prompt, tokens of a response; and of training batches, sequences and tokens.
CARD_WORK = ((64, 64, 256), (4, 1024))
CPU_WORK = ((8, 64, 64), (2, 256))

# Their divisors follow from the run's longest sequence, those of transformers from the one at hand.
NOT_GREEDY = {"phi4_mini", "phi4_mini_long"}
GREEDY_PROMPTS, GREEDY_TOKENS = ["w3 w5 w7", "w40 w41 w42 w43 w44 w45", "w1"], 300


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("part", choices=["golden", "exact", "greedy", "speed"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    if args.part == "greedy" and importlib.util.find_spec("transformers") is None:
        interpreter = str(environments.python("torch"))
        os.execv(interpreter, [interpreter, __file__, *sys.argv[1:]])
    part = {"golden": golden, "exact": exact, "greedy": greedy, "speed": speed}[args.part]
    stamp = {"commit": args.commit or commit(), "date": time.strftime("%Y-%m-%d"), "device": device_name(args.device)}
    for row in part(args.binary, args.device, names):
        keep({**row, "part": args.part, **stamp}, args.results)
    render(args.results)


def commit():
    out = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    return out.stdout.strip() or "unknown"


def device_name(device):
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return re.search(r"model name\s*: (.*)", text)[1].strip()


def golden(_binary, _device, names):
    """The largest differences that the tests against transformers print."""
    command = ["cargo", "test", "-p", "plimsoll-model", "--test", "it", "golden", "--", "--nocapture", "--test-threads=1"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(out.stdout + out.stderr)
    differences = {}
    for name, what, number in re.findall(r"golden (\w+): (\w+) differ by at most ([\d.e-]+)", out.stdout + out.stderr):
        of = differences.setdefault(name, {})
        of[what] = max(of.get(what, 0.0), float(number))
    for name in names or TINY:
        yield {"name": name, **differences[name]}


def exact(binary, device, names):
    for name in names or TINY:
        for dtype in ["bf16", "f32"]:
            run = [binary, "bench", "exactness", "--model", GOLDEN / name, "--dtype", dtype, "--device", device, "--json"]
            found, perturbed = (ask(run + more) for more in ([], ["--perturb"]))
            yield {"name": name, "dtype": dtype, "tokens": found["tokens"], "mismatches": found["mismatches"],
                   "perturbed_mismatches": perturbed["mismatches"]}


def greedy(binary, device, names):
    """Tokens until the first that differs. A margin of logits under `hf_check.NEAR_TIE` there is a near tie: the order of sums decides it."""
    import hf_check

    for name in names or [name for name in TINY if name not in NOT_GREEDY]:
        with tempfile.TemporaryDirectory() as folder:
            of = argparse.Namespace(directory=with_words(name, Path(folder) / name), raw=True, new_tokens=GREEDY_TOKENS, binary=binary)
            theirs = theirs_of_words(of)
            rows = [hf_check.check(of, theirs, prompt) for prompt in GREEDY_PROMPTS]
            equal = min(row.get("first_difference", GREEDY_TOKENS) for row in rows)
            yield {"name": name, "tokens": GREEDY_TOKENS, "equal": equal, "near_tie": all(row.get("near_tie", True) for row in rows)}


def theirs_of_words(of):
    """Loads a model of `with_words` in transformers, whose tokenizer of some families reads no words."""
    import hf_check

    class OfWords(hf_check.Transformers):
        def prompt_ids(self, prompt):
            return [int(word[1:]) for word in prompt.split()]

    return OfWords(of)


def with_words(name, folder):
    """Copies a tiny model, gives it a word for each token, and takes its end away, so that a response has all tokens asked for."""
    shutil.copytree(GOLDEN / name, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    inner = config.get("text_config", config)
    for keys in (config, inner):
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            keys[key] = None
    inner["max_position_embeddings"] = max(inner["max_position_embeddings"], 2 * GREEDY_TOKENS)
    if inner["model_type"] == "olmo3":
        # transformers 5 takes 500,000 as the base of window layers where the older form is read, whatever it says.
        rule, base = inner.pop("rope_scaling"), inner.pop("rope_theta")
        inner["rope_parameters"] = {"full_attention": {**rule, "rope_theta": base},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": base}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = {f"w{token}": token for token in range(inner["vocab_size"])}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
                 "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


def speed(binary, device, names):
    shapes, (rollout, train) = (CARD_SHAPES, CARD_WORK) if device == "cuda" else (CPU_SHAPES, CPU_WORK)
    for name in names or shapes:
        of = ["--model", f"random:{name}", "--device", device, "--json"]
        work = ["--sequences", rollout[0], "--prompt-tokens", rollout[1], "--new-tokens", rollout[2]]
        yield {"name": name, "what": "rollout", "work": list(rollout), **measured([binary, "bench", "rollout", *work, *of])}
        work = ["--batch", train[0], "--seq", train[1]]
        kind, words = FROZEN.get(name, ("", []))
        yield {"name": name, "what": f"training, {kind}" if kind else "training", "work": list(train),
               **measured([binary, "bench", "train", *work, *words, *of])}


def measured(command):
    found = ask(command)
    return {key: found.get(key) for key in ["median", "min", "max", "share_of_peak", "peak_bytes", "planned_bytes"]}


def ask(command):
    out = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if out.returncode not in (0, 1) or not out.stdout.strip():
        sys.exit(f"{' '.join(map(str, command))}\n{out.stderr}")
    return json.loads(out.stdout.strip().splitlines()[-1])


def keep(row, results):
    results.mkdir(parents=True, exist_ok=True)
    path = results / "models.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    same = ["part", "name", "device", "dtype", "what"]
    rows = [other for other in rows if any(other.get(key) != row.get(key) for key in same)] + [row]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row), flush=True)


def render(results):
    rows = json.loads((results / "models.json").read_text(encoding="utf-8"))
    of = lambda part: [row for row in rows if row["part"] == part]
    lines = ["# Model families", "", "`bench/models.py` writes this page from models.json next to it. Each number is of one run; see",
             "[docs/models.md](../../docs/models.md) for what runs and what is refused.", "",
             "## Against transformers", "", "The largest difference over three sequences, float32; the tests' limits are next to them in their source.", "",
             "| tiny model | stands for | log-probs | entropies | gradients | on | commit |", "|---|---|---|---|---|---|---|"]
    for row in of("golden"):
        numbers = " | ".join(f"{row[what]:.1e}" for what in ["logprobs", "entropies", "gradients"])
        lines.append(f"| {row['name']} | {TINY[row['name']]} | {numbers} | {row['device']} | {row['commit']} |")
    lines += ["", "## Greedy tokens", "", "Three prompts, float32: tokens until the first that differs from transformers; a near tie is a margin of logits under 0.001.", "",
              "| tiny model | tokens | equal | near tie | commit |", "|---|---|---|---|---|"]
    for row in of("greedy"):
        tie = "" if row["equal"] == row["tokens"] else ["no", "yes"][row["near_tie"]]
        lines.append(f"| {row['name']} | {row['tokens']} | {row['equal']} | {tie} | {row['commit']} |")
    lines += ["", "## Rollout and update, bit by bit", "", "`bench exactness`: log-probabilities of the rollout that differ from the trainer's; and with one order of sums changed on purpose.", "",
              "| tiny model | dtype | on | tokens | mismatches | perturbed | commit |", "|---|---|---|---|---|---|---|"]
    for row in of("exact"):
        lines.append(f"| {row['name']} | {row['dtype']} | {row['device']} | {row['tokens']} | {row['mismatches']} | "
                     f"{row['perturbed_mismatches']} | {row['commit']} |")
    lines += ["", "## Speed of published shapes, random weights", "", "Tokens a second, median of three; the host memory that the process held at most, against its plan (the plan of a card's memory is what its arena binds).", "",
              "| shape | work | on | tokens/s | of the peak | host held | host planned | commit |", "|---|---|---|---|---|---|---|---|"]
    for row in of("speed"):
        work = " x ".join(map(str, row["work"]))
        gib = [f"{row[key] / 2**30:.2f} GiB" for key in ["peak_bytes", "planned_bytes"]]
        lines.append(f"| {row['name']} | {row['what']} {work} | {row['device']} | {row['median']:,.0f} | "
                     f"{row['share_of_peak'] * 100:.0f} % | {gib[0]} | {gib[1]} | {row['commit']} |")
    (results / "models.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
