"""What `faults.py` found, in words: the cells of its table, the JSON file it is kept in, the page made from it."""

import json

from results import GIB

LONGEST_WORDS = 160
CAUSE = "the speed is negative"  # What an environment of envs.py raises.
PRINTED_BYTES = 100_000  # What one of them prints.
SETUP_UNKNOWN = dict.fromkeys(("num_envs", "num_workers", "step_timeout_ms", "worker_memory_mib"), "?")
PEERS = {"MultiSyncCollector": "TorchRL MultiSync", "MultiAsyncCollector": "TorchRL MultiAsync"}


def write(path, found):
    """Writes `path` (JSON) and the page beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(found))


def page(found):
    """The Markdown page of a results file."""
    machine, setup = found["machine"], SETUP_UNKNOWN | found["setup"]
    noise = max(found["other_cores"], default=0.0)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found["versions"].items()))
    head = ["failure", "Plimsoll says", "its run", "frames lost", "seconds", *PEERS.values()]
    out = [
        "# Failures of Python environments",
        "",
        f"Machine: {machine['cpu']}, {machine['num_cores']} cores, {machine['memory_bytes'] / GIB:.1f} GiB, "
        f"{machine['kernel']}; commit {found['commit']}, {found['when']}. Made by `python3 bench/faults.py`: "
        f"{setup['num_envs']} environments in {setup['num_workers']} workers, one failure each, caused by the same class "
        "(`Faulty` of `crates/collect/tests/common/envs.py`) under the collector of `plimsoll collect` and under TorchRL's. "
        f"Other processes used at most {noise} cores, so seconds are rough. Versions: {versions or 'none'}.",
        "",
        f"Ours has `step_timeout_ms = {setup['step_timeout_ms']}` (60,000 where nothing is said), `worker_memory` of "
        f"{setup['worker_memory_mib']} MiB, and the usual pause before a restart (0.1 s at first). Its seconds are those "
        "of the longest step of all environments, which waits for the restart; where the run ends, from its start. Frames "
        "lost are steps that were in flight; frames of completed steps are kept. TorchRL has its defaults; its seconds are "
        "from the failure to the exception in the main process.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *map(line, found["rows"]),
    ]
    return "\n".join(out) + "\n"


def line(row):
    """A row of the table."""
    theirs = [row["no_peer"] or peer_words(row["peers"].get(name)) for name in PEERS]
    return "| " + " | ".join(escaped(cell) for cell in [row["what"], *our_words(row["ours"]), *theirs]) + " |"


def our_words(found):
    """What we say, how the run goes on, frames lost and seconds."""
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
    if found["grandchild_lives"] is not None:
        said.append("the grandchild " + ("lives on" if found["grandchild_lives"] else "is ended too"))
    return ["; ".join(said) or "nothing", run, str(found["frames_lost"]), f"{found['seconds']:.2f}"]


def peer_words(found):
    """What became of a collector of TorchRL's, in a cell."""
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
    return "; ".join([words, *peer_facts(found)])


def peer_facts(found):
    """What else was seen of it."""
    facts = []
    if found["not_finite"]:
        facts.append("NaN is in its batches")
    if found["leaks"] and found["worker_bytes_max"]:
        facts.append(f"the worker held {found['worker_bytes_max'] / GIB:.1f} GiB")
    if found["printed_bytes"] >= PRINTED_BYTES:
        facts.append("all of it is in the program's standard output")
    if found["grandchild_lives"] is not None:
        facts.append("the grandchild " + ("lives on" if found["grandchild_lives"] else "is ended too"))
    return facts


def exception_words(exception):
    """Type and first line of an exception, in a bounded number of characters. `exception`: {type, message}."""
    lines = [one.strip() for one in exception["message"].splitlines() if one.strip()]
    words = f"{exception['type']}: {lines[0]}" if lines else exception["type"]
    if len(words) > LONGEST_WORDS:
        words = words[:LONGEST_WORDS].rsplit(" ", 1)[0] + " ..."
    return words.replace("`", "'")


def cause_place(exception, errors):
    """Where the environment's own words are: in the exception, else in standard error, else nowhere (None)."""
    if exception and CAUSE in exception["message"]:
        return "exception"
    return "stderr" if CAUSE in errors else None


def escaped(cell):
    """A cell without what ends one."""
    return cell.replace("|", "/").replace("\n", " ")
