"""What h200.py found: rows with their verdicts, the JSON file they are kept in, and the Markdown page made from it.

A part that is measured again replaces its own rows and leaves the others'. A row's `floor` is in the row's unit, also
where it comes from a ratio to a peer (`ratio_floor`), so `holds` can be told from `ours` and `floor` alone: `ours` is
to be at least the floor, or at most where `better` is `less`. `holds` is null where no floor was set or known.
"""

import json
from results import GIB

MIB = 2**20
PLAN_ABOVE_SHARE = 0.02  # A plan may be so much above the truth,
PLAN_ABOVE_BYTES = 256 * MIB  # or so much; never below.
KERNELS_SHOWN = 12


def row(part, what, model, unit, ours, peer=None, floor=None, ratio_floor=None, better="more", **facts):
    """One comparison. `ours`, `peer`: numbers, or None where that one did not run; `facts` are kept beside it."""
    asked = floor is not None or ratio_floor is not None
    if ratio_floor is not None and peer:
        floor = peer * ratio_floor if better == "more" else peer / ratio_floor
    ratio = None
    if ours and peer:
        ratio = ours / peer if better == "more" else peer / ours
    holds = None
    if asked and ours is None:
        holds = False
    elif floor is not None:
        holds = ours >= floor if better == "more" else ours <= floor
    return {
        "part": part, "what": what, "model": model, "ours": ours, "peer": peer, "floor": floor, "unit": unit,
        "holds": holds, "better": better, "ratio": ratio, "ratio_floor": ratio_floor,
        **{name: fact for name, fact in facts.items() if fact not in (None, {}, [])},
    }


def plan(run, planned, measured):
    """A plan against the readings of the card, {how: bytes}: the largest reading counts."""
    most = max(measured.values())
    allowed = max(PLAN_ABOVE_SHARE * most, PLAN_ABOVE_BYTES)
    return {
        "run": run, "planned": planned, "measured": most, "readings": measured, "above": planned - most,
        "holds": 0 <= planned - most <= allowed,
    }


class Results:
    """The file: {rows, exactness, plans, memory_free, parts}. Written after each addition, so a cut run is kept."""

    def __init__(self, path, before=None):
        """Goes on from `path`, else from the file `before` if it is there."""
        self.path = path
        self.found = {"rows": [], "exactness": {}, "plans": [], "memory_free": {}, "parts": {}}
        for file in filter(None, (path, before)):
            if file.exists():
                self.found |= json.loads(file.read_text())
                break

    def begin(self, part, facts):
        """Forgets what the part found before."""
        self.found["rows"] = [row for row in self.found["rows"] if row["part"] != part]
        self.found["plans"] = [plan for plan in self.found["plans"] if plan["part"] != part]
        self.found["parts"][part] = facts
        self.write()

    def add_row(self, row):
        self.found["rows"].append(row)
        self.write()

    def add_plan(self, part, plan):
        """A plan of a run that another part made too takes its place."""
        kept = [other for other in self.found["plans"] if other["run"] != plan["run"]]
        self.found["plans"] = [*kept, {"part": part, **plan}]
        self.write()

    def note(self, part, **facts):
        """Facts of the part."""
        self.found["parts"][part] |= facts
        self.write()

    def put(self, **facts):
        """Facts of the whole file."""
        self.found |= facts
        self.write()

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=1) + "\n")
        self.path.with_suffix(".md").write_text(page(self.found))


# ---- The Markdown page -------------------------------------------------------------------------------------------


