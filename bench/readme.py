#!/usr/bin/env python3
"""Writes the tables of one GPU in docs/speed.md and README.md from results/h200.json: bench/readme.py

A table stands between two comments. test_results.py compares, so a table of other numbers is refused.
"""

import json
import re

import environments

START, END = "<!-- bench/readme.py -->\n", "<!-- end of bench/readme.py -->\n"
SHORT = {"smollm2-135m": "135M", "qwen2.5-0.5b": "0.5B", "qwen2.5-1.5b": "1.5B", "qwen2.5-3b": "3B", "qwen2.5-7b": "7B"}
PEERS = {"compile": "torch.compile", "liger": "Liger"}
VLLM = ", vLLM without log-probabilities", ", vLLM with log-probabilities"
# Words of the table; a row's name, or its beginning and its end; the parts that it may be of.
LINES = [
    ("rollout, 64 sequences, 64 + 256 tokens", "rollout 64 x (64 + 256)" + VLLM[0], "peers-"),
    ("the same, vLLM returns log-probabilities too", "rollout 64 x (64 + 256)" + VLLM[1], "peers-"),
    ("rollout, 256 sequences, 64 + 256 tokens", "rollout 256 x (64 + 256)" + VLLM[0], "peers-"),
    ("the same, vLLM returns log-probabilities too", "rollout 256 x (64 + 256)" + VLLM[1], "peers-"),
    ("rollout, 256 sequences, 64 + 256 tokens", "rollout 256 x (64 + 256)", "rollout"),
    ("training, 4 x 1024 tokens", "training 4 x 1024, recompute cheap", "train"),
    ("its peak device memory", "training 4 x 1024, recompute cheap: peak device memory", "train"),
    ("GRPO step, 32 x 8 samples of 256 tokens", "GRPO step 32 x 8 x (64 + 256)", "step"),
    ("the same with adapters of rank 32", "GRPO step 32 x 8 x (64 + 256), LoRA of rank 32", "lora-step"),
]


# The three of the README, which say how the peer was set.
README_LINES = [
    ("rollout, 64 sequences, 64 + 256 tokens, both with log-probabilities", *LINES[1][1:]),
    ("GRPO step, 32 x 8 samples of 256 tokens, TRL with transformers' generate", *LINES[7][1:]),
    ("the same with adapters of rank 32", *LINES[8][1:]),
]
PAGES = {"docs/speed.md": LINES, "README.md": README_LINES}


def render(found, lines):
    """Returns the block's lines: the table, and the builds and days that it is of."""
    out = ["| | Plimsoll | peer, same run | ratio |", "|---|---|---|---|"]
    used = set()
    for words, what, part in lines:
        rows = [row for row in found["rows"] if row["what"] == what and row["part"].startswith(part) and row["peer"]]
        rows.sort(key=lambda row: list(SHORT).index(row["model"]))
        used |= {row["part"] for row in rows}
        if rows:
            out.append(line(words, rows))
    return "\n".join([*out, "", closing({name: found["parts"][name] for name in sorted(used)})]) + "\n"


def line(words, rows):
    unit = rows[0]["unit"]
    models = " / ".join(SHORT[row["model"]] for row in rows)
    names = sorted({PEERS.get(row["peer_name"], row["peer_name"]) for row in rows})
    ours, theirs = (" / ".join(short(row[key], unit) for row in rows) for key in ("ours", "peer"))
    ratios = " / ".join(f"{row['ratio']:.2f}x" if row["ratio"] < 10 else f"{row['ratio']:.0f}x" for row in rows)
    return f"| {words}, {models}, {unit} | {ours} | {' or '.join(names)} {theirs} | {ratios} |"


def short(value, unit):
    if unit == "tokens/s":
        return f"{value / 1000:.0f}k" if value >= 100e3 else f"{value / 1000:.1f}k"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def closing(parts):
    """Returns which builds the parts are of, and when and on which card they ran."""
    builds = {}
    for name, part in parts.items():
        builds.setdefault((part["when"].split()[0], part["commit"], part["gpu"].get("name", "no card")), []).append(name)
    if len(builds) == 1:
        ((day, commit, card),) = builds
        return f"All of one build ({commit}), one day ({day}) and one card ({card})."
    said = "; ".join(f"{', '.join(names)}: {commit}, {day}, {card}" for (day, commit, card), names in sorted(builds.items()))
    return f"Parts with their builds, days and cards: {said}."


def replaced(page, text, found):
    """Returns a page's text with its table of `found`. The page must have both comments."""
    block = re.compile(re.escape(START) + ".*?" + re.escape(END), re.S)
    if not block.search(text):
        raise SystemExit(f"{page} has no {START.strip()} and {END.strip()}")
    return block.sub(lambda _: START + render(found, PAGES[page]) + END, text)


def main():
    found = json.loads((environments.BENCH / "results" / "h200.json").read_text())
    for page in PAGES:
        path = environments.BENCH.parent / page
        path.write_text(replaced(page, path.read_text(), found))


if __name__ == "__main__":
    main()
