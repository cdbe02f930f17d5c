"""Writes what overlay.py found: lines for the terminal, results/overlay.json, the two pages of docs and their pictures.

An entry is a call of overlay.py with --write: a model, a peer, a device. A later call replaces the entry that has the
same three, and leaves the others.
"""

import json
from pathlib import Path

import overlay_picture
import overlay_stats as stats
import results

BENCH = Path(__file__).resolve().parent
RESULTS = BENCH / "results" / "overlay.json"
PAGE = BENCH.parent / "docs" / "proof.md"
DETAILS = BENCH.parent / "docs" / "details" / "proof.md"
PICTURES = BENCH.parent / "docs" / "images"
PEERS = {"trl": "TRL", "reference": "plain PyTorch"}
JOBS = {
    "grpo": "GRPO of all weights", "grpo-lora": "GRPO of adapters (LoRA)", "dpo": "DPO", "sft": "SFT",
    "reward-model": "reward model",
}
DIGITS = 6  # Of a curve's numbers in the results file.


# ---- the terminal --------------------------------------------------------------------------------------------------


def lines_of(found):
    """Returns the verdict of each job, metric by metric."""
    lines = []
    for job in found:
        lines.append(f"{job['job']}: {verdict(job)}; {costs(job)}")
        for name, one in job["same"].items():
            lines.append(f"  {name:16} same tokens: differs by {same(one)}: {agrees(one)}")
        for name, one in (job["bands"] or {}).items():
            lines.append(f"  {name:16} bands: {band(one, 'ours')}, theirs {band(one, 'theirs')}: {agrees(one)}")
    return lines


def verdict(job):
    """Returns how many metrics agree by each test."""
    count = lambda test: f"{sum(one['holds'] for one in test.values())} of {len(test)}"  # noqa: E731
    bands = f"{count(job['bands'])} metrics in both bands" if job["bands"] else "bands need 3 seeds"
    return f"{count(job['same'])} metrics agree step by step, {bands}"


def costs(job):
    """Returns seconds and memory of both. GRPO without bands is not timed: the peer drew no samples."""
    seconds, memory = job.get("seconds"), memory_of(job)
    times = lambda pair: f"{pair['theirs'] / pair['ours']:.1f}"  # noqa: E731
    took = "not timed"
    if seconds:
        took = f"{seconds['ours']:.1f} s, theirs {seconds['theirs']:.1f} s ({times(seconds)} times)"
    return f"{took}; {gib(memory['ours'])}, theirs {gib(memory['theirs'])} ({times(memory)} times)"


def memory_of(job):
    """Returns the peaks of both: of the card's memory where there is a card, else of the process."""
    return job.get("peak_device_bytes", job["peak_rss_bytes"])


def agrees(one):
    return "agrees" if one["holds"] else "DIFFERS"


def band(one, whose):
    return f"{one[whose]:.4g} ± {one[whose + '_half']:.2g}"


def gib(count):
    return f"{count / results.GIB:.2f} GiB"


# ---- results and page ----------------------------------------------------------------------------------------------


def write(entry):
    """Puts an entry into the results file, and writes the page and the entry's pictures."""
    key = lambda one: (one["model"], one["peer"], one["device"])  # noqa: E731
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"entries": []}
    entries = [one for one in found["entries"] if key(one) != key(entry)] + [stored(entry)]
    # What says most comes first: on a card, more seeds.
    seeds = lambda one: one["jobs"][0]["seeds"]  # noqa: E731
    entries.sort(key=lambda one: (one["peer"] != "trl", one["device"] != "cuda", -seeds(one), one["model"]))
    RESULTS.write_text(json.dumps({"entries": entries}, indent=1) + "\n")
    for job in entry["jobs"]:
        if job["bands"]:
            peer = f"{PEERS[entry['peer']]} {job['versions'].get('trl', job['versions']['torch'])}"
            (PICTURES / picture_name(entry, job)).write_text(overlay_picture.draw(job["curves"], peer))
    PAGE.write_text(page(entries))
    DETAILS.write_text(details(entries))


