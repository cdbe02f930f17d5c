"""Draws what a run over images answered as it learnt, as SVG: an image of some kept steps with the most frequent of the
responses to it, over the mean reward of all steps.

    python3 docs/draw_pictures.py RUN_DIR OUT.svg

Reads samples/ and events.jsonl. Standard library only.
"""

import base64
import json
import sys
from collections import Counter
from pathlib import Path

W, LEFT, PICTURE, GAP, PLOT_TOP, PLOT_H = 900, 52, 60, 8, 150, 130
INK, SOFT, LINE, RIGHT, WRONG = "#1b2733", "#8a97a3", "#0b6e99", "#2e7d4f", "#c23b22"


def main():
    run, out = Path(sys.argv[1]), Path(sys.argv[2])
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    rewards = [(e["step"], e["reward"]) for e in events if e["event"] == "step" and e["reward"] is not None]
    height = PLOT_TOP + PLOT_H + 44
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {height}" style="font-family:system-ui,sans-serif;font-size:12px" role="img">'
    body = f'<rect width="{W}" height="{height}" fill="#ffffff"/>' + pictures(run) + curve(rewards)
    out.write_text(svg + body + "</svg>\n")


def pictures(run):
    """One image of each kept step, as many as fit."""
    files = sorted((run / "samples").glob("step-*.jsonl"))
    most = (W - LEFT - GAP) // (PICTURE + GAP)
    chosen = [files[i * (len(files) - 1) // (min(most, len(files)) - 1)] for i in range(min(most, len(files)))]
    body = text(LEFT, 22, "images of a run, what the model answered most often, and the step", INK, "600")
    for number, file in enumerate(chosen):
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        sample = samples[0]
        of_prompt = [one["response"] for one in samples if one["prompt_index"] == sample["prompt_index"]]
        png = (run / "samples" / sample["images"][0]["file"]).read_bytes()
        x = LEFT + number * (PICTURE + GAP)
        data = base64.b64encode(png).decode()
        body += f'<image x="{x}" y="36" width="{PICTURE}" height="{PICTURE}" href="data:image/png;base64,{data}"/>'
        said, answer = Counter(of_prompt).most_common(1)[0][0].strip(), str(sample.get("answer", sample.get("ground_truth")))
        shown = said if said.isascii() and said.isprintable() and said else "?"
        words = shown if said == answer else f"{shown}, not {answer}"
        body += text(x + PICTURE / 2, 112, words, RIGHT if said == answer else WRONG, "600", "middle")
        body += text(x + PICTURE / 2, 128, str(sample["step"]), SOFT, anchor="middle")
    return body


def curve(rewards):
    """The mean reward over windows of a fiftieth of the run."""
    last = rewards[-1][0]
    window = max(len(rewards) // 50, 1)
    means = [
        (part[-1][0], sum(reward for _, reward in part) / len(part))
        for part in (rewards[i : i + window] for i in range(0, len(rewards), window))
    ]
    top = max(reward for _, reward in means)
    width = W - LEFT - 2 * GAP
    y = lambda reward: PLOT_TOP + PLOT_H * (1 - reward / top)
    body = ""
    for share in (0, 0.5, 1):
        body += f'<line x1="{LEFT}" y1="{y(share * top):.1f}" x2="{LEFT + width}" y2="{y(share * top):.1f}" stroke="#e6eaee"/>'
        body += text(LEFT - 8, y(share * top) + 4, f"{share * top:.2f}", SOFT, anchor="end")
    for step in (0, last // 2, last):
        body += text(LEFT + width * step / last, PLOT_TOP + PLOT_H + 18, str(step), SOFT, anchor="middle")
    body += text(LEFT + width / 2, PLOT_TOP + PLOT_H + 36, "mean reward by step", SOFT, anchor="middle")
    points = " ".join(f"{LEFT + width * step / last:.1f},{y(reward):.1f}" for step, reward in means)
    return body + f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="2.5"/>'


def text(x, y, words, fill, weight="400", anchor="start"):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-weight="{weight}" text-anchor="{anchor}">{words}</text>'


if __name__ == "__main__":
    main()
