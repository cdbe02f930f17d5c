"""Writes what the benchmarks measured: a JSON file, the Markdown page rendered from it, and lines for the terminal.

A row compares Plimsoll with one peer: `ours`, `peer`, `floor`, `ratio` and `holds`. `floor` is in the row's unit, even
if it is derived from the peer's number (`ratio_floor`), so `holds` follows from `ours` and `floor` alone: `ours` must
be at least the floor, or at most if `better` is "less". `holds` is null if no floor is set or known.

The common parts come first, then one section for each page: CPU, collectors, faults, H200. The pages of save.py,
logs.py and peers/sft.py are next to their measurements.
"""

import json
from statistics import median

MIB, GIB = 2**20, 2**30
QUIET_CORES = 0.1  # A run on the CPU is marked if other processes used more than this.


def row(part, what, model, unit, ours, peer=None, floor=None, ratio_floor=None, better="more", **facts):
    """Returns one comparison. `ours`, `peer`: numbers, or None if that contender did not run. Keeps `facts` that are set."""
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


def spread(values):
    return {"median": median(values), "min": min(values), "max": max(values), "repeats": len(values)}


def write(path, found, page):
    """Writes `path` (JSON) and, next to it, the Markdown that `page` renders from `found`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(found))


def table(head, rows):
    """Returns the lines of a Markdown table. `rows`: lists of cells."""
    return [line(head).replace("|  |", "| |"), "|" + "---|" * len(head), *map(line, rows)]


def line(cells):
    return f"| {' | '.join(cells)} |"


def held(holds):
    return {True: "holds", False: "missed", None: ""}[holds]


def number(value):
    """Returns three or four significant digits with thousands separators; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def place(found):
    """Returns the machine, commit and time of a results file in words."""
    machine = found["machine"]
    return (
        f"Machine: {machine['cpu']}, {machine['num_cores']} cores, {machine['memory_bytes'] / GIB:.1f} GiB, "
        f"{machine['kernel']}; commit {found['commit']}, {found['when']}."
    )


def versions(found):
    return [f"{name} {version}" for name, version in sorted(found.get("versions", {}).items())]


# ---- CPU: compare.py ---------------------------------------------------------------------------------------------


def cpu_lines(part, record):
    """Returns the ratios of one part, one line each."""
    out = []
    for name, who in record["contenders"].items():
        share = share_of_peak(who)
        of_peak = f", {share:.0%} of this machine's peak" if share is not None else ""
        out.append(
            f"{part}: {name} {who['median']:.4g} {record['unit']} ({who['min']:.4g}..{who['max']:.4g}), "
            f"peak RSS {who['peak_rss_bytes'] / GIB:.2f} GiB{of_peak}"
        )
    for name, ratio in record["ratios"].items():
        ours, peer = ratio_names(name, ratio)
        out.append(
            f"{part}: {ours}: {ratio['median']:.2f}x {peer} (min {ratio['min']:.2f}), "
            f"floor {ratio['floor']}x: {cpu_verdict(ratio)}"
        )
    return "\n".join([*out, *(f"{part}: {words}" for words in cpu_memory(record))])


def share_of_peak(who):
    """Returns the median over a contender's runs; None for peers, which do not know it."""
    shares = [run["share_of_peak"] for run in who["runs"] if "share_of_peak" in run]
    return median(shares) if shares else None


def ratio_names(name, ratio):
    """Returns whom a ratio compares. Its row is the peer's, or with several forms of Plimsoll the form's."""
    return (name, ratio["peer"]) if "peer" in ratio else ("Plimsoll", name)


def cpu_memory(record):
    """Returns the comparisons of peak memory, in words."""
    out = []
    for name, ratio in record["ratios"].items():
        if memory := ratio.get("memory"):
            ours, peer = ratio_names(name, ratio)
            limit = f" (at most {memory['at_most']}: {held(memory['holds'])})" if memory["at_most"] is not None else ""
            out.append(f"{ours}'s peak RSS is {memory['share']:.3f} of {peer}'s{limit}")
    return out


