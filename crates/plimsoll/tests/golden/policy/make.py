"""Makes cartpole.safetensors: a policy as a PyTorch script saves it, and what PyTorch says of some observations.

    python make.py [FOLDER]      needs torch and safetensors

`actor` and `critic` are torch.nn.Sequential of Linear, Tanh, Linear, Tanh, Linear, saved under the names of their state.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import Linear, Sequential, Tanh


def stack(outputs):
    return Sequential(Linear(4, 16), Tanh(), Linear(16, 16), Tanh(), Linear(16, outputs))


torch.manual_seed(7)
policy = torch.nn.ModuleDict({"actor": stack(2), "critic": stack(1)})
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
save_file(policy.state_dict(), folder / "cartpole.safetensors")
observations = torch.randn(32, 4)
with torch.no_grad():
    logits, values = policy["actor"](observations), policy["critic"](observations).flatten()
save_file({"observations": observations, "logits": logits, "values": values}, folder / "seen.safetensors")
