#!/usr/bin/env python3
"""Make adapters of the tiny models and their reference numbers with peft and transformers, float32 on CPU.

    python make_lora_golden.py            # reads and writes next to this file
    python make_lora_golden.py qwen3_next # writes these adapters alone and prints their rows, for README.md

For each entry of ADAPTERS it takes the tiny model of that name (config.json, model.safetensors, and the tokens of
reference.safetensors) and writes lora/<name>/ with adapter_config.json and adapter_model.safetensors, as peft saves them, and
with reference.safetensors; then lora/README.md, the legend. Everything is computed a second time in float64, as far as
transformers allows; the README lists the largest differences, so that a tolerance can be chosen with a reason.

Needs torch, transformers (4.57; 5.23 for Qwen3.5 and Qwen3-Next), peft (0.17; 0.21), safetensors. The same versions give the same bytes on one machine.
"""

import json
import math
import sys
from pathlib import Path

import peft
import safetensors.torch
import torch
import transformers

HERE = Path(__file__).resolve().parent
NUM_SEQUENCES = 3
GREEDY_TOKENS = 20
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
# The first AdamW step moves every weight by about lr * sign(gradient). Below this gradient the sign may be rounding.
SMALL_GRADIENT = 1e-6
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

ADAPTERS = {
    "llama": dict(model="llama", targets=ALL_LINEAR, rslora=False),
    "llama_qv_rslora": dict(model="llama", targets=["q_proj", "v_proj"], rslora=True),
    "qwen2": dict(model="qwen2", targets=ALL_LINEAR, rslora=False),
    "qwen3": dict(model="qwen3", targets=ALL_LINEAR, rslora=False),
    "qwen3_moe": dict(model="qwen3_moe", targets=ALL_LINEAR, rslora=False),
    "qwen3_moe_mixed": dict(model="qwen3_moe_mixed", targets=["v_proj", "gate_proj", "down_proj"], rslora=False),
    "qwen3_5_moe": dict(
        model="qwen3_5_moe",
        targets=ALL_LINEAR + ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"],
        rslora=False,
    ),
    "qwen3_next": dict(
        model="qwen3_next",
        targets=["q_proj", "v_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"],
        rslora=False,
    ),
    "qwen3_5_moe_experts": dict(
        model="qwen3_5_moe",
        targets=["q_proj", "in_proj_z"],
        parameters=["mlp.experts.down_proj", "mlp.experts.gate_up_proj"],
        rslora=False,
    ),
    "glm4_moe_experts": dict(
        model="glm4_moe", targets=["v_proj"], parameters=["experts.gate_up_proj"], rslora=False
    ),
    "ministral3": dict(model="ministral3", targets=ALL_LINEAR, rslora=False),
    "gemma4": dict(model="gemma4", targets=ALL_LINEAR, rslora=False),
    "deepseek_v3": dict(
        model="deepseek_v3",
        targets=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        rslora=False,
    ),
    # Names of shared experts are those of routed ones to peft, unless they are parameters.
    "moonlight": dict(
        model="moonlight",
        targets=["q_proj", "kv_b_proj"],
        parameters=[f"mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")],
        rslora=False,
    ),
    "gemma4_moe": dict(
        model="gemma4_moe",
        targets=ALL_LINEAR,
        parameters=["experts.gate_up_proj", "experts.down_proj"],
        rslora=False,
    ),
    "gemma4_e": dict(model="gemma4_e", targets=ALL_LINEAR, rslora=False),
}
# Those that transformers 4.57 does not know.
OF_5 = ["qwen3_5_moe", "qwen3_next", "qwen3_5_moe_experts", "glm4_moe_experts", "ministral3", "gemma4", "gemma4_moe", "gemma4_e", "deepseek_v3", "moonlight"]
RANK, ALPHA = 4, 8


def main():
    torch.set_num_threads(1)  # one order of summation
    rows, only = [], sys.argv[1:]
    for seed, (name, adapter) in enumerate(ADAPTERS.items()):
        if (only and name not in only) or (name in OF_5) != transformers.__version__.startswith("5."):
            continue
        rows.append(make_adapter(HERE / "lora" / name, name, adapter, seed))
        print(rows[-1])
    if only:
        return
    text = README.format(versions=versions(), table=table(rows), rank=RANK, alpha=ALPHA)
    (HERE / "lora" / "README.md").write_text(text, encoding="utf-8")