def cpu_dtypes(record):
    """Returns the dtypes that peers reported, in words."""
    for name, who in record["contenders"].items():
        if dtypes := who.get("dtypes"):
            yield f"{name}: " + ", ".join(f"{what} {'/'.join(of)}" for what, of in dtypes.items() if of)


def cpu_noise(record):
    """Returns how many cores other processes used at most, and the runs that they disturbed."""
    runs = [
        (f"run {number} of {name}", run["other_cores"])
        for name, who in record["contenders"].items() for number, run in enumerate(who["runs"], 1)
    ]
    disturbed = [name for name, cores in runs if cores > QUIET_CORES]
    more = f", above {QUIET_CORES} in {', '.join(disturbed)}" if disturbed else ""
    return f"other processes used at most {max(cores for _, cores in runs)} cores{more}"


def cpu_write(path, found):
    """Writes the CPU results. Keeps parts of the old file that were not measured now; each part names its machine."""
    for record in found["parts"].values():
        record |= {"commit": found["commit"], "machine": found["machine"]}
    before = json.loads(path.read_text())["parts"] if path.exists() else {}
    write(path, {"parts": {**before, **found["parts"]}}, cpu_page)


def cpu_machines(parts):
    """Returns a line for each machine, with its parts if there are several."""
    machines = []
    for record in parts.values():
        if record["machine"] not in machines:
            machines.append(record["machine"])
    for machine in machines:
        here = [part for part, record in parts.items() if record["machine"] == machine]
        of = f" of {', '.join(here)}" if len(machines) > 1 else ""
        yield (
            f"Machine{of}: {machine['cpu']} (family {machine['cpu_family']}, model {machine['cpu_model']}; "
            f"{', '.join(machine['cpu_flags'])}), {machine['num_cores']} cores, "
            f"{machine['memory_bytes'] / GIB:.1f} GiB, {machine['kernel']}."
        )


def cpu_page(found):
    parts = found["parts"]
    head = ["part", "who", "unit", "min", "median", "max", "share of peak", "peak RSS GiB", "Plimsoll's ratio", "least"]
    out = [
        "# Plimsoll and its peers on the CPU",
        "",
        *cpu_machines(parts),
        "Model: SmolLM2-135M-Instruct, bf16. Made by `python bench/compare.py`, which runs everyone in turn; its head "
        "says what the work is. A ratio is of two runs of the same repeat: median, and the least; in `lora` it is in the "
        "row of each form of Plimsoll: adapters alone, and merged.",
        "",
        *table([*head, "floor"], [cpu_cells(part, parts[part], name) for part in parts for name in parts[part]["contenders"]]),
        "",
    ]
    for part, record in parts.items():
        out += [f"- {part}: {words}." for words in (*cpu_memory(record), *cpu_dtypes(record))]
        path = f", everyone held to {record['isa']}" if "isa" in record else ""
        out.append(
            f"- {part}: commit {record['commit']}, {record['when']}, {record['repeats']} repeats, "
            f"{record['threads']} threads{path}; {cpu_noise(record)}."
        )
    used = [who for record in parts.values() for who in record["contenders"].values()]
    return "\n".join([*out, f"- Versions: {', '.join(sorted({text for who in used for text in versions(who)}))}.", ""])


def cpu_cells(part, record, name):
    who, ratio = record["contenders"][name], record["ratios"].get(name)
    share = share_of_peak(who)
    cells = [part, name, record["unit"], *(f"{who[key]:.4g}" for key in ("min", "median", "max"))]
    cells += [f"{share:.0%}" if share is not None else "", f"{who['peak_rss_bytes'] / GIB:.2f}"]
    if ratio is None:
        return [*cells, "", "", ""]
    return [*cells, f"{ratio['median']:.2f}x", f"{ratio['min']:.2f}x", f"{ratio['floor']}x, {cpu_verdict(ratio)}"]


def cpu_verdict(ratio):
    return "lost" if ratio["median"] < 1 else held(ratio["holds"])


# ---- Collectors: compare.py collect. Less is better in every row. --------------------------------------------------

CLOCKS = ("wall_us", "cpu_us")