def stored(entry):
    """Leaves out the curves, which are in the pictures."""
    keep = lambda job: {name: value for name, value in job.items() if name != "curves"}  # noqa: E731
    return entry | {"jobs": [keep(job) for job in entry["jobs"]]}


def picture_name(entry, job):
    model = "nano" if "nano" in entry["model"] else "smollm2"
    return f"proof-{model}-{entry['peer']}-{entry['device']}-{job['job']}.svg"


def title(entry):
    versions = entry["jobs"][0]["versions"]
    peer = f"TRL {versions['trl']}" if entry["peer"] == "trl" else f"plain PyTorch {versions['torch']}"
    model = f"`{entry['model']}`" if ":" in entry["model"] else entry["model"]
    return f"{model} next to {peer}, on {'the CPU' if entry['device'] == 'cpu' else 'a card'}"


def page(entries):
    fell_short = "## What fell short\n\n" + "\n".join(f"* {line}" for line in short(entries))
    return "\n\n".join([HEAD, fell_short, summary(entries), DEFINITIONS, TESTS])


def details(entries):
    """Returns the second page: every metric of every job, with its picture."""
    return "\n\n".join([DETAILS_HEAD] + [section(entry) for entry in entries]) + "\n"


# What the page is to show, each of five jobs with five seeds: (peer, part of the model's name, device, in words).
NEEDED = [
    ("trl", "SmolLM2", "cuda", "SmolLM2-135M-Instruct next to TRL on a card"),
    ("trl", "nano", "cpu", "`builtin:nano` next to TRL"),
    ("reference", "nano", "cpu", "`builtin:nano` next to plain PyTorch"),
]
SEEDS = 5


def short(entries):
    """Returns what did not agree, and what was not run."""
    lines = []
    for entry in entries:
        for job in entry["jobs"]:
            steps = [f"`{name}` ({same(one)})" for name, one in job["same"].items() if not one["holds"]]
            bands = [f"`{name}`" for name, one in (job["bands"] or {}).items() if not one["holds"]]
            for names, test in ((steps, "step by step"), (bands, "in bands")):
                if names:
                    lines.append(f"{title(entry)}, {JOBS[job['job']]}, differs {test}: {', '.join(names)}.")
    for peer, model, device, said in NEEDED:
        done = {
            job["job"] for one in entries for job in one["jobs"]
            if (one["peer"], one["device"]) == (peer, device) and model in one["model"] and job["seeds"] >= SEEDS
        }
        missing = [JOBS[name] for name in JOBS if name not in done]
        if missing:
            lines.append(f"Not run with five seeds, {said}: {', '.join(missing)}.")
    lines += few_steps(entries)
    if busy := [title(entry) for entry in entries if is_busy(entry)]:
        lines.append(f"Seconds are not shown, because other programs used the same cores: {'; '.join(busy)}.")
    return lines or ["Nothing: all five jobs were run with five seeds, and every metric agrees."]


def same(one):
    return f"{one['first_step']:.0e} at the first step, {one['all_steps']:.0e} over all"


def few_steps(entries):
    """Returns which entries are short: fewer seeds than bands need."""
    lines = []
    for entry in entries:
        jobs = [job for job in entry["jobs"] if not job["bands"]]
        if jobs:
            said = ", ".join(f"{JOBS[job['job']]} ({job['seeds']} x {job['settings']['steps']} steps)" for job in jobs)
            lines.append(f"{title(entry)}: compared step by step alone, with too few seeds for bands: {said}.")
    return lines


def summary(entries):
    head = [
        "model, peer", "job", "seeds x steps", "metrics that agree step by step", "largest difference",
        "metrics in both bands", "seconds, theirs / ours", "memory, theirs / ours",
    ]
    rows = [summary_row(entry, job) for entry in entries for job in entry["jobs"]]
    return "## In one table\n\n" + "\n".join(results.table(head, rows)) + "\n\n" + SUMMARY_NOTE


