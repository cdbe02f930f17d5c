"""The page of h200_ranks.py's rows."""

from statistics import median

from results import GIB, held, table

# Of the time that one rank takes for the same work: updates and steps, by the number of ranks.
FLOORS = {2: {"update_s": 0.98, "step_s": 0.95}, 4: {"update_s": 0.96, "step_s": 0.92},
          8: {"update_s": 0.95, "step_s": 0.90}}


def page(found):
    lines = ["# Several ranks, a card each", "", "`bench/h200_ranks.sh BINARY bits`, `... scale`, `... faults`, `... resume` and `... nccl`, on one host. A build is the "
             "commit of the binary and the number of the host's cards.", ""]
    for part, section in {"bits": of_bits, "scale": of_scale, "memory": of_memory, "faults": of_faults, "resume": of_resume, "nccl": of_nccl}.items():
        some = [row for row in found["rows"] if row["part"] == part]
        lines += section(some) if some else []
    if found.get("notes"):
        lines += ["## Notes", "", *(f"- {note}" for note in found["notes"]), ""]
    return "\n".join(lines)


def of_bits(rows):
    cells = []
    for row in rows:
        same = error(row) or ("equal" if not row["differ"] else f"differ: {', '.join(row['differ'])}")
        states = ", ".join(row.get("settings", []))
        cells.append([row["model"], row["ranks"], same, len(row.get("sha256", {})), f"`{states}`" if states else "", build(row)])
    head = ["model", "ranks", "compared with one rank", "files and metrics", "settings", "build"]
    words = "One run on each number of ranks; everything that it leaves, by SHA-256."
    return ["## Bits", "", words, "", *table(head, strings(cells)), ""]


def of_scale(rows):
    # Of the same build: another is another speed.
    one = {(row["model"], build(row)): row for row in rows if row["ranks"] == 1 and "error" not in row}
    head = ["model", "ranks", "update, s", "of one rank's", "floor", "step, s", "of one rank's", "floor", "update, tokens/s", "build"]
    cells, parts = [], []
    for row in rows:
        first, last, alone = [row["model"], row["ranks"]], [build(row)], one.get((row["model"], build(row)))
        if "error" in row:
            cells.append([*first, error(row), *[""] * (len(head) - 4), *last])
            continue
        shares = [share(row, alone, name) for name in ("update_s", "step_s")]
        of = lambda name: f"{row[name]['median']:.3f} ({row[name]['min']:.3f} to {row[name]['max']:.3f})"
        tokens = f"{row['update_tokens_per_s']['median']:,.0f}"
        cells.append([*first, of("update_s"), *shares[0], of("step_s"), *shares[1], tokens, *last])
        if alone and row["ranks"] > 1:
            parts.append([*first, *more(row, alone), *hidden(row, alone)])
    words = "Every rank has the work of one; seconds are medians of steps 3 to 5, with the smallest and the largest."
    lines = ["## Weak scaling", "", words, "", *table(head, strings(cells)), ""]
    if parts:
        words = ("What a step takes more than one rank's, ms, by the clock of rank 0. After its own rollout it grades, waits for what the "
                 "others sampled, and reads that. Then: how long each rank's host waited for the others in a step, which is no time of its card; "
                 "for how long rank 0's card exchanged gradients and weights in an update, by its own clock; and the least share of it that is "
                 "hidden: all that an update takes longer than one rank's counts as exchange that shows, slower cards and waiting included.")
        head = ["model", "ranks", "update", "rollout", "grading and exchange", "rest", "hosts waited, ms", "exchange, ms", "hidden"]
        lines += [words, "", *table(head, strings(parts)), ""]
    return lines


def more(row, alone):
    """Returns cells: the milliseconds of each part of a step above those of one rank's, and what each rank waited."""
    names = ["time/update", "time/rollout", "time/reward"]
    of = lambda row, part: median(part(step) for step in row["steps"][2:])
    known = lambda step: sum(step[name] for name in [*names, "time/score"])
    of_parts = [*((lambda step, name=name: step[name]) for name in names), lambda step: step["step_time"] - known(step)]
    found = [f"{1000 * (of(row, part) - of(alone, part)):+.0f}" for part in of_parts]
    waited = [1000 * of(row, lambda step, rank=rank: step["ranks_waited"][rank]) for rank in range(row["ranks"])]
    return [*found, ", ".join(f"{one:.0f}" for one in waited)]


def hidden(row, alone):
    """Returns cells: the milliseconds of an update in which a card exchanges, and the least share of them that is hidden."""
    if "exchange_s" not in row:
        return ["", ""]
    exchange, shown = row["exchange_s"]["median"], row["update_s"]["median"] - alone["update_s"]["median"]
    return [f"{1000 * exchange:.0f}", f"{max(0.0, 1 - max(0.0, shown) / exchange):.0%}" if exchange > 0 else ""]