def make_adapter(directory, name, adapter, seed):
    directory.mkdir(parents=True, exist_ok=True)
    base = HERE / adapter["model"]
    tokens = safetensors.torch.load_file(base / "reference.safetensors")
    sequences = [tokens[f"seq{index}.input_ids"] for index in range(NUM_SEQUENCES)]

    model = new_model(base, adapter)
    randomize(model, torch.Generator().manual_seed(1000 + seed))
    save(model, directory, adapter["model"])
    check_reload(base, directory, model, sequences[0])
    reference = compute_reference(model, sequences)
    safetensors.torch.save_file(reference, directory / "reference.safetensors")

    exact_model = new_model(base, adapter).double()
    weights = safetensors.torch.load_file(directory / "adapter_model.safetensors")
    with torch.no_grad():
        for key, parameter in trained(exact_model):
            parameter.copy_(weights[key].double())
    return summary(name, reference, compute_reference(exact_model, sequences))


def new_model(base, adapter):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, attn_implementation="eager", dtype=torch.float32
    )
    one_expert_at_a_time(model)
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        target_modules=adapter["targets"],
        target_parameters=adapter.get("parameters"),
        use_rslora=adapter["rslora"],
        task_type="CAUSAL_LM",
    )
    return peft.get_peft_model(model, config).eval()


def trained(model):
    """The parameters that are trained, under the names of peft's files, which leave the adapter's name out."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name.replace(".default.", "."), parameter


def randomize(model, generator):
    """A as large as a row of the base, B large enough that every adapter changes the logits."""
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
    config["target_modules"] = sorted(config["target_modules"])  # a set, whose order changes from run to run
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def check_reload(base, directory, model, input_ids):
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=torch.float32)
    one_expert_at_a_time(plain)
    loaded = peft.PeftModel.from_pretrained(plain, directory).eval()
    with torch.no_grad():
        # Where weights lie in memory may change the last bit of a product of a few rows.
        difference = (loaded(input_ids[None]).logits - model(input_ids[None]).logits).abs().max()
    assert difference < 1e-5, (directory, difference)


def one_expert_at_a_time(model):
    """Lets transformers 5 add experts in ascending order, in the model's dtype."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")


def compute_reference(model, sequences):
    reference = {}
    nll_sum, num_targets = 0.0, 0
    for index, input_ids in enumerate(sequences):
        logits = model(input_ids[None]).logits[0]  # [T, V]
        log_softmax = torch.log_softmax(logits, dim=-1)  # [T, V]
        log_probs = log_softmax[:-1].gather(1, input_ids[1:, None])[:, 0]  # [T-1]
        nll_sum, num_targets = nll_sum - log_probs.sum(), num_targets + len(log_probs)
        greedy, margin = greedy_continuation(model, input_ids)
        reference[f"seq{index}.input_ids"] = input_ids
        reference[f"seq{index}.logits"] = logits.detach()
        reference[f"seq{index}.log_probs"] = log_probs.detach()
        reference[f"seq{index}.greedy"] = greedy
        reference[f"seq{index}.greedy_margin"] = margin

    loss = nll_sum / num_targets
    model.zero_grad()
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in trained(model)}
    assert all(parameter.grad is None for parameter in model.parameters() if not parameter.requires_grad)
    reference["loss"] = loss.detach().reshape(1)
    squares = [gradient.double().square().sum() for gradient in gradients.values()]
    reference["grad_norm"] = torch.stack(squares).sum().sqrt().to(loss.dtype).reshape(1)
    reference.update({f"grad.{name}": gradient for name, gradient in gradients.items()})

    torch.optim.AdamW([parameter for _, parameter in trained(model)], **ADAMW).step()
    reference.update({f"adamw.{name}": parameter.detach().clone() for name, parameter in trained(model)})
    return reference


@torch.no_grad()
def greedy_continuation(model, input_ids):
    """The next GREEDY_TOKENS tokens by argmax, and by how much each beat the runner-up in logits."""
    tokens, margins = input_ids, []
    for _ in range(GREEDY_TOKENS):
        (best, runner_up), (token, _) = model(tokens[None]).logits[0, -1].topk(2)
        margins.append(best - runner_up)
        tokens = torch.cat([tokens, token.reshape(1)])
    return tokens[len(input_ids) :].clone(), torch.stack(margins)


