"""What compare.py found, in words: lines on the terminal, a JSON file, and a Markdown table made from it."""

import json

GIB = 2**30


def lines(part, record):
    """The ratios of one part, a line each."""
    out = []
    for name, row in record["contenders"].items():
        share = row["runs"][-1].get("share_of_peak")
        of_peak = f", {share:.0%} of this machine's peak" if share is not None else ""
        out.append(
            f"{part}: {name} {row['median']:.4g} {record['unit']} ({row['min']:.4g}..{row['max']:.4g}), "
            f"peak RSS {row['peak_rss_bytes'] / GIB:.2f} GiB{of_peak}"
        )
    for name, ratio in record["ratios"].items():
        out.append(
            f"{part}: {ratio['median']:.2f}x {name} (min {ratio['min']:.2f}), floor {ratio['floor']}x: {verdict(ratio)}"
        )
        if memory := ratio.get("memory"):
            out.append(
                f"{part}: {memory['share']:.3f} of {name}'s peak RSS, at most {memory['at_most']}: {verdict(memory)}"
            )
    return "\n".join(out)


def verdict(row):
    return "holds" if row["holds"] else "missed"


def write(path, found):
    """Writes `path` (JSON) and the table beside it. Parts that were not run now stay, if the machine is the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for record in found["parts"].values():
        record["commit"] = found["commit"]
    if path.exists():
        before = json.loads(path.read_text())
        if before["machine"] == found["machine"]:
            found["parts"] = {**before["parts"], **found["parts"]}
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(found))


def table(found):
    """The Markdown page of a results file."""
    machine = found["machine"]
    out = [
        "# Plimsoll and its peers on the CPU",
        "",
        f"Machine: {machine['cpu']} (family {machine['cpu_family']}, model {machine['cpu_model']}; "
        f"{', '.join(machine['cpu_flags'])}), {machine['num_cores']} cores, "
        f"{machine['memory_bytes'] / GIB:.1f} GiB, {machine['kernel']}.",
        "Model: SmolLM2-135M-Instruct, bf16. Made by `python bench/compare.py`, which runs everyone in turn; its head "
        "says what the work is. A ratio is of two runs of the same repeat: median, and the least.",
        "",
        "| part | who | unit | min | median | max | share of peak | peak RSS GiB | Plimsoll's ratio | least | floor |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part, record in found["parts"].items():
        out += [row(part, record, name) for name in record["contenders"]]
    out.append("")
    for part, record in found["parts"].items():
        for name, ratio in record["ratios"].items():
            if memory := ratio.get("memory"):
                out.append(
                    f"- {part}: Plimsoll's peak RSS is {memory['share']:.3f} of {name}'s "
                    f"(at most {memory['at_most']}: {verdict(memory)})."
                )
        noise = max(run["other_cores"] for who in record["contenders"].values() for run in who["runs"])
        out.append(
            f"- {part}: commit {record['commit']}, {record['when']}, {record['repeats']} repeats, "
            f"{record['threads']} threads; other processes used at most {noise} cores."
        )
    out += [f"- Versions: {versions(found)}.", ""]
    return "\n".join(out)


def row(part, record, name):
    found, ratio = record["contenders"][name], record["ratios"].get(name)
    share = found["runs"][-1].get("share_of_peak")
    cells = [part, name, record["unit"], *(f"{found[key]:.4g}" for key in ("min", "median", "max"))]
    cells += [f"{share:.0%}" if share is not None else "", f"{found['peak_rss_bytes'] / GIB:.2f}"]
    if ratio:
        cells += [f"{ratio['median']:.2f}x", f"{ratio['min']:.2f}x", f"{ratio['floor']}x, {verdict(ratio)}"]
    else:
        cells += ["", "", ""]
    return "| " + " | ".join(cells) + " |"


def versions(found):
    """`package version` of all contenders, each once."""
    pairs = {
        f"{package} {version}": None
        for record in found["parts"].values()
        for who in record["contenders"].values()
        for package, version in who["versions"].items()
    }
    return ", ".join(sorted(pairs))
