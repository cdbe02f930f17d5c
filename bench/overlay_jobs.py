"""The jobs of overlay.py: one table of settings, and what each program is given of it.

A job's settings are written once, in JOBS. From them come the data of a seed, Plimsoll's run file, and the settings
that a peer reads; so nothing can be set for one program alone. Standard library only.
"""

import array
import json
import math
import random
import shutil
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
NANO_FOLDER = BENCH.parent / "crates" / "files" / "assets" / "nano"
REWARD = BENCH / "peers" / "overlay_reward.py"

# Both programs: AdamW without weight decay (TRL's trainer leaves norms out of it, Plimsoll does not), linear decay to 0
# without warm-up (TRL's warm-up starts at rate 0, Plimsoll's one step later), weights and arithmetic in f32.
BETAS, EPSILON, GRAD_CLIP = (0.9, 0.999), 1e-8, 1.0


@dataclass(frozen=True)
class Job:
    name: str
    method: str  # Plimsoll's
    steps: int
    rows: int  # prompts, examples or pairs of a step
    learning_rate: float
    group: int = 1  # samples of a prompt
    new_tokens: int = 0
    kl_coef: float = 0.0
    clip: float = 0.2
    dpo_beta: float = 0.1
    lora_rank: int = 0
    lora_alpha: int = 0
    micro_batch: int = 0  # sequences, or pairs, of a peer's pass; 0: all of the step

    @property
    def samples(self):
        """Says whether the job learns from samples of its own, so that no two runs see the same tokens."""
        return self.method == "grpo"


NANO = [
    Job("grpo", "grpo", 40, 16, 1e-4, group=8, new_tokens=5, kl_coef=0.02),
    Job("grpo-lora", "grpo", 40, 16, 1e-3, group=8, new_tokens=5, kl_coef=0.02, lora_rank=8, lora_alpha=16),
    Job("dpo", "dpo", 40, 32, 1e-4),
    Job("sft", "sft", 40, 64, 3e-4),
    Job("reward-model", "reward_model", 40, 64, 5e-4),
]
SMOLLM2 = [
    Job("grpo", "grpo", 40, 32, 1e-5, group=8, new_tokens=24, kl_coef=0.02, micro_batch=64),
    Job(
        "grpo-lora", "grpo", 40, 32, 1e-4, group=8, new_tokens=24, kl_coef=0.02, lora_rank=16, lora_alpha=32,
        micro_batch=64,
    ),
    Job("dpo", "dpo", 50, 16, 5e-6),
    Job("sft", "sft", 50, 16, 2e-5),
    Job("reward-model", "reward_model", 50, 16, 2e-5),
]
JOBS = {"nano": {job.name: job for job in NANO}, "smollm2": {job.name: job for job in SMOLLM2}}

# What is compared: name -> (key of Plimsoll's metrics). A peer reports the names.
METRICS = {
    "grpo": {
        "reward": "reward", "accuracy": "rewards/reward/accuracy", "kl": "kl",
        "response_length": "completions/mean_length", "grad_norm": "grad_norm", "entropy": "entropy",
        "loss": "loss/policy",
    },
    "dpo": {
        "loss": "loss", "accuracy": "rewards/accuracies", "margin": "rewards/margins", "logps_chosen": "logps/chosen",
        "logps_rejected": "logps/rejected", "grad_norm": "grad_norm",
    },
    "sft": {"loss": "loss", "grad_norm": "grad_norm"},
    "reward_model": {
        "loss": "loss", "accuracy": "rewards/accuracies", "margin": "rewards/margins", "grad_norm": "grad_norm",
    },
}


# ---- data ----------------------------------------------------------------------------------------------------------


def task_rows(kind, count, seed):
    """Returns sums in the order in which both programs learn them. No prompt comes twice: it names its step."""
    draw, seen, rows = random.Random(f"{kind} {seed}"), set(), []
    low, high = (100, 1000) if kind == "nano" else (10, 100)
    assert count <= (high - low) ** 2 // 2, f"{count} distinct sums of numbers below {high}"
    while len(rows) < count:
        a, b = draw.randrange(low, high), draw.randrange(low, high)
        if (a, b) not in seen:
            seen.add((a, b))
            rows.append(row(kind, a, b, draw))
    return rows


