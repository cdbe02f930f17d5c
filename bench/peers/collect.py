"""Steps CartPole in one way, with random actions or a policy, and prints one JSON object.

    python collect.py bare|sync|async|numpy|envpool|torchrl-sync|torchrl-async|torchrl-policy-vector|
        torchrl-policy-serial ENVS WORKERS STEPS

STEPS is the number of calls per environment, after a warm-up of a tenth as many. `wall_us` and `cpu_us` are per frame; a
call that only resets an environment is not a frame. CPU time covers this process and those that it started, read at the
beginning and the end. WORKERS is the number of EnvPool threads or TorchRL processes; other ways ignore it.
"""

import contextlib
import json
import os
import signal
import sys
import time
from importlib import metadata

ACTION_ROWS = 1000  # Drawn before the clock starts, and used again and again.
WARM_UP_STEPS = 100  # At least.
BATCH_FRAMES = 1024  # Of TorchRL's collectors.
POLICY_STEPS = 128  # Of each environment in a batch, with a policy.


def cpu_seconds():
    """Returns CPU seconds of this process and its descendants."""
    ticks = 0
    for pid in [os.getpid(), *below(os.getpid())]:
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15] if pid == os.getpid() else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def below(pid):
    """Returns all descendants."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, open(f"/proc/{pid}/task/{task}/children").read().split())
    except OSError:
        pass
    return found + [deeper for child in found for deeper in below(child)]


def timed(run, envs, steps):
    """`run(n, ended)` makes about n steps of each environment and says how many exactly, of all together.

    Calls of a vector reset some environments and step the others: a list `ended` takes how many ended in each call.
    """
    ended = []
    run(max(steps // 10, WARM_UP_STEPS), ended)
    ended = ended[len(ended) // 2 :]  # Environments that were just reset do not end.
    stepped_share = 1 - sum(ended) / (len(ended) * envs) if ended else 1
    wall, cpu = time.perf_counter(), cpu_seconds()
    frames = run(steps, None) * stepped_share
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return {"wall_us": wall / frames * 1e6, "cpu_us": cpu / frames * 1e6, "seconds": wall}


def actions_of(envs):
    import numpy as np

    return np.random.default_rng(0).integers(0, 2, (ACTION_ROWS, envs))


def bare(envs, workers):
    """The minimal loop over the same environments."""
    import gymnasium

    made = [gymnasium.make("CartPole-v1") for _ in range(envs)]
    for i, env in enumerate(made):
        env.reset(seed=i)
    actions = actions_of(envs).tolist()

    def run(steps, ended):
        for step in range(steps):
            for env, action in zip(made, actions[step % ACTION_ROWS]):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset(seed=step)
        return steps * envs

    return run


def vector(env, actions):
    """A vector environment that uses the whole call after the end of an episode for the reset."""
    env.reset(seed=0)

    def run(steps, ended):
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[step % ACTION_ROWS])
            if ended is not None:
                ended.append(int((terminated | truncated).sum()))
        return steps * actions.shape[1]

    return run


def gymnasium_vector(kind):
    def make(envs, workers):
        import gymnasium

        return vector(gymnasium.make_vec("CartPole-v1", envs, kind), actions_of(envs))

    return make


def envpool(envs, workers):
    import envpool as library

    return vector(library.make_gymnasium("CartPole-v1", num_envs=envs, num_threads=workers), actions_of(envs))


def torchrl(kind):
    def make(envs, workers):
        from torchrl import collectors
        from torchrl.envs import GymEnv, SerialEnv
        from torchrl.modules.tensordict_module.exploration import RandomPolicy

        each = envs // workers
        one = lambda: GymEnv("CartPole-v1") if each == 1 else SerialEnv(each, lambda: GymEnv("CartPole-v1"))
        probe = one()  # Its actions have the shape of one worker's.
        collector = getattr(collectors, kind)(
            [one] * workers, RandomPolicy(probe.action_spec), frames_per_batch=BATCH_FRAMES, total_frames=-1,
            device="cpu", cat_results="stack" if kind == "MultiSyncCollector" else None,
        )
        return batches_of(collector, envs)

    return make


def batches_of(collector, envs):
    batches = iter(collector)

    def run(steps, ended):
        frames = 0
        while frames < steps * envs:
            frames += next(batches).numel()
        return frames

    return run


def torchrl_policy(envs_of):
    """One process and thread: an actor with two hidden layers of 64 and sampled actions, on the environments of `envs_of`."""

    def make(envs, workers):
        import torch
        from tensordict.nn import TensorDictModule
        from torchrl import collectors
        from torchrl.modules import ProbabilisticActor

        torch.set_num_threads(1)
        env = envs_of(envs)
        linear, tanh = torch.nn.Linear, torch.nn.Tanh
        maps = torch.nn.Sequential(linear(4, 64), tanh(), linear(64, 64), tanh(), linear(64, 2))
        actor = ProbabilisticActor(
            TensorDictModule(maps, in_keys=["observation"], out_keys=["logits"]), in_keys=["logits"],
            out_keys=["action"], distribution_class=torch.distributions.Categorical, spec=env.action_spec,
        )
        # The name of the single-process collector changed.
        kind = getattr(collectors, "Collector", None) or collectors.SyncDataCollector
        collector = kind(env, actor, frames_per_batch=POLICY_STEPS * envs, total_frames=-1, device="cpu")
        return batches_of(collector, envs)

    return make


def torchrl_vector(envs):
    """A Gymnasium vector environment, which TorchRL steps as one, with its preferred autoreset mode."""
    import gymnasium
    from torchrl.envs import GymWrapper

    made = [lambda: gymnasium.make("CartPole-v1")] * envs
    disabled = gymnasium.vector.AutoresetMode.DISABLED
    return GymWrapper(gymnasium.vector.SyncVectorEnv(made, autoreset_mode=disabled), categorical_action_encoding=True)


def torchrl_serial(envs):
    """TorchRL's own batch of environments in one process."""
    from torchrl.envs import GymEnv, SerialEnv

    return SerialEnv(envs, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))


WAYS = {
    "bare": bare, "sync": gymnasium_vector("sync"), "async": gymnasium_vector("async"),
    "numpy": gymnasium_vector("vector_entry_point"), "envpool": envpool,
    "torchrl-policy-vector": torchrl_policy(torchrl_vector), "torchrl-policy-serial": torchrl_policy(torchrl_serial),
    "torchrl-sync": torchrl("MultiSyncCollector"), "torchrl-async": torchrl("MultiAsyncCollector"),
}


def versions():
    found = {}
    for package in ("gymnasium", "numpy", "envpool", "torchrl", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return {"python": sys.version.split()[0], **found}


def end():
    """Ends the started processes, so that their CPU time counts for our parent, and this process.

    Left to themselves some libraries wait for ever for their processes.
    """
    for pid in below(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)


def main():
    how, envs, workers, steps = sys.argv[1], *map(int, sys.argv[2:5])
    found = timed(WAYS[how](envs, workers), envs, steps)
    print(json.dumps({**found, "versions": versions()}), flush=True)
    end()


if __name__ == "__main__":
    main()