def collect_rows(case, runs, errors):
    """Returns the rows of one case, us per frame. `runs`: {contender: results of its runs}; `errors`: {contender: why}."""
    values = {name: [run[case.key] for run in of if case.key in run] for name, of in runs.items()}
    spreads = {name: spread(of) for name, of in values.items() if of}
    clocks = lambda name: {key: median(run[key] for run in runs[name]) for key in CLOCKS} if runs.get(name) else {}
    unit, ours = f"us a frame, {case.clock}", spreads.get("plimsoll", {})
    mine = {"spread": ours, "error": errors.get("plimsoll")}
    out = []
    for name in case.peers:
        theirs = spreads.get(name, {})
        out.append(
            collect_row(
                case.what, unit, ours.get("median"), theirs.get("median"),
                **collect_floor(case.floors.get(name), theirs.get("median")), peer_name=name, peer_spread=theirs,
                clocks=clocks("plimsoll"), peer_clocks=clocks(name), peer_error=errors.get(name), **mine,
            )
        )
    if case.at_most is not None:
        out.append(collect_row(case.what, unit, ours.get("median"), floor=case.at_most, **mine))
    return out


def collect_floor(rule, theirs):
    """Returns the floor that a peer's median sets. `rule`: ("times", n), its time / n; ("plus", us), its time + us; None."""
    if rule is None:
        return {}
    kind, amount = rule
    if kind == "times":
        return {"ratio_floor": amount}
    return {"floor": None if theirs is None else theirs + amount, "floor_rule": f"peer + {amount:g}"}


def collect_row(what, unit, ours, peer=None, floor=None, ratio_floor=None, **facts):
    found = row("collect", what, "", unit, ours, peer, floor, ratio_floor, better="less", **facts)
    if "floor_rule" in found and ours is None:
        found["holds"] = False
    return {key: found[key] for key in found if key not in ("part", "model", "better")}


def collect_lines(rows):
    """Returns one line for each row, for the terminal."""
    out = []
    for row in rows:
        text = f"collect: {row['what']}: plimsoll {collect_cell(row, 'ours', 'spread') or 'did not run'} ({row['unit']})"
        if row.get("peer_name"):
            text += f", {row['peer_name']} {collect_cell(row, 'peer', 'peer_spread') or 'did not run'}"
        verdict = held(row["holds"])
        out.append(text + (f", at most {floor_words(row)}: {verdict}" if verdict else ""))
    return "\n".join(out)


def collect_page(found):
    errors = {}  # A dict, so that each appears once and in the order of the rows.
    for row in found["rows"]:
        for name, key in (("Plimsoll", "error"), (row.get("peer_name"), "peer_error")):
            if row.get(key):
                errors[f"- {row['what']}: {name}: {row[key]}."] = None
    head = ["what", "unit", "Plimsoll", "peer", "theirs", "theirs / ours", "at most", ""]
    out = [
        "# Collectors: Plimsoll and its peers",
        "",
        f"{place(found)} Made by `python3 bench/compare.py collect`: CartPole, random actions, {found['repeats']} "
        "repeat(s), everyone in turn; median (least to most). Bytes of processes are PSS. Other processes used at most "
        f"{max(found['other_cores'], default=0.0)} cores. Versions: {', '.join(versions(found))}.",
        "",
        *table(head, map(collect_cells, found["rows"])),
        "",
        *errors,
    ]
    return "\n".join(out).rstrip("\n") + "\n"


def collect_cells(row):
    ratio = f"{row['ratio']:.3g}x" if row["ratio"] else ""
    theirs = collect_cell(row, "peer", "peer_spread") or ("did not run" if row.get("peer_error") else "")
    ours = collect_cell(row, "ours", "spread") or ("did not run" if row.get("error") else "")
    return [row["what"], row["unit"], ours, row.get("peer_name", ""), theirs, ratio, floor_words(row), held(row["holds"])]


