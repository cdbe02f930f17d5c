"""Makes the files next to it: two actor-critics of PyTorch with an input, what they give, and their gradients.

    python make.py        (needs torch, numpy and safetensors)
"""

from pathlib import Path

import torch
from safetensors.torch import save_file


def stack(inputs, hidden, outputs, bend):
    layers = []
    for width in hidden:
        layers += [torch.nn.Linear(inputs, width), bend()]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, outputs))


def make(name, inputs, hidden, outputs, bend, gaussian):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"actor": stack(inputs, hidden, outputs, bend), "critic": stack(inputs, hidden, 1, bend)}
    )
    x = torch.randn(37, inputs)
    d_out, d_value = torch.randn(37, outputs), torch.randn(37)
    out, value = model["actor"](x), model["critic"](x).squeeze(1)
    ((out * d_out).sum() + (value * d_value).sum()).backward()
    tensors = {"x": x, "out": out, "value": value, "d_out": d_out, "d_value": d_value}
    tensors |= dict(model.state_dict())
    tensors |= {f"grad.{key}": p.grad for key, p in model.named_parameters()}
    if gaussian:
        tensors["actor_logstd"] = torch.zeros(1, outputs)
    tensors = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
    save_file(tensors, Path(__file__).parent / f"{name}.safetensors")


make("categorical", 6, [20, 12], 2, torch.nn.Tanh, gaussian=False)
make("gaussian", 3, [24, 8], 2, torch.nn.ReLU, gaussian=True)
