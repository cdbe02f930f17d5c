"""Draws two programs' runs of a job as SVG, or one program's in two ways: one panel a metric, both programs' mean over seeds with the range of the seeds.

Standard library only; the same numbers give the same bytes.
"""

WIDTH, HEIGHT, COLUMNS = 288, 150, 3
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 24, 22
INK, SOFT, GRID = "#1b2733", "#8a97a3", "#e6eaee"
COLOURS = {"ours": "#0b6e99", "theirs": "#c23b22"}
POINTS_MAX = 50  # A panel is 226 wide; more points than this are not seen.


def draw(curves, peer, ours="Plimsoll"):
    """Returns the picture. `curves`: metric -> {"ours", "theirs"} -> [mean, least, greatest] for each step."""
    rows = -(-len(curves) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + 28
    body = legend(peer, ours)
    for at, (name, both) in enumerate(curves.items()):
        x, y = at % COLUMNS * WIDTH, at // COLUMNS * HEIGHT + 28
        body += f'<g transform="translate({x},{y})">{panel(name, both)}</g>\n'
    style = "font-family:system-ui,sans-serif;font-size:11px"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{style}" role="img">'
    return f'{head}<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}</svg>\n'


def legend(peer, ours):
    said = {"ours": ours, "theirs": f"{peer}, dashed"}
    marks = ""
    for at, (name, words) in enumerate(said.items()):
        x = LEFT + 150 * at
        marks += f'<path d="M{x} 16h24" stroke="{COLOURS[name]}" stroke-width="2"{dash(name)}/>'
        marks += text(x + 30, 20, words, INK)
    return marks + "\n"


def panel(name, both):
    every = [value for rows in both.values() for row in rows for value in row]
    low, high = min(every), max(every)
    room = (high - low or abs(high) or 1.0) * 0.06
    low, high = low - room, high + room
    last = max(len(both["ours"]) - 1, 1)
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last  # noqa: E731
    y = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)  # noqa: E731
    body = text(LEFT, 16, name.replace("_", " "), INK, "600")
    for share in (0, 0.5, 1):
        value = low + room + share * (high - low - 2 * room)
        body += f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        body += text(LEFT - 6, y(value) + 4, f"{value:.3g}", SOFT, anchor="end")
    body += text(LEFT, HEIGHT - 6, "1", SOFT) + text(WIDTH - RIGHT, HEIGHT - 6, f"step {last + 1}", SOFT, anchor="end")
    for program, rows in both.items():
        steps = chosen(len(rows))
        at = lambda column, order: " ".join(f"{x(i):.1f},{y(rows[i][column]):.1f}" for i in order)  # noqa: B023, E731
        colour = COLOURS[program]
        body += f'<polygon points="{at(2, steps)} {at(1, steps[::-1])}" fill="{colour}" opacity="0.15"/>'
        body += f'<polyline points="{at(0, steps)}" fill="none" stroke="{colour}" stroke-width="1.6"{dash(program)}/>'
    return body


def chosen(count):
    """Returns which steps are drawn: all, or evenly POINTS_MAX of them with the first and the last."""
    if count <= POINTS_MAX:
        return list(range(count))
    return sorted({round(i * (count - 1) / (POINTS_MAX - 1)) for i in range(POINTS_MAX)})


def dash(program):
    return ' stroke-dasharray="5 4"' if program == "theirs" else ""


def text(x, y, words, colour, weight="400", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-weight="{weight}" text-anchor="{anchor}">{words}</text>'
