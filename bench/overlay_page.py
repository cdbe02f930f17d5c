"""Writes what overlay.py found: lines for the terminal, results/overlay.json, docs/proof.md and its pictures.

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
    parts = [HEAD, fell_short, summary(entries), DEFINITIONS]
    parts += [section(entry) for entry in entries]
    return "\n\n".join(parts) + "\n\n" + TESTS


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
        parts.append(f"![{JOBS[job['job']]}: both programs, metric by metric](images/{picture_name(entry, job)})")
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

Does a run here learn what the same run learns elsewhere? Each job below was run by Plimsoll and by a peer with the
same model, the same data in the same order, the same settings, reward and number of samples, both in f32. This page
is written by the command that measures:

    python bench/overlay.py target/release/plimsoll --peer trl --write"""

SUMMARY_NOTE = """The difference is relative and that of the metric that differs most. Seconds are those of one seed's
steps, without loading; memory is the highest resident memory of the training process, Python and PyTorch included. On
a card it is the card's: for Plimsoll all that the driver counts, for the peer what PyTorch's allocator had reserved.
GRPO without bands is not timed: there the peer is given its samples. Nor is a machine where other programs ran."""

DEFINITIONS = """## Where the two differ by definition

None of these is in the tables: where both can be computed, the same quantity is compared.

* **`kl`**: Plimsoll counts a token's estimate with at most 10, as verl does; TRL has no bound, and a token that the
  model seldom samples counts with hundreds. Compared is the bounded mean. With `loss.kl_unbiased`, which is what
  TRL's default `use_bias_correction_kl` comes to, the bound changes no gradient.
* **`loss/policy`** contains the KL term here, and so does TRL's `loss`. Compared is what is left without it.
* **Groups of equal rewards**: here their advantage is 0. TRL subtracts a mean in f32, so that a rounding divided by
  its epsilon of 1e-4 remains: 3e-4 where all eight samples got 1/3. It shows in the `loss` of such steps alone.
* **`reward_std`** is the mean over groups of a group's deviation here, and the deviation of the whole batch in TRL.
  Not compared.
* **The embedding of the padding token** gets no gradient as an input in transformers (`padding_idx`). SmolLM2's
  tokenizer pads with its end of text, which is in every prompt: that row learns from the head alone there, from both
  uses here. In one step of SFT it was all of the difference: the whole gradient was 2.2 % from PyTorch's in f64, and
  1e-5 without `padding_idx`. It shows in `grad_norm` of SmolLM2.
* **Weight decay** leaves out norms and biases in TRL, and nothing here. Both are run without.
* **Warm-up** over W steps begins at rate 0 in TRL, so that its first step changes nothing; here it begins at 1/W of
  the rate, a step earlier. The decay after it is the same. Both are run without warm-up.
* **The head of a new reward model** has the deviation 1 / (hidden + 1) here, and in TRL the `initializer_range` of
  the model's configuration (0.02 for `builtin:nano`). Both begin with the same head, written by the command.

**The reward model's `grad_norm`** differs at late steps alone, most likely by rounding that grows. In the seed that
differs most, Plimsoll's is 4e-8 from TRL's at step 1, 9e-6 at step 10, 2e-4 at 20 and 6e-2 at 30. Plain PyTorch,
which computes with the kernels that TRL uses, is 2e-7 from TRL in the same seed, then 3e-6, 3e-5 and 5e-3: it grows
there too, with roundings that are more alike.

**SmolLM2's reward model on a card** parts the same way, in all that it reports: over five seeds the loss differs by 4e-9
to 7e-8 of itself at step 1, 2e-6 to 1e-5 at step 5, 5e-6 to 1e-4 at 10, 2e-4 to 3e-2 at 25 and 3e-5 to 1e-2 at 50,
down again in all five. Its gradient differs by 8e-5 to 5e-4 at step 1, most likely by the padding token's
embedding (above); whether that or rounding is what grows was not measured apart. The bands of both programs agree."""

TESTS = f"""## The two tests

**Step by step.** Both programs begin with the same weights and learn the same tokens in the same order. For SFT, DPO
and the reward model that is what a run is. For GRPO the peer is given Plimsoll's samples (TRL's `rollout_func`), so
that at every step both compute rewards, advantages, KL and an update from the same tokens, each with the weights that
its own updates made. A metric agrees if the root mean square of the differences over all steps is at most
{stats.TOLERANCE:.0%} of that of the values, in every seed; `learning_rate` is compared too. The tables show the
largest over seeds. Roundings of f32 grow with every update, so a difference in definition shows at the first steps,
and one of rounding at the last.

**Bands.** Each program draws its own samples. A seed gives one number, the metric's mean over the last third of the
steps. The band of n seeds is mean ± t s √(2/n), with s their deviation and t the 99.5 % quantile of Student's
distribution: if both programs do the same, the mean of one lies in the band of the other in {stats.LEVEL:.0%} of
cases. A metric agrees if our mean lies in their band and theirs in ours. Of 100 such metrics about one or two differ
by chance. In SFT, DPO and the reward model seeds differ in their data alone, so the bands say little; the first test
is the sharper one. In GRPO with LoRA each program draws its own adapter for this test, and both begin with the same
file in the other.

The task is sums: three-digit ones for `builtin:nano`, `What is 47 + 85?` in the chat template for SmolLM2. The reward
is 1 for the right number, and half the share of digits in their place otherwise; both programs run the same file,
`bench/peers/overlay_reward.py`. Settings are one table in `bench/overlay_jobs.py`, from which the run file and the
peer's arguments are made. Peers: `bench/peers/overlay_trl.py` calls TRL's trainers; `bench/peers/reference.py` is
plain PyTorch written from the papers, which `.ci/full` compares with the build.
"""