def summary_row(entry, job):
    name, worst = max(job["same"].items(), key=lambda item: item[1]["all_steps"])
    bands, seconds, memory = job["bands"], job.get("seconds"), memory_of(job)
    timed = seconds and not is_busy(entry)
    ratio = lambda pair: f"{pair['theirs'] / pair['ours']:.1f}"  # noqa: E731
    return [
        title(entry), JOBS[job["job"]], f"{job['seeds']} x {job['settings']['steps']}",
        f"{sum(one['holds'] for one in job['same'].values())} of {len(job['same'])}",
        f"{worst['all_steps']:.0e} (`{name}`)",
        f"{sum(one['holds'] for one in bands.values())} of {len(bands)}" if bands else "not judged",
        f"{seconds['theirs']:.1f} / {seconds['ours']:.1f} = **{ratio(seconds)}**" if timed else "not timed",
        f"{gib(memory['theirs'])} / {gib(memory['ours'])} = **{ratio(memory)}**",
    ]


def section(entry):
    versions = ", ".join(f"{name} {version}" for name, version in entry["jobs"][0]["versions"].items())
    cpu, threads = entry["machine"]["cpu"], entry["threads"]
    where = f"{cpu}, {threads} thread{'s' * (threads > 1)} each" if entry["device"] == "cpu" else entry["jobs"][0]["card"]
    parts = [f"## {title(entry)}", f"{versions}; {where}; f32."]
    return "\n\n".join(parts + [job_part(entry, job) for job in entry["jobs"]])


def is_busy(entry):
    """Says whether other programs had the cores too: then the two programs were not timed alike."""
    return entry["load"] > entry["machine"]["num_cores"]


def job_part(entry, job):
    """One job: settings, its picture where there are bands, and its table."""
    parts = [f"### {JOBS[job['job']]}", said_settings(job["settings"], job["seeds"])]
    if job["bands"]:
        parts.append(f"![{JOBS[job['job']]}: both programs, metric by metric](../images/{picture_name(entry, job)})")
    head = ["metric", "step by step: first, all", "ours", "theirs", "verdict"]
    parts.append("\n".join(results.table(head, [metric_row(job, name, one) for name, one in job["same"].items()])))
    if (unbounded := job.get("kl_unbounded")) and unbounded > 1.001:
        parts.append(f"The peer's own `kl`, without a bound, is {unbounded:.3f} times the bounded one.")
    return "\n\n".join(parts)


def said_settings(job, seeds):
    rows = {"grpo": "prompts", "sft": "examples"}.get(job["method"], "pairs")
    said = f"{seeds} seed{'s' * (seeds > 1)}, {job['steps']} steps of {job['rows']} {rows}"
    said += f", learning rate {job['learning_rate']:g}"
    if job["method"] == "grpo":
        said += f", {job['group']} samples a prompt of at most {job['new_tokens']} tokens"
        said += f", KL coefficient {job['kl_coef']:g}"
    if job["method"] == "dpo":
        said += f", beta {job['dpo_beta']:g}"
    return said + (f", rank {job['lora_rank']}, alpha {job['lora_alpha']}" if job["lora_rank"] else "") + "."


def metric_row(job, name, one):
    bands = (job["bands"] or {}).get(name)
    holds = one["holds"] and (bands is None or bands["holds"])
    both = [band(bands, "ours"), band(bands, "theirs")] if bands else ["", ""]
    same = f"{one['first_step']:.0e}, {one['all_steps']:.0e}"
    return [f"`{name}`", same, *both, "agrees" if holds else "**differs**"]


HEAD = """# Proof: laid over TRL

Does a run here learn what the same run learns elsewhere? Each job was run by Plimsoll and by a peer with the same
model, the same data in the same order, the same settings, reward and number of samples, both in f32. This page and
[every metric of every job](details/proof.md) are written by the command that measures:

    python bench/overlay.py target/release/plimsoll --peer trl --write"""

DETAILS_HEAD = """# Laid over TRL, metric by metric

What [the proof](../proof.md) sums up. `step by step` is the difference at the first step and over all; `ours` and
`theirs` are means of the last third of the steps with their bands."""

