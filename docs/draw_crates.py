"""Draws the crates as floors: a crate uses only what is below it.

    python3 docs/draw_crates.py [TABLE] docs/images/crates.svg

Reads the rows `name <- what it may use` of TABLE (ARCHITECTURE.md unless given) and leaves out an edge where a longer path
says the same. A crate without a place in COLUMN is an error, so the picture cannot fall behind the table.
Standard library only.
"""

import sys
from pathlib import Path

# Where a crate is from left (0) to right (10). Its floor follows from the table.
COLUMN = {
    "plimsoll": 7.0, "bench": 5.9, "agent": 2.4, "rl": 5.1, "infer": 5.9, "run": 4.4, "plan": 4.9, "config": 3.5,
    "python": 0.3, "textenv": 2.6, "rollout": 4.3, "train": 5.3, "serve": 6.9, "tinker": 8.0,
    "collect": 0.7, "reward": 2.3, "model": 5.92, "cpu": 6.88, "cuda": 7.83, "devices": 6.4,
    "worker": 1.6, "ranks": 4.25, "text": 3.4, "device": 6.6, "launch": 8.6, "stacks": 9.12, "doctor": 10.07,
    "env": 0.5, "files": 3.3, "memory": 6.15, "algo": 5.13, "base": 5.0, "arch": 3.9, "images": 8.1, "grammar": 7.55,
}
# Floors above the lowest possible one, so that no line passes behind a box.
RAISED = {"agent": 2}
COLOURS = {
    "what everything uses": ("#eef1f4", "#66788a", "base arch memory algo files text images grammar"),
    "other people's code": ("#e6f4ea", "#3c8a57", "env worker reward collect textenv python"),
    "the engine": ("#e5f0f8", "#0b6e99", "device cpu cuda devices model rollout train"),
    "a run": ("#fdf3e1", "#b7791f", "ranks config plan run serve tinker infer rl agent bench plimsoll"),
    "runs elsewhere": ("#f3eafa", "#7b4fa3", "stacks doctor launch"),
}
WIDTH, BOX_W, BOX_H, FLOOR, LEFT, TOP = 900, 74, 28, 58, 50, 24
INK, SOFT = "#1b2733", "#9aa7b3"


def main():
    table = Path(sys.argv[1]) if len(sys.argv) > 2 else Path("ARCHITECTURE.md")
    uses = read(table.read_text())
    unknown = sorted(set(uses) - set(COLUMN))
    if unknown:
        sys.exit(f"no column for {', '.join(unknown)}: add them to COLUMN")
    Path(sys.argv[-1]).write_text(draw(uses))


def read(text):
    uses = {"base": set()}
    for line in text.splitlines():
        if "<-" in line and "`" not in line:
            name, below = line.split("<-")
            uses[name.strip()] = set(below.split())
    return uses


def reduced(uses):
    """The edges that no longer path implies."""
    def reach(name):
        return uses[name].union(*(reach(below) for below in uses[name]))
    return {name: {b for b in below if not any(b in reach(other) for other in below)} for name, below in uses.items()}


def draw(uses):
    floor = {}

    def height(name):
        if name not in floor:
            floor[name] = 1 + max(map(height, uses[name]), default=-1) + RAISED.get(name, 0)
        return floor[name]

    top = max(map(height, uses))
    place = {n: (LEFT + COLUMN[n] / 10 * (WIDTH - 2 * LEFT), TOP + (top - floor[n]) * FLOOR) for n in uses}
    edges = [curve(place[n], place[b]) for n, below in sorted(reduced(uses).items()) for b in sorted(below)]
    paint = {n: (fill, line) for fill, line, names in COLOURS.values() for n in names.split()}
    boxes = [box(n, *place[n], *paint[n]) for n in sorted(uses)]
    high = TOP + top * FLOOR + BOX_H + 56
    style = "font-family:system-ui,sans-serif;font-size:13px"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" style="{style}" role="img">'
    head += f'<title>The crates: each uses only what is below it</title><rect width="{WIDTH}" height="{high}" fill="#ffffff"/>'
    return "\n".join([head, *edges, *boxes, *legend(high - 22), "</svg>"]) + "\n"


def curve(above, below):
    (x1, y1), (x2, y2) = (above[0], above[1] + BOX_H), below
    bend = min((y2 - y1) / 2, 70)
    return (f'<path d="M{x1:.0f} {y1} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2}" '
            f'fill="none" stroke="{SOFT}" stroke-width="1.2"/>')


def box(name, x, y, fill, line):
    return (f'<rect x="{x - BOX_W / 2:.0f}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="5" fill="{fill}" stroke="{line}"/>'
            f'<text x="{x:.0f}" y="{y + 19}" fill="{INK}" text-anchor="middle">{name}</text>')


def legend(y):
    x = 60
    for words, (fill, line, _) in COLOURS.items():
        yield (f'<rect x="{x}" y="{y - 11}" width="14" height="14" rx="3" fill="{fill}" stroke="{line}"/>'
               f'<text x="{x + 20}" y="{y + 1}" fill="{INK}">{words}</text>')
        x += 48 + 7 * len(words)


if __name__ == "__main__":
    main()
