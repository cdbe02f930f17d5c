"""What `compare.py collect` found: rows with their floors, the JSON file they are kept in, the page made from it.

Less is better in every row: microseconds of a frame, bytes, files. `holds` is null where no floor was set, or where it
would come from a peer that did not run.
"""

import json
from statistics import median

import h200_results
from h200_results import MIB, number
from h200_run import spread
from results import GIB, verdict

CLOCKS = ("wall_us", "cpu_us")


def frame_rows(case, runs, errors):
    """The rows of one case: us a frame of us and of each peer. `runs`: {contender: what its runs said}."""
    values = {name: [run[case.key] for run in of if case.key in run] for name, of in runs.items()}
    ours = spread(values["plimsoll"]) if values.get("plimsoll") else {}
    clocks = lambda name: {key: median(run[key] for run in runs[name]) for key in CLOCKS} if runs.get(name) else {}
    out = []
    for name in case.peers:
        theirs = spread(values[name]) if values.get(name) else {}
        out.append(
            row(
                case.what, f"us a frame, {case.clock}", ours.get("median"), theirs.get("median"),
                **floor(case.floors.get(name), theirs.get("median")), peer_name=name, spread=ours, peer_spread=theirs,
                clocks=clocks("plimsoll"), peer_clocks=clocks(name), error=errors.get("plimsoll"),
                peer_error=errors.get(name),
            )
        )
    if case.at_most is not None:
        out.append(
            row(
                case.what, f"us a frame, {case.clock}", ours.get("median"), floor=case.at_most, spread=ours,
                error=errors.get("plimsoll"),
            )
        )
    return out


def floor(rule, theirs):
    """The floor by a peer's median. `rule`: ("times", n), its time over n; ("plus", us), above it; or None."""
    if rule is None:
        return {}
    kind, amount = rule
    if kind == "times":
        return {"ratio_floor": amount}
    return {"floor": None if theirs is None else theirs + amount, "floor_rule": f"peer + {amount:g}"}


def row(what, unit, ours, peer=None, floor=None, ratio_floor=None, **facts):
    """One comparison; see h200_results.row."""
    found = h200_results.row("collect", what, "", unit, ours, peer, floor, ratio_floor, better="less", **facts)
    if "floor_rule" in found and ours is None:
        found["holds"] = False
    return {key: found[key] for key in found if key not in ("part", "model", "better")}


def write(path, found):
    """Writes `path` (JSON) and the page beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(found))


def lines(found):
    """A line a row, for the terminal."""
    out = []
    for row in found["rows"]:
        text = f"collect: {row['what']}: plimsoll {cell(row, 'ours', 'spread') or 'did not run'} ({row['unit']})"
        if row.get("peer_name"):
            text += f", {row['peer_name']} {cell(row, 'peer', 'peer_spread') or 'did not run'}"
        out.append(text + (f", at most {floor_words(row)}: {held(row)}" if held(row) else ""))
    return "\n".join(out)


def page(found):
    """The Markdown page of a results file."""
    machine = found["machine"]
    noise = max(found["other_cores"], default=0.0)
    out = [
        "# Collectors: Plimsoll and its peers",
        "",
        f"Machine: {machine['cpu']}, {machine['num_cores']} cores, {machine['memory_bytes'] / GIB:.1f} GiB, "
        f"{machine['kernel']}; commit {found['commit']}, {found['when']}. Made by `python3 bench/compare.py collect`: "
        f"CartPole, random actions, {found['repeats']} repeat(s), everyone in turn; median (least to most). Bytes of "
        f"processes are PSS. Other processes used at most {noise} cores. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(found['versions'].items()))}.",
        "",
        "| what | unit | Plimsoll | peer | theirs | theirs / ours | at most | |",
        "|---|---|---|---|---|---|---|---|",
        *map(line, found["rows"]),
        "",
        *notes(found["rows"]),
    ]
    return "\n".join(out).rstrip("\n") + "\n"


def line(row):
    ratio = f"{row['ratio']:.3g}x" if row["ratio"] else ""
    theirs = cell(row, "peer", "peer_spread") or ("did not run" if row.get("peer_error") else "")
    ours = cell(row, "ours", "spread") or ("did not run" if row.get("error") else "")
    cells = [row["what"], row["unit"], ours, row.get("peer_name", ""), theirs, ratio, floor_words(row), held(row)]
    return "| " + " | ".join(cells) + " |"


def cell(row, key, spread_key):
    """A median, and the least and most where there were several."""
    of = row.get(spread_key, {})
    many = f" ({amount(of['min'], row)} to {amount(of['max'], row)})" if of.get("repeats", 1) > 1 else ""
    return amount(row[key], row) + many if row[key] is not None else ""


def floor_words(row):
    words = amount(row["floor"], row)
    rule = row.get("floor_rule") or (f"peer / {row['ratio_floor']:g}" if row["ratio_floor"] else "")
    return f"{words} ({rule})" if words and rule else words or rule


def amount(value, row):
    """A number of the row's unit, as it is shown."""
    if value is None:
        return ""
    return f"{value / MIB:,.1f} MiB" if row["unit"] == "bytes" else number(value)


def held(row):
    return "" if row["holds"] is None else verdict(row)


def notes(rows):
    """Why somebody did not run, each once."""
    said = {}
    for row in rows:
        if row.get("error"):
            said[f"- {row['what']}: Plimsoll: {row['error']}."] = None
        if row.get("peer_error"):
            said[f"- {row['what']}: {row['peer_name']}: {row['peer_error']}."] = None
    return list(said)
