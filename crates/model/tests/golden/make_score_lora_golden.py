#!/usr/bin/env python3
"""Make adapters of tiny reward models and their reference numbers with peft and transformers, float32 on CPU.

    python make_score_lora_golden.py      # reads and writes next to this file

For each entry of ADAPTERS it takes the tiny language model of that name (config.json, model.safetensors, and the tokens of
reference.safetensors) as a model for sequence classification with one label, and writes lora_score/<name>/ with
adapter_config.json and adapter_model.safetensors, as peft saves them, and with reference.safetensors; then
lora_score/README.md, the legend. Everything is computed a second time in float64, as far as transformers allows.

Needs torch, transformers (4.57), peft (0.17), safetensors. The same versions give the same bytes on one machine.
"""

import json
import math
from pathlib import Path

import peft
import safetensors.torch
import torch
import transformers

HERE = Path(__file__).resolve().parent
# The derivative of the loss by the score of each sequence.
WEIGHTS = [0.7, -1.1, 0.4]
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
ADAPTERS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen2": ["q_proj", "v_proj", "down_proj"],
}
RANK, ALPHA = 4, 8


def main():
    torch.set_num_threads(1)  # one order of summation
    rows = []
    for seed, (name, targets) in enumerate(ADAPTERS.items()):
        rows.append(make_adapter(HERE / "lora_score" / name, name, targets, seed))
        print(rows[-1])
    text = README.format(versions=versions(), table=table(rows), rank=RANK, alpha=ALPHA, weights=WEIGHTS)
    (HERE / "lora_score" / "README.md").write_text(text, encoding="utf-8")


def make_adapter(directory, name, targets, seed):
    directory.mkdir(parents=True, exist_ok=True)
    base = HERE / name
    tokens = safetensors.torch.load_file(base / "reference.safetensors")
    sequences = [tokens[f"seq{index}.input_ids"] for index in range(len(WEIGHTS))]

    model = new_model(base, targets)
    randomize(model, torch.Generator().manual_seed(2000 + seed))
    save(model, directory, name)
    reference = compute_reference(model, sequences)
    check_reload(base, directory, reference, sequences)
    safetensors.torch.save_file(reference, directory / "reference.safetensors")

    exact_model = new_model(base, targets).double()
    weights = safetensors.torch.load_file(directory / "adapter_model.safetensors")
    with torch.no_grad():
        for key, parameter in trained(exact_model):
            parameter.copy_(weights[key].double())
    return summary(name, reference, compute_reference(exact_model, sequences))


def plain_model(base):
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=1, attn_implementation="eager", dtype=torch.float32, pad_token_id=None
    )


def new_model(base, targets):
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        target_modules=targets,
        task_type="SEQ_CLS",
        modules_to_save=["score"],
    )
    return peft.get_peft_model(plain_model(base), config).eval()


def trained(model):
    """The parameters that are trained, under the names of peft's files, which leave the adapter's name out."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name.replace(".modules_to_save.default.", ".").replace(".default.", "."), parameter


def randomize(model, generator):
    """A as large as a row of the base, B large enough that every adapter changes the score, a head of a visible size."""
    with torch.no_grad():
        for name, parameter in trained(model):
            noise = torch.randn(parameter.shape, generator=generator)
            size = 0.2 if ".lora_B." in name else 1.0
            parameter.copy_(size * noise / math.sqrt(parameter.shape[1]))


def save(model, directory, base):
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(directory)
    (directory / "README.md").unlink()  # a model card without facts
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text())
    # Sets, whose order changes from run to run.
    for key in ["target_modules", "modules_to_save"]:
        config[key] = sorted(config[key])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    names = safetensors.torch.load_file(directory / "adapter_model.safetensors").keys()
    assert "base_model.model.score.weight" in names, sorted(names)


def check_reload(base, directory, reference, sequences):
    loaded = peft.PeftModel.from_pretrained(plain_model(base), directory).eval()
    with torch.no_grad():
        for index, input_ids in enumerate(sequences):
            score = loaded(input_ids[None]).logits[0]
            assert torch.equal(score, reference[f"seq{index}.score"]), (directory, index)


def compute_reference(model, sequences):
    reference, loss = {}, 0.0
    for index, (weight, input_ids) in enumerate(zip(WEIGHTS, sequences)):
        score = model(input_ids[None]).logits[0]  # [1], at the last token
        loss = loss + weight * score.sum()
        reference[f"seq{index}.input_ids"] = input_ids
        reference[f"seq{index}.score"] = score.detach()
    model.zero_grad()
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in trained(model)}
    reference.update({f"grad.{name}": gradient for name, gradient in gradients.items()})
    torch.optim.AdamW([parameter for _, parameter in trained(model)], **ADAMW).step()
    reference.update({f"adamw.{name}": parameter.detach().clone() for name, parameter in trained(model)})
    return reference


def summary(name, reference, exact):
    def difference(prefix, suffix=""):
        keys = [key for key in reference if key.startswith(prefix) and key.endswith(suffix)]
        return max((reference[key].double() - exact[key].double()).abs().max().item() for key in keys)

    gradients = [value for key, value in reference.items() if key.startswith("grad.")]
    return {
        "adapter": name,
        "parameters": sum(gradient.numel() for gradient in gradients),
        "scores": ", ".join(f"{reference[f'seq{i}.score'].item():.4f}" for i in range(len(WEIGHTS))),
        "d score": f"{difference('seq', '.score'):.1e}",
        "d grad": f"{difference('grad.'):.1e}",
        "largest grad": f"{max(gradient.abs().max().item() for gradient in gradients):.2f}",
        "d adamw": f"{difference('adamw.'):.1e}",
    }


def table(rows):
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows])


def versions():
    torch_version = torch.__version__.split("+")[0]
    return f"torch {torch_version}, transformers {transformers.__version__}, peft {peft.__version__}"


README = """# Adapters of reward models with reference numbers

Random adapters of the tiny models in `../llama` and `../qwen2` as models for sequence classification with one label, and what peft
computes from them in float32 on CPU, eager attention. Made by `../make_score_lora_golden.py` with {versions}.

Rank {rank}, `lora_alpha` {alpha}, `task_type` SEQ_CLS; A, B and the head, which is trained in full (`modules_to_save`), are random. Each
folder holds `adapter_config.json` and `adapter_model.safetensors`, as peft saves them, and `reference.safetensors`.

| tensor | shape | meaning |
|---|---|---|
| `seq{{i}}.input_ids` | [T] | the tokens of the tiny model's reference, T = 7, 33, 64, each run alone |
| `seq{{i}}.score` | [1] | the score, at the last token |
| `grad.NAME` | as NAME | gradient of sum(w_i score_i), w = {weights}, for NAME of `adapter_model.safetensors` |
| `adamw.NAME` | as NAME | A, B or the head after one AdamW step from zero moments |

AdamW: lr 1e-3, beta1 0.9, beta2 0.95, eps 1e-8, decoupled weight decay 0.01 on all of them, bias correction on, no clipping.

`d ...` is the largest absolute difference from the same numbers in float64, where transformers keeps the norms, the rope tables and the
softmax of attention in float32.

{table}
"""

if __name__ == "__main__":
    main()