def summary(name, reference, exact):
    def difference(prefix, suffix=""):
        keys = [key for key in reference if key.startswith(prefix) and key.endswith(suffix)]
        return max((reference[key].double() - exact[key].double()).abs().max().item() for key in keys)

    gradients = [value for key, value in reference.items() if key.startswith("grad.")]
    for index in range(NUM_SEQUENCES):
        assert torch.equal(reference[f"seq{index}.greedy"], exact[f"seq{index}.greedy"]), (name, index)
    return {
        "adapter": name,
        "parameters": sum(gradient.numel() for gradient in gradients),
        "loss": f"{reference['loss'].item():.6f}",
        "grad_norm": f"{reference['grad_norm'].item():.6f}",
        "least greedy margin": f"{min(reference[f'seq{i}.greedy_margin'].min().item() for i in range(3)):.1e}",
        "d logits": f"{difference('seq', '.logits'):.1e}",
        "d log_probs": f"{difference('seq', '.log_probs'):.1e}",
        "d loss": f"{difference('loss'):.1e}",
        "d grad": f"{difference('grad.'):.1e}",
        "largest grad": f"{max(gradient.abs().max().item() for gradient in gradients):.2f}",
        "d adamw": f"{difference('adamw.'):.1e}",
        "small grads": sum(int((gradient.abs() < SMALL_GRADIENT).sum()) for gradient in gradients),
    }


def table(rows):
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows])


def versions():
    torch_version = torch.__version__.split("+")[0]
    return f"torch {torch_version}, transformers {transformers.__version__}, peft {peft.__version__}"


README = """# Adapters with reference numbers

Random adapters of the tiny models in `../llama`, `../qwen2` (bias on q, k, v), `../qwen3` (head norms), and `../qwen3_moe` and
`../qwen3_moe_mixed`, where each expert has adapters of its own and the router has none; and what peft computes
from them in float32 on CPU, eager attention. Made by `../make_lora_golden.py` with {versions}.

Rank {rank}, `lora_alpha` {alpha}; neither A nor B is zero. All seven linear layers are targets, except in `qwen3_moe_mixed` (`v_proj`, `gate_proj` and `down_proj`, in layers
with experts and without) and in `llama_qv_rslora`: `q_proj` and
`v_proj`, with `use_rslora`, so that its scale is {alpha} / sqrt({rank}) = 4 instead of 2. Each folder holds `adapter_config.json` and
`adapter_model.safetensors`, as peft saves them, and `reference.safetensors`.

## reference.safetensors

`i` is 0, 1, 2: the three sequences of the tiny models, T = 7, 33, 64 tokens, each run alone. V = 260, of those with experts 96. Integers are i64, the rest f32.

| tensor | shape | meaning |
|---|---|---|
| `seq{{i}}.input_ids` | [T] | uniformly random tokens |
| `seq{{i}}.logits` | [T, V] | logits at every position, temperature 1 |
| `seq{{i}}.log_probs` | [T-1] | element t is log p(input_ids[t+1] given input_ids[0..=t]), natural log |
| `seq{{i}}.greedy` | [20] | the 20 tokens after input_ids by argmax; no stop token |
| `seq{{i}}.greedy_margin` | [20] | best logit minus second-best logit at each of those steps |
| `loss` | [1] | -(sum of all log_probs of the three sequences) / (6 + 32 + 63): mean over tokens, not over sequences |
| `grad.NAME` | as NAME | gradient of `loss` for NAME of `adapter_model.safetensors` |
| `grad_norm` | [1] | square root of the sum of squares of all `grad.*` |
| `adamw.NAME` | as NAME | A or B after one AdamW step from zero moments |

AdamW: lr 1e-3, beta1 0.9, beta2 0.95, eps 1e-8, decoupled weight decay 0.01 on every A and B, bias correction on, no clipping:
w <- w (1 - lr decay), then w <- w - lr m / (sqrt(v) + eps) with the corrected moments m and v.

## Rounding

The same numbers were computed from the same weights in float64, where transformers keeps the norms, the rope tables and the softmax of
attention in float32. `d ...` is the largest absolute difference between the two. The greedy tokens are the same in both.

{table}

`small grads` counts weights whose gradient is below 1e-6: the first AdamW step moves a weight by about lr times the sign of its
gradient, so rounding in such a gradient can change the result by up to 2e-3.
"""

if __name__ == "__main__":
    main()