def row(kind, a, b, draw):
    """One sum in the columns of all jobs; `rejected` has one digit changed."""
    right = str(a + b)
    at, by = draw.randrange(len(right)), draw.randrange(1, 10)
    wrong = right[:at] + str((int(right[at]) + by) % 10) + right[at + 1 :]
    if kind == "nano":
        return {"prompt": f"{a}+{b}=", "completion": right, "chosen": right, "rejected": wrong, "ground_truth": right}
    turn = lambda role, text: [{"role": role, "content": text}]  # noqa: E731
    said = {"completion": right, "chosen": right, "rejected": wrong}
    answers = {name: turn("assistant", f"{a} + {b} = {number}") for name, number in said.items()}
    return {"prompt": turn("user", f"What is {a} + {b}?"), **answers, "ground_truth": right}


COLUMNS = {
    "grpo": ("prompt", "ground_truth"), "sft": ("prompt", "completion"), "dpo": ("prompt", "chosen", "rejected"),
    "reward_model": ("prompt", "chosen", "rejected"),
}


def write_data(path, job, kind, seed):
    keep = COLUMNS[job.method]
    rows = task_rows(kind, job.steps * job.rows, seed)
    path.write_text("".join(json.dumps({name: one[name] for name in keep}) + "\n" for one in rows))


# ---- where a run starts --------------------------------------------------------------------------------------------


def read_header(path):
    with path.open("rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def write_tensors(path, tensors):
    """Writes safetensors in f32. `tensors`: name -> (shape, array of 'f')."""
    header, offset = {}, 0
    for name, (shape, values) in tensors.items():
        assert math.prod(shape) == len(values), (name, shape, len(values))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())


def write_adapter(folder, model, job, seed):
    """Writes a peft adapter on all linear layers: A uniform in +-1/sqrt(inputs), as peft draws it, and B 0."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, tensors, targets = random.Random(f"adapter {seed}"), {}, set()
    for name, entry in read_header(model / "model.safetensors").items():
        if ".layers." not in name or len(entry["shape"]) != 2:
            continue
        (outputs, inputs), rank = entry["shape"], job.lora_rank
        bound, module = 1 / math.sqrt(inputs), name.removesuffix(".weight")
        values = array.array("f", (draw.uniform(-bound, bound) for _ in range(rank * inputs)))
        tensors[f"base_model.model.{module}.lora_A.weight"] = ([rank, inputs], values)
        zeros = array.array("f", bytes(4 * outputs * rank))
        tensors[f"base_model.model.{module}.lora_B.weight"] = ([outputs, rank], zeros)
        targets.add(module.rsplit(".", 1)[1])
    write_tensors(folder / "adapter_model.safetensors", tensors)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(model), "r": job.lora_rank,
        "lora_alpha": job.lora_alpha, "target_modules": sorted(targets), "lora_dropout": 0.0, "bias": "none",
        "use_rslora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def write_reward_model(folder, model, seed):
    """Makes a model for sequence classification: the weights, and a head of deviation 1 / (hidden + 1)."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.is_file() and path.suffix == ".json":
            shutil.copyfile(path, folder / path.name)
    config = json.loads((model / "config.json").read_text())
    hidden, draw = config["hidden_size"], random.Random(f"head {seed}")
    config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "id2label": {"0": "LABEL_0"}}
    config |= {"label2id": {"LABEL_0": 0}}
    (folder / "config.json").write_text(json.dumps(config))
    head = array.array("f", (draw.gauss(0, 1 / (hidden + 1)) for _ in range(hidden)))
    add_tensor(model / "model.safetensors", folder / "model.safetensors", "score.weight", [1, hidden], head)