def share(row, alone, name):
    """Returns two cells: one rank's time as a share of this one's, and whether that is above its floor."""
    if not alone:
        return ["", ""]
    found, floor = alone[name]["median"] / row[name]["median"], FLOORS.get(row["ranks"], {}).get(name)
    return [f"{found:.1%}", f"{floor:.0%}: {held(found >= floor)}" if floor else ""]


def of_memory(rows):
    cells = []
    for row in rows:
        most, least = max(row["card_bytes"]), min(row["card_bytes"])
        gib = [f"{bytes / GIB:.3f}" for bytes in (row["planned_bytes"], most, least)]
        cells.append([row["model"], row["ranks"], *gib, f"{most / row['planned_bytes']:.2%}", held(row["holds"]), build(row)])
    head = ["model", "ranks", "planned, GiB", "most of a card, GiB", "least of a card, GiB", "most of planned",
            "99 % to 100 %", "build"]
    words = ("A card's memory: what `plimsoll plan` says before the run, and what NVML says after five steps, above what was in use "
             "before.")
    return ["## Memory", "", words, "", *table(head, strings(cells)), ""]


def of_faults(rows):
    cells = []
    for row in rows:
        of = lambda name: f"{row[name]:.2f}" if name in row else ""
        after = error(row)
        if "differ" in row:
            after = f"on {row['resumed_on']}: " + ("equal" if not row["differ"] else f"differ: {', '.join(row['differ'])}")
        sentence = f"`{row['sentence']}`" if "sentence" in row else ""
        cells.append([row["model"], row["ranks"], row.get("hit", ""), of("said_s"), of("trainers_ended_s"), of("ended_s"),
                      row.get("exit", ""), held(row.get("holds")), after or "-", sentence, build(row)])
    head = ["model", "ranks", "killed", "said after, s", "trainers ended, s", "all ended, s", "exit code", "2.5 s and 12 s",
            "resumed", "what the user sees", "build"]
    words = ("SIGKILL to the trainer of one rank in the middle of a run. All of it must end within 12 s, and say why within 2.5 s. "
             "A run that was resumed leaves the tensors, samples and metrics of a run of one rank that was left alone.")
    return ["## A rank killed", "", words, "", *table(head, strings(cells)), ""]


def of_resume(rows):
    cells = []
    for row in rows:
        of = lambda name: f"{row[name]:.2f}" if name in row else ""
        same = error(row) or f"{len(row['differ'])} of {row['compared']}"
        cells.append([row["model"], row["ranks"], row["resumed_on"], row["compared_with"], same, of("said_s"), of("ended_s"), build(row)])
    head = ["model", "ranks", "resumed on", "compared with a run of", "files and metrics that differ", "said after, s", "all ended, s", "build"]
    words = ("A run is killed after its first checkpoint, by SIGKILL to its last rank's trainer, and goes on with another number of ranks: what it "
             "leaves is compared with what a run leaves that was left alone.")
    return ["## Resumed on another number of ranks", "", words, "", *table(head, strings(cells)), ""]


def of_nccl(rows):
    # Without NCCL, the same run of the same build takes so much less.
    sockets = {(row["model"], row["ranks"], build(row)): row for row in rows if row["exchange"] == "sockets" and "error" not in row}
    cells = []
    for row in rows:
        first = [row["model"], row["ranks"], row["exchange"]]
        if "error" in row:
            cells.append([*first, error(row), "", "", "", "", build(row)])
            continue
        same = f"{len(row['differ'])} of {row['compared']}"
        update = f"{row['update_s']['median']:.2f}"
        without = sockets.get((row["model"], row["ranks"], build(row)))
        is_nccl = row["exchange"] == "nccl"
        took = f"{(row['card_bytes'] - without['card_bytes']) / 2**20:.0f}" if is_nccl and without else ""
        planned = f"{row['nccl_planned_bytes'] / 2**20:.0f}" if is_nccl else ""
        cells.append([*first, same, update, took, planned, row["library"] if is_nccl else "", build(row)])
    head = ["model", "ranks", "exchange", "tensors that differ from one rank's", "update, s", "NCCL takes, MiB", "its row, MiB", "library", "build"]
    words = ("Each card is a host of its own: NCCL has a host id for each, and transports between cards of one host are off, so that "
             "all passes through sockets of the loopback. Bits and memory are those of several hosts, speed is not.")
    return ["## NCCL", "", words, "", *table(head, strings(cells)), ""]


def error(row):
    return row.get("error", "").replace("\n", " ")


def build(row):
    """Returns the commit of the binary, and the cards of the host."""
    return f"{row['commit']}, {row['cards']} cards"


def strings(cells):
    return [[str(cell) for cell in row] for row in cells]