def collect_cell(row, key, spread_key):
    """Returns a median, with minimum and maximum if there were several runs."""
    of = row.get(spread_key, {})
    many = f" ({amount(of['min'], row)} to {amount(of['max'], row)})" if of.get("repeats", 1) > 1 else ""
    return amount(row[key], row) + many if row[key] is not None else ""


def floor_words(row):
    words = amount(row["floor"], row)
    rule = row.get("floor_rule") or (f"peer / {row['ratio_floor']:g}" if row["ratio_floor"] else "")
    return f"{words} ({rule})" if words and rule else words or rule


def amount(value, row):
    if value is None:
        return ""
    return f"{value / MIB:,.1f} MiB" if row["unit"] == "bytes" else number(value)


# ---- Faults: faults.py -------------------------------------------------------------------------------------------

PRINTED_BYTES = 100_000  # What an environment of envs.py prints.
SETUP_UNKNOWN = dict.fromkeys(("num_envs", "num_workers", "step_timeout_ms", "worker_memory_mib"), "?")
FAULT_PEERS = {"MultiSyncCollector": "TorchRL MultiSync", "MultiAsyncCollector": "TorchRL MultiAsync"}


def faults_page(found):
    setup = SETUP_UNKNOWN | found["setup"]
    head = ["failure", "Plimsoll says", "its run", "frames lost", "seconds", *FAULT_PEERS.values()]
    out = [
        "# Failures of Python environments",
        "",
        f"{place(found)} Made by `python3 bench/faults.py`: "
        f"{setup['num_envs']} environments in {setup['num_workers']} workers, one failure each, caused by the same class "
        "(`Faulty` of `crates/collect/tests/common/envs.py`) under the collector of `plimsoll collect` and under TorchRL's. "
        f"Other processes used at most {max(found['other_cores'], default=0.0)} cores, so seconds are rough. "
        f"Versions: {', '.join(versions(found)) or 'none'}.",
        "",
        f"Ours has `step_timeout_ms = {setup['step_timeout_ms']}` (60,000 by default), `worker_memory` of "
        f"{setup['worker_memory_mib']} MiB, and the usual pause before a restart (0.1 s at first). Its seconds are those "
        "of the longest step of all environments, which waits for the restart; where the run ends, from its start. Frames "
        "lost are steps that were in flight; frames of completed steps are kept. TorchRL has its defaults; its seconds are "
        "from the failure to the exception in the main process.",
        "",
        *table(head, map(fault_cells, found["rows"])),
    ]
    return "\n".join(out) + "\n"


def fault_cells(row):
    theirs = [row["no_peer"] or fault_of_peer(row["peers"].get(name)) for name in FAULT_PEERS]
    cells = [row["what"], *fault_of_ours(row["ours"]), *theirs]
    return [cell.replace("|", "/").replace("\n", " ") for cell in cells]


def fault_of_ours(found):
    """Returns four cells: the messages, whether the run continues, frames lost, seconds."""
    if "error" in found:
        return [f"did not run: {found['error']}", "", "", ""]
    said = [f"`{one['slug']}`: {one['message']}" for one in found["said"]]
    if len(said) > 2:
        slugs = sorted({one["slug"] for one in found["said"]})
        said = [" and ".join(f"`{slug}`" for slug in slugs) + f", {len(found['said'])} times"]
    ended = found["ended"]
    if ended:
        said.append(f"`{ended['slug']}`: {ended['message']}")
    run = "goes on" if not ended else "ends" if found["started"] else "does not start"
    said += grandchild(found)
    return ["; ".join(said) or "nothing", run, str(found["frames_lost"]), f"{found['seconds']:.2f}"]


def fault_of_peer(found):
    """Returns what happened in a TorchRL collector, as one cell."""
    if found is None:
        return "left out"
    if "error" in found:
        return f"did not run: {found['error']}"
    if not found["caused"]:
        return "the failure did not happen there"
    if found["exception"]:
        how = "ends" if found["started"] else "does not start, said"
        words = f"the run {how} after {found['seconds']:.1f} s: `{found['exception']}`"
        if found["cause"] == "stderr":
            words += "; what was raised is in standard error alone"
    elif found["went_on"]:
        words = "goes on; nothing said"
    else:
        words = f"never noticed ({found['watch_seconds']} s watched)"
        words += "; the other worker goes on" if found["batches_since"] > 1 else "; no batch comes"
    facts = ["NaN is in its batches"] if found["not_finite"] else []
    if found["leaks"] and found["worker_bytes_max"]:
        facts.append(f"the worker held {found['worker_bytes_max'] / GIB:.1f} GiB")
    if found["printed_bytes"] >= PRINTED_BYTES:
        facts.append("all of it is in the program's standard output")
    return "; ".join([words, *facts, *grandchild(found)])