SUMMARY_NOTE = """The difference is relative and that of the metric that differs most. Seconds are those of one seed's
steps, without loading; memory is the highest resident memory of the training process, Python and PyTorch included. On
a card it is the card's: for Plimsoll all that the driver counts, for the peer what PyTorch's allocator had reserved.
GRPO without bands is not timed: there the peer is given its samples. Nor is a machine where other programs ran."""

DEFINITIONS = """## Where the two differ by definition

None of these is in the tables: where both can be computed, the same quantity is compared.

| what | here | in TRL | compared |
|---|---|---|---|
| `kl` | a token counts with at most 10, as in verl; with `loss.kl_unbiased`, TRL's default `use_bias_correction_kl`, the bound changes no gradient | no bound: a token that is seldom sampled counts with hundreds | the bounded mean |
| `loss/policy` | with the KL term; of several updates in a step their mean | `loss`, with it too | without it |
| advantage in groups of equal rewards | 0 | a rounding of the mean divided by 1e-4: 3e-4 where all eight samples got 1/3 | as it is: it shows in the `loss` of such steps alone |
| `reward_std` | mean over groups | of the whole batch | no |
| embedding of the padding token | learns as any other | none as an input (`padding_idx`). SmolLM2 pads with its end of text, which is in every prompt: in a step of SFT that was all of the difference (2.2 % of the gradient in f64, 1e-5 without `padding_idx`) | as it is: it shows in `grad_norm` of SmolLM2 |
| weight decay | of all | not of norms and biases | run without |
| warm-up over W steps | begins at 1/W of the rate | begins at 0, a step later | run without |
| head of a new reward model | deviation 1 / (hidden + 1) | `initializer_range` (0.02 for `builtin:nano`) | both begin with the same head |

The reward model's `grad_norm` differs at late steps alone, most likely by rounding that grows:

| differs by | step 1 | step 5 | step 10 | step 20 | step 25 | step 30 | step 50 |
|---|---|---|---|---|---|---|---|
| `builtin:nano`, worst seed, from TRL | 4e-8 | | 9e-6 | 2e-4 | | 6e-2 | |
| plain PyTorch from TRL, same seed | 2e-7 | | 3e-6 | 3e-5 | | 5e-3 | |
| SmolLM2 on a card, `loss`, five seeds | 4e-9 to 7e-8 | 2e-6 to 1e-5 | 5e-6 to 1e-4 | | 2e-4 to 3e-2 | | 3e-5 to 1e-2 |

SmolLM2's gradient differs by 8e-5 to 5e-4 at step 1, most likely by the padding token's embedding; whether that or
rounding is what grows was not measured apart. The bands of both programs agree."""

TESTS = f"""## The two tests

| | step by step | bands |
|---|---|---|
| samples | SFT, DPO and the reward model: the same data. GRPO: the peer is given Plimsoll's samples (TRL's `rollout_func`) | each program draws its own |
| a number | the root mean square of the differences over all steps, by that of the values | the metric's mean over the last third of the steps, one a seed |
| agrees if | at most {stats.TOLERANCE:.0%} in every seed; the tables show the largest | our mean lies in their band mean ± t s √(2/n) and theirs in ours: s the deviation of n seeds, t the 99.5 % quantile of Student's distribution, so {stats.LEVEL:.0%} of cases where both do the same |
| reads | a difference in definition shows at the first steps, one of rounding at the last | of 100 metrics about one or two differ by chance; in SFT, DPO and the reward model seeds differ in their data alone, so the first test is the sharper one |
| adapters of GRPO with LoRA | both begin with the same file | each program draws its own |

The task is sums: three-digit ones for `builtin:nano`, `What is 47 + 85?` in the chat template for SmolLM2. The reward
is 1 for the right number, and half the share of digits in their place otherwise (`bench/peers/overlay_reward.py`, for
both). Settings are one table in `bench/overlay_jobs.py`. Peers: `bench/peers/overlay_trl.py` calls TRL's trainers;
`bench/peers/reference.py` is plain PyTorch written from the papers, which `.ci/full` compares with the build.
"""