def add_tensor(source, target, name, shape, values):
    """Copies a safetensors file with one more tensor in f32."""
    header = {key: entry for key, entry in read_header(source).items() if key != "__metadata__"}
    data = source.read_bytes()
    data = data[8 + struct.unpack("<Q", data[:8])[0] :]
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + data + values.tobytes())


# ---- what each program is given ------------------------------------------------------------------------------------

RUN = """# {name} of bench/overlay.py, seed {seed}
method = "{method}"
model  = "{model}"
seed   = {seed}

[model_options]
dtype = "f32"

[data]
prompts = "{data}"
shuffle = false{template}

[rollout]
prompts_per_step = {rows}
{sections}
[train]
steps           = {steps}
learning_rate   = {learning_rate}
schedule        = "linear"
betas           = [{beta1}, {beta2}]
adam_epsilon    = {epsilon}
grad_clip       = {grad_clip}
optimizer_dtype = "f32"
grad_dtype      = "f32"

[run]
device  = "{device}"
dir     = "{folder}/out"{threads}
"""


def run_file(job, kind, seed, device, folder, model, adapter=None, threads=None):
    """Returns Plimsoll's run file of a job."""
    sections = ""
    if job.samples:
        # TRL multiplies its estimate of the KL by the ratio (use_bias_correction_kl), whose gradient is kl_unbiased's.
        sections = (
            f"group_size       = {job.group}\nmax_new_tokens   = {job.new_tokens}\ntemperature      = 1.0\n\n"
            f'[[reward]]\nkind      = "python:{folder}/reward.py:reward"\nsignature = "trl"\nworkers   = 1\n\n[loss]\n'
            f'clip_low    = {job.clip}\nclip_high   = {job.clip}\naggregation = "token_mean"\n'
            f"kl_coef     = {job.kl_coef}\nkl_unbiased = true\n"
        )
    if job.method == "dpo":
        sections = f"\n[loss]\ndpo_beta = {job.dpo_beta}\n"
    if job.lora_rank:
        start = f'adapter = "{adapter}"\n' if adapter else ""
        sections += f"\n[lora]\nrank    = {job.lora_rank}\nalpha   = {job.lora_alpha}\n{start}"
    return RUN.format(
        **asdict(job) | {"learning_rate": repr(job.learning_rate)}, model=model, seed=seed, data=f"{folder}/data.jsonl",
        template='\nchat_template = "none"' if kind == "nano" else "", sections=sections, device=device, folder=folder,
        threads=f"\nthreads = {threads}" if threads else "", beta1=BETAS[0], beta2=BETAS[1], epsilon=f"{EPSILON:.10f}",
        grad_clip=GRAD_CLIP,
    )


def peer_settings(job, seed, device, folder, out, model, adapter=None, replay=False, threads=None):
    """Returns what a peer reads: the same table, and where the same files are."""
    return {
        **asdict(job), "seed": seed, "device": device, "model": str(model), "data": f"{folder}/data.jsonl",
        "out": str(out), "adapter": str(adapter) if adapter else None, "reward": f"{folder}/reward.py",
        "samples": f"{folder}/samples.jsonl" if replay else None, "threads": threads, "betas": BETAS,
        "epsilon": EPSILON, "grad_clip": GRAD_CLIP,
    }


def our_steps(job, folder):
    """Returns a run of Plimsoll in a peer's form: the steps with METRICS, seconds, peaks of memory."""
    events = [json.loads(line) for line in (folder / "out" / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    rows = []
    for event in steps:
        found = {name: event["metrics"][key] for name, key in METRICS[job.method].items()}
        if job.samples:  # `loss/policy` contains the KL term; what is left is more sensitive than the sum.
            found["loss"] -= job.kl_coef * found["kl"]
        rows.append(found | {"learning_rate": event["metrics"]["learning_rate"]})
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert not job.samples or summary["logprob_mismatch_max"] == 0.0
    return {
        "steps": rows, "seconds": sum(event["metrics"]["step_time"] for event in steps),
        "peak_rss_bytes": summary["rss_peak_bytes"], "peak_device_bytes": summary.get("device_used_bytes"),
    }