def grandchild(found):
    lives = found["grandchild_lives"]
    return [] if lives is None else ["the grandchild " + ("lives on" if lives else "is ended too")]


# ---- One H200: h200.py -------------------------------------------------------------------------------------------

PLAN_ABOVE_SHARE = 0.02  # A plan may exceed the measured memory by this share,
PLAN_ABOVE_BYTES = 256 * MIB  # or by this amount; it may never be lower.
KERNELS_SHOWN = 12


def plan(run, planned, measured):
    """Compares a plan with readings of the GPU's memory, {how: bytes}. The largest reading counts."""
    most = max(measured.values())
    allowed = max(PLAN_ABOVE_SHARE * most, PLAN_ABOVE_BYTES)
    return {
        "run": run, "planned": planned, "measured": most, "readings": measured, "above": planned - most,
        "holds": 0 <= planned - most <= allowed,
    }


class Results:
    """The file h200.json: {rows, exactness, plans, memory_free, parts}.

    It is written after each addition, so that an interrupted run keeps its rows. A part that is measured again replaces
    its own rows and keeps those of the other parts.
    """

    def __init__(self, path, before=None):
        """Continues from `path`, or else from the file `before` if it exists."""
        self.path = path
        self.found = {"rows": [], "exactness": {}, "plans": [], "memory_free": {}, "parts": {}}
        for file in filter(None, (path, before)):
            if file.exists():
                self.found |= json.loads(file.read_text())
                break

    def begin(self, part, facts):
        """Removes the earlier results of the part."""
        for key in ("rows", "plans"):
            self.found[key] = [one for one in self.found[key] if one["part"] != part]
        self.found["parts"][part] = facts
        self.write()

    def add_row(self, row):
        self.found["rows"].append(row)
        self.write()

    def add_plan(self, part, plan):
        """Adds a plan, replacing one of the same run from another part."""
        kept = [other for other in self.found["plans"] if other["run"] != plan["run"]]
        self.put(plans=[*kept, {"part": part, **plan}])

    def note(self, part, **facts):
        """Adds facts to a part."""
        self.found["parts"][part] |= facts
        self.write()

    def put(self, **facts):
        """Sets facts of the whole file."""
        self.found |= facts
        self.write()

    def write(self):
        write(self.path, self.found, h200_page)


def h200_page(found):
    out = [
        "# Plimsoll and its peers on one NVIDIA H200",
        "",
        "Made by `bench/h200.sh BINARY PART`; a part's peers ran in the same run as Plimsoll, one "
        "process at a time. Medians; least and most are in the JSON file. Random weights of the published shapes, bf16 "
        "(optimizer states too) where a row does not say otherwise.",
        "",
        *table(["part", "what", "model", "unit", "Plimsoll", "peer", "ratio", "floor", ""], map(h200_cells, found["rows"])),
        "",
        *filter(None, map(h200_note, found["rows"])),
        "",
        *plan_table(found["plans"]),
        *profile_tables(found["rows"]),
        *h200_closing(found),
    ]
    return "\n".join(out) + "\n"


def h200_cells(row):
    peer, floor = number(row["peer"]), number(row["floor"])
    if row.get("peer_name") and peer:
        peer += f" ({row['peer_name']})"
    if floor and row["better"] == "less":
        floor = "at most " + floor
    if row["ratio_floor"]:
        floor += f" ({row['ratio_floor']:g}x)" if floor else f"{row['ratio_floor']:g}x"
    ratio = f"{row['ratio']:.2f}x" if row["ratio"] else ""
    cells = [row["part"], row["what"], row["model"], row["unit"], number(row["ours"]), peer, ratio, floor]
    return [*cells, held(row["holds"])]


