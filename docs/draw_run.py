"""Draws a finished run as SVG: accuracy on held-out prompts over steps, and memory against its plan.

    python3 docs/draw_run.py RUN_DIR OUT.svg

Reads events.jsonl and plan.json. Standard library only.
"""

import json
import sys
from pathlib import Path

W, H, LEFT, TOP, PLOT_W, PLOT_H = 900, 300, 52, 44, 350, 200
INK, SOFT, LINE, LOAD = "#1b2733", "#8a97a3", "#0b6e99", "#c23b22"


def main():
    run, out = Path(sys.argv[1]), Path(sys.argv[2])
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    plan = json.loads((run / "plan.json").read_text())
    parts = [accuracy(events), memory(plan, events)]
    style = "font-family:system-ui,sans-serif;font-size:12px"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" style="{style}" role="img">'
    out.write_text(svg + f'<rect width="{W}" height="{H}" fill="#ffffff"/>' + "".join(parts) + "</svg>\n")


def accuracy(events):
    evals = [(e["step"], e["score"]) for e in events if e["event"] == "eval"]
    last = max(step for step, _ in evals) or 1
    x = lambda step: LEFT + PLOT_W * step / last
    y = lambda score: TOP + PLOT_H * (1 - score)
    body = text(LEFT, 24, "accuracy on held-out prompts, greedy", INK, "600")
    for share in (0, 0.25, 0.5, 0.75, 1):
        body += rule(LEFT, y(share), LEFT + PLOT_W, y(share), "#e6eaee")
        body += text(LEFT - 8, y(share) + 4, f"{share:.0%}", SOFT, anchor="end")
    for step in (0, last // 2, last):
        body += text(x(step), TOP + PLOT_H + 18, str(step), SOFT, anchor="middle")
    body += text(LEFT + PLOT_W / 2, TOP + PLOT_H + 36, "step", SOFT, anchor="middle")
    points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in evals)
    body += f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="2.5"/>'
    for step, score in (evals[0], evals[-1]):
        body += f'<circle cx="{x(step):.1f}" cy="{y(score):.1f}" r="4" fill="{LINE}"/>'
        anchor = "start" if step == 0 else "end"
        body += text(x(step) + (8 if step == 0 else -8), y(score) + 20, f"{score:.1%}", INK, "600", anchor)
    return body


def memory(plan, events):
    host = plan["pools"]["host"]
    bars = [("resident", host["resident_bytes"]), *host["phase_bytes"].items()]
    peak = max(e.get("held_bytes", e["rss_bytes"]) for e in events if e["event"] == "step")
    line = host["peak_bytes"]
    left, top = LEFT + PLOT_W + 90, TOP
    y = lambda b: top + PLOT_H * (1 - b / (line * 1.15))
    body = text(left, 24, "host memory: planned by phase, and measured", INK, "600")
    width = PLOT_W / (len(bars) + 1)
    for i, (name, size) in enumerate([*bars, ("measured", peak)]):
        at = left + i * width
        colour = LINE if name == "measured" else "#bcd7e3"
        body += f'<rect x="{at + 6:.1f}" y="{y(size):.1f}" width="{width - 12:.1f}" height="{top + PLOT_H - y(size):.1f}" fill="{colour}"/>'
        ink = "#ffffff" if name == "measured" else INK
        body += text(at + width / 2, y(size) + 18, f"{size / 2**20:.0f} MiB", ink, anchor="middle")
        body += text(at + width / 2, top + PLOT_H + 18, name, SOFT, anchor="middle")
    body += rule(left, y(line), left + PLOT_W, y(line), LOAD, 2)
    body += text(left + PLOT_W, y(line) - 8, "load line", LOAD, "600", "end")
    return body


def text(x, y, words, colour, weight="400", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-weight="{weight}" text-anchor="{anchor}">{words}</text>'


def rule(x1, y1, x2, y2, colour, width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


if __name__ == "__main__":
    main()
