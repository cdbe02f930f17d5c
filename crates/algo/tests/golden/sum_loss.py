"""Losses of Tinker's documentation, written down in torch in f64, with gradients by autograd.

    python sum_loss.py > sum_loss.json
"""
import json
import torch

torch.manual_seed(7)
OFFSETS = [0, 5, 9, 16]
N = OFFSETS[-1]
f32 = lambda x: x.float().double()
q = f32(-torch.rand(N, dtype=torch.float64) * 2 - 0.1)
p0 = f32(q + torch.randn(N, dtype=torch.float64) * 0.3)
adv = f32(torch.randn(N, dtype=torch.float64))
adv[[0, 6]] = 0.0
w = f32(torch.randn(N, dtype=torch.float64))
mask = (torch.rand(N) > 0.3).double()
mask[9:11] = 0.0


def ratio_of_sequences(p):
    out = []
    for a, b in zip(OFFSETS, OFFSETS[1:]):
        m = mask[a:b]
        out.append(torch.exp(((p - q)[a:b] * m).sum() / m.sum()).expand(b - a))
    return torch.cat(out)


def surrogate(r, lo, hi):
    return -torch.minimum(r * adv, torch.clamp(r, lo, hi) * adv).sum()


LOSSES = {
    "cross_entropy": lambda p: -(w * p).sum(),
    "importance_sampling": lambda p: -(torch.exp(p - q) * adv).sum(),
    "ppo": lambda p: surrogate(torch.exp(p - q), 0.8, 1.2),
    "ppo_wide": lambda p: surrogate(torch.exp(p - q), 0.5, 1.05),
    "cispo": lambda p: -(torch.clamp(torch.exp(p - q), 0.8, 1.2).detach() * p * adv).sum(),
    "dro": lambda p: -(p * adv - 0.5 * 0.05 * (p - q) ** 2).sum(),
    "gspo": lambda p: surrogate(ratio_of_sequences(p), 0.8, 1.2),
    "gspo_narrow": lambda p: surrogate(ratio_of_sequences(p), 0.99, 1.01),
}
out = {"offsets": OFFSETS, "logp": p0.tolist(), "old_logp": q.tolist(), "advantages": adv.tolist(),
       "weights": w.tolist(), "ratio_mask": mask.tolist(), "losses": {}}
for name, loss in LOSSES.items():
    p = p0.clone().requires_grad_(True)
    value = loss(p)
    value.backward()
    out["losses"][name] = {"loss": value.item(), "d_logp": p.grad.tolist()}
print(json.dumps(out, indent=0))