def h200_note(row):
    """Returns the facts next to a row's numbers (shares, memory, errors) as one line; None without any."""
    said = []
    if row.get("share_of_peak") is not None:
        said.append(f"Plimsoll at {row['share_of_peak']:.0%} of the card's arithmetic")
    if row.get("error"):
        said.append(f"Plimsoll: {row['error']}")
    said += [f"{name} {h200_of_peer(peer, row['unit'])}" for name, peer in row.get("peers", {}).items()]
    said += [row["note"]] if row.get("note") else []
    return f"- {row['part']}: {row['what']}, {row['model']}: {'; '.join(said)}." if said else None


def h200_of_peer(peer, unit):
    words = ""
    if "median" in peer:
        words = f"{number(peer['median'])} {unit} ({number(peer['min'])} to {number(peer['max'])})"
        if "device_bytes" in peer:
            words += f", {peer['device_bytes'] / GIB:.1f} GiB allocated"
            words += f", {peer['device_reserved_bytes'] / GIB:.1f} reserved"
    error = f"`{peer['error']}`" if "error" in peer else ""
    return ", ".join(filter(None, (words, error)))


def plan_table(plans):
    cells = lambda plan: [
        plan["run"], f"{plan['planned'] / MIB:,.1f}", f"{plan['measured'] / MIB:,.1f}",
        f"{plan['above'] / MIB:,.1f} MiB ({plan['above'] / plan['measured']:.2%})", held(plan["holds"]),
    ]
    head = ["plan against the card", "planned MiB", "measured MiB", "above", ""]
    return [*table(head, map(cells, plans)), ""] if plans else []


def profile_tables(rows):
    """Returns a table of the slowest kernels, [kernel, launches, seconds, ...] each, for each row that has a profile."""
    out = []
    for row in filter(lambda row: row.get("profile"), rows):
        kernels = sorted(row["profile"], key=lambda kernel: -kernel[2])
        total = sum(kernel[2] for kernel in kernels) or 1.0
        cells = [
            [name, f"{launches:,}", f"{1e3 * seconds:.2f}", f"{seconds / total:.1%}", limit_share(more)]
            for name, launches, seconds, *more in kernels[:KERNELS_SHOWN]
        ]
        out += [*table([f"{row['part']}: {row['what']}, {row['model']}", "launches", "ms", "share", "of the limit"], cells), ""]
    return out


def limit_share(more):
    """Returns the share of the card's limit that a kernel reaches, of [bytes, operations, share]; nothing if unknown."""
    return f"{more[2]:.0%}" if len(more) == 3 and more[2] > 0 else ""


def h200_closing(found):
    """Returns exactness, the GPU's free memory before and after, how each part was made, and Plimsoll's commands."""
    out = []
    if exact := found["exactness"]:
        out.append(
            f"- Exactness: {exact['tokens']:,} tokens compared bit by bit, {exact['mismatches']} mismatches "
            f"({', '.join(exact['models'])})."
        )
    if free := found["memory_free"]:
        out.append(f"- Free device memory before the first run: {free['before']:,} bytes; after the last: {free['after']:,}.")
    for part, facts in found["parts"].items():
        gpu, machine = facts.get("gpu", {}), facts["machine"]
        words = [
            facts["when"], f"commit {facts['commit']}" if facts.get("commit") else "", gpu.get("name", ""),
            f"driver {gpu['driver']}" if gpu.get("driver") else "", f"{machine['cpu']} with {machine['num_cores']} cores",
            machine["kernel"], *versions(facts),
            f"{facts['seconds']:.0f} s in all" if "seconds" in facts else "cut before its end",
        ]
        out.append(f"- {part}: {', '.join(filter(None, words))}.")
    commands = {row["command"]: None for row in found["rows"] if row.get("command")}
    return [*out, "", "Plimsoll's commands:", "", *(f"    {command}" for command in commands)] if commands else out
