# torchrl==0.4.0
# Sixty-four workers on the CPU next to a learner on one card of 24 GB:
#   plimsoll doctor --run torchrl runs/other-stacks/torchrl-64-workers.py --gpu-memory 24GiB --host-memory 64GiB
# No worker needs the card, and each makes a context on it all the same.
from torchrl.collectors import MultiaSyncDataCollector
from torchrl.envs.libs.gym import GymEnv

num_workers = 64


def make():
    return GymEnv("CartPole-v1", device="cpu")


collector = MultiaSyncDataCollector(
    create_env_fn=[make] * num_workers,
    frames_per_batch=1024,
    total_frames=1_000_000,
    device="cpu",
    storing_device="cpu",
)
for batch in collector:
    print(batch["next", "reward"].mean())