def page(found):
    """The Markdown page of a results file."""
    out = ["# Plimsoll and its peers on one NVIDIA H200", ""]
    out += [
        "Made by `bench/h200.sh BINARY ours|rollout|train|step`; a part's peers ran in the same run as Plimsoll, one "
        "process at a time. Medians; least and most are in the JSON file. Random weights of the published shapes, bf16 "
        "(optimizer states too) where a row does not say otherwise. vLLM was not measured.",
        "",
        "| part | what | model | unit | Plimsoll | peer | ratio | floor | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    out += [row_line(row) for row in found["rows"]]
    out += ["", *notes(found), "", *plan_lines(found["plans"]), *profile_lines(found["rows"]), *closing(found)]
    return "\n".join(out) + "\n"


def row_line(row):
    peer = number(row["peer"])
    if row.get("peer_name") and row["peer"] is not None:
        peer += f" ({row['peer_name']})"
    floor = number(row["floor"])
    if floor and row["better"] == "less":
        floor = "at most " + floor
    if row["ratio_floor"]:
        floor += f" ({row['ratio_floor']:g}x)" if floor else f"{row['ratio_floor']:g}x"
    verdict = {True: "holds", False: "missed", None: ""}[row["holds"]]
    ratio = f"{row['ratio']:.2f}x" if row["ratio"] else ""
    cells = [row["part"], row["what"], row["model"], row["unit"], number(row["ours"]), peer, ratio, floor, verdict]
    return "| " + " | ".join(cells) + " |"


def number(value):
    """Three or four digits that matter, thousands apart; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def notes(found):
    """What each row's contenders said beside the number: shares, memory, and errors."""
    out = []
    for row in found["rows"]:
        said = []
        if row.get("share_of_peak") is not None:
            said.append(f"Plimsoll at {row['share_of_peak']:.0%} of the card's arithmetic")
        if row.get("error"):
            said.append(f"Plimsoll: {row['error']}")
        for name, peer in row.get("peers", {}).items():
            said.append(f"{name} {peer_words(peer, row['unit'])}")
        if row.get("note"):
            said.append(row["note"])
        if said:
            out.append(f"- {row['part']}: {row['what']}, {row['model']}: {'; '.join(said)}.")
    return out


def peer_words(peer, unit):
    words = ""
    if "median" in peer:
        words = f"{number(peer['median'])} {unit} ({number(peer['min'])} to {number(peer['max'])})"
        if "device_bytes" in peer:
            words += f", {peer['device_bytes'] / GIB:.1f} GiB allocated"
            words += f", {peer['device_reserved_bytes'] / GIB:.1f} reserved"
    error = f"`{peer['error']}`" if "error" in peer else ""
    return ", ".join(filter(None, (words, error)))


def plan_lines(plans):
    if not plans:
        return []
    out = ["| plan against the card | planned MiB | measured MiB | above | |", "|---|---|---|---|---|"]
    for plan in plans:
        above = f"{plan['above'] / MIB:,.1f} MiB ({plan['above'] / plan['measured']:.2%})"
        cells = [plan["run"], f"{plan['planned'] / MIB:,.1f}", f"{plan['measured'] / MIB:,.1f}", above]
        out.append("| " + " | ".join([*cells, "holds" if plan["holds"] else "missed"]) + " |")
    return [*out, ""]


def profile_lines(rows):
    """The kernels that took most of the time, for each row that missed its floor: [kernel, launches, seconds] each."""
    out = []
    for row in rows:
        kernels = sorted(row.get("profile", []), key=lambda kernel: -kernel[2])
        if not kernels:
            continue
        total = sum(seconds for _, _, seconds in kernels) or 1.0
        out += [f"| {row['part']}: {row['what']}, {row['model']} | launches | ms | share |", "|---|---|---|---|"]
        for name, launches, seconds in kernels[:KERNELS_SHOWN]:
            out.append(f"| {name} | {launches:,} | {1e3 * seconds:.2f} | {seconds / total:.1%} |")
        out.append("")
    return out


def closing(found):
    """Exactness, the card's memory before and after, and how each part was made."""
    out = []
    if exact := found["exactness"]:
        out.append(
            f"- Exactness: {exact['tokens']:,} tokens compared bit by bit, {exact['mismatches']} mismatches "
            f"({', '.join(exact['models'])})."
        )
    if free := found["memory_free"]:
        before, after = free["before"], free["after"]
        out.append(f"- Free device memory before the first run: {before:,} bytes; after the last: {after:,}.")
    for part, facts in found["parts"].items():
        out.append(f"- {part}: {', '.join(part_words(facts))}.")
    commands = {row["command"]: None for row in found["rows"] if row.get("command")}
    if commands:
        out += ["", "Plimsoll's commands:", "", *(f"    {command}" for command in commands)]
    return out


def part_words(facts):
    """When, on what and with which versions a part was measured."""
    gpu, machine = facts.get("gpu", {}), facts["machine"]
    words = [facts["when"], f"commit {facts['commit']}" if facts.get("commit") else ""]
    words += [gpu.get("name", ""), f"driver {gpu['driver']}" if gpu.get("driver") else ""]
    words += [f"{machine['cpu']} with {machine['num_cores']} cores", machine["kernel"]]
    words += [f"{name} {version}" for name, version in sorted(facts.get("versions", {}).items())]
    words.append(f"{facts['seconds']:.0f} s in all" if "seconds" in facts else "cut before its end")
    return list(filter(None, words))
