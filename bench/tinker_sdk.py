"""Drives the published clients of Tinker's API against this repository's server of it, and kills the server in between.

    cargo build -p plimsoll-tinker --example tinker_fake
    python -m venv v && v/bin/pip install tinker==0.38.0 torch numpy
    v/bin/python bench/tinker_sdk.py target/debug/examples/tinker_fake
    v/bin/python bench/tinker_sdk.py plimsoll random:nano

The engine behind the first server is a table of logits; the second is `plimsoll serve MODEL --train`. Losses are written
down here again in numpy. Prints a line for each thing that held; ends with an error at the first that did not.
"""
import atexit
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")
os.environ.update(TINKER_TELEMETRY="0", HF_HUB_OFFLINE="1")
import numpy as np
import tinker
from tinker import types

V = 13 if sys.argv[2:3] == ["random:nano"] else 100  # Tokens that every model of these has.


class Server:
    """The server, which can be killed and started again over the same folder."""

    def __init__(self, binary, model=None, flags=()):
        self.binary, self.folder, self.flags = binary, tempfile.mkdtemp(prefix="tinker-sdk-"), flags
        self.model = model or "fake/tiny"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self):
        command = [self.binary, str(self.port), self.folder]
        if self.model != "fake/tiny":
            tenants = os.path.join(self.folder, "tenants")
            with open(tenants, "w") as file:
                file.write("first tml-first-0123456789\nsecond tml-second-0123456789\n")
            command = [self.binary, "serve", self.model, "--train", self.folder, "--port", str(self.port), "--tenants", tenants, *self.flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        atexit.register(self.process.kill)
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("the server does not listen")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def now(value):
    """The value, of a client that returns futures or of an older one that returns clients."""
    return value.result() if hasattr(value, "result") else value


def datum(seq, **inputs):
    return types.Datum(model_input=types.ModelInput.from_ints(seq[:-1]), loss_fn_inputs={"target_tokens": seq[1:], **inputs})


def held(what, ours, theirs=None, tolerance=1e-5):
    if theirs is None:
        assert ours, what
    else:
        ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
        assert ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=tolerance, atol=tolerance), (what, ours, theirs)
    print(f"ok  {what}", flush=True)


def logprobs_of(result):
    return [np.asarray(out["logprobs"].data if hasattr(out["logprobs"], "data") else out["logprobs"]) for out in result.loss_fn_outputs]


def losses(trainer, seq):
    """Each loss against its formula."""
    n = len(seq) - 1
    p = logprobs_of(now(trainer.forward([datum(seq, weights=[1.0] * n)], "cross_entropy")))[0].astype(float)
    q = (p + np.linspace(-0.4, 0.4, n)).astype(np.float32).astype(float)
    a = np.linspace(-1.0, 1.5, n).astype(np.float32).astype(float)
    r, lo, hi = np.exp(p - q), 0.8, 1.2
    mask = [1.0] * (n - 1) + [0.0]
    s = math.exp(np.mean((p - q)[: n - 1]))
    clip = lambda x: np.clip(x, lo, hi)
    both = {"clip_low_threshold": lo, "clip_high_threshold": hi}
    for name, config, expect, extra in [
        ("importance_sampling", None, -(r * a).sum(), {}),
        ("ppo", both, -np.minimum(r * a, clip(r) * a).sum(), {}),
        ("cispo", both, -(clip(r) * p * a).sum(), {}),
        ("dro", {"beta": 0.05}, -(p * a - 0.025 * (p - q) ** 2).sum(), {}),
        ("gspo", both, -np.minimum(s * a, clip(s) * a).sum(), {"sequence_ratio_mask": types.TensorData(data=mask, dtype="float32", shape=[n])}),
    ]:
        extra = {"logprobs": q.tolist(), "advantages": a.tolist(), **extra}
        result = now(trainer.forward_backward([datum(seq, **extra)], name, loss_fn_config=config))
        held(name, result.metrics["loss:sum"], expect)
    w = np.linspace(-1, 1, n)
    result = now(trainer.forward_backward([datum(seq, weights=w.tolist())], "cross_entropy"))
    held("cross_entropy with weights of both signs", result.metrics["loss:sum"], -(w * p).sum())


def soft_targets(trainer, torch):
    """Targets [N, K] as a sparse tensor."""
    targets, weights = torch.zeros(3, 40, dtype=torch.int64), torch.zeros(3, 40)
    targets[:, 5], targets[1, 7], weights[:, 5], weights[1, 7] = 9, 11, 0.5, 0.25
    data = types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs={
        "target_tokens": types.TensorData.from_torch_sparse(targets), "weights": types.TensorData.from_torch_sparse(weights)})
    assert data.loss_fn_inputs["weights"].sparse_crow_indices is not None
    result = now(trainer.forward_backward([data], "cross_entropy"))
    p = logprobs_of(result)[0].reshape(3, 40)
    held("soft targets as CSR", result.metrics["loss:sum"], -(p * weights.numpy()).sum())


def custom(trainer, torch):
    """A loss of the client's over several chunks, which come out of order."""
    data = [datum([i % V, (i * 7) % V, 3], weights=[1.0, 1.0]) for i in range(2500)]  # Three requests.
    before = [p.tolist() for p in logprobs_of(now(trainer.forward(data, "cross_entropy")))]

    def loss(data, logprobs):
        return sum((p.exp() ** 2).sum() for p in logprobs), {"mine": 1.0}

    result = now(trainer.forward_backward_custom(data, loss))
    held("custom loss over 2500 datums", result.metrics["mine"], 1.0)
    held("forward is in the datums' order", [p.tolist() for p in logprobs_of(now(trainer.forward(data, "cross_entropy")))], before)
    norm = now(trainer.optim_step(types.AdamParams(learning_rate=0.0))).metrics
    # d/dW of sum p^2: the gradient of the table that the server has added up.
    held("its gradient reached the server", list(norm.values())[0] > 0)


def steps(trainer, seq, count):
    """Trains; both requests of a step are sent before either is waited for."""
    out = []
    for _ in range(count):
        pass_ = trainer.forward_backward([datum(seq, weights=[1.0] * (len(seq) - 1))] * 40, "cross_entropy")
        step = trainer.optim_step(types.AdamParams(learning_rate=0.01))
        out.append((now(pass_).metrics["loss:sum"], list(now(step).metrics.values())[0]))
    return out


def main():
    server = Server(sys.argv[1], *sys.argv[2:3], flags=sys.argv[3:])
    connect = lambda token="tml-first-0123456789": tinker.ServiceClient(base_url=f"http://127.0.0.1:{server.port}", api_key=token)
    service = connect()
    held("capabilities", now(service.get_server_capabilities()).supported_models[0].model_name == server.model)
    make = lambda service: now(service.create_lora_training_client(base_model=server.model, rank=8, seed=3))
    trainer = make(service)
    seq = [token % V for token in [5, 17, 90, 3, 44, 21, 8]]
    losses(trainer, seq)
    try:
        import torch
        soft_targets(trainer, torch)
        custom(trainer, torch)
    except ImportError:
        print("--  no torch: soft targets and custom losses were not tried")
    # Two models, the second without a crash: the numbers must be the same to the bit.
    crashed, whole = make(service), make(service)
    expect = steps(whole, seq, 12)
    got = steps(crashed, seq, 4)
    now(crashed.save_state("four"))
    got += steps(crashed, seq, 2)
    pending = crashed.forward_backward([datum(seq, weights=[1.0] * 6)] * 40, "cross_entropy")
    time.sleep(0.2)
    server.kill()
    server.start()
    step = crashed.optim_step(types.AdamParams(learning_rate=0.01))
    got.append((now(pending).metrics["loss:sum"], list(now(step).metrics.values())[0]))
    got += steps(crashed, seq, 5)
    held("training over kill -9 has the bits of training without", got == expect)
    held("the loss falls", got[-1][0] < got[0][0])
    sampler = now(crashed.save_weights_and_get_sampling_client())
    prompt, params = types.ModelInput.from_ints(seq[:3]), types.SamplingParams(max_tokens=12, seed=4)
    first = now(sampler.sample(prompt, 2, params)).sequences
    server.kill()
    server.start()
    again = now(sampler.sample(prompt, 2, params)).sequences
    held("a sampler without a name draws the same after kill -9", [list(s.tokens) for s in first] == [list(s.tokens) for s in again])
    logprobs = now(sampler.compute_logprobs(types.ModelInput.from_ints(seq)))
    ours = logprobs_of(now(crashed.forward([datum(seq, weights=[1.0] * 6)], "cross_entropy")))[0]
    held("sampler and trainer agree to the bit", list(np.float32(logprobs[1:])) == list(np.float32(ours)))
    state = now(crashed.save_state("last")).path
    resumed = now(service.create_training_client_from_state_with_optimizer(state))
    held("a resumed model goes on", steps(resumed, seq, 2) == steps(crashed, seq, 2))
    now(resumed.load_state(state))
    named = now(crashed.save_weights_for_sampler("s-1")).path
    held("samples of a name", 0 < len(now(now(service.create_sampling_client(model_path=named)).sample(prompt, 1, params)).sequences[0].tokens) <= 12)
    try:
        now(crashed.save_state("last"))
        raise SystemExit("a taken name was taken again")
    except tinker.RequestFailedError as error:
        held("a name that is taken", "tinker-name-taken" in str(error))
    rest = service.create_rest_client()
    run = crashed.model_id
    listed = [c.tinker_path for c in now(rest.list_checkpoints(run)).checkpoints]
    held("lists", state in listed and named in listed and now(rest.get_training_run(run)).lora_rank == 8)
    held("weights_info", now(rest.get_weights_info_by_tinker_path(state)).base_model == server.model)
    now(rest.set_checkpoint_ttl_from_tinker_path(state, 3600))
    now(rest.delete_checkpoint_from_tinker_path(named))
    listed = {c.tinker_path: c.expires_at for c in now(rest.list_user_checkpoints()).checkpoints}
    held("ttl and delete", listed[state] is not None and named not in listed)
    stranger = connect("tml-second-0123456789")
    held("another token sees nothing", now(stranger.create_rest_client().list_training_runs()).training_runs == [])
    try:
        now(stranger.create_training_client_from_state(state))
        raise SystemExit("another token's weights were loaded")
    except Exception as error:
        held("another token loads nothing", "tinker-not-found" in str(error))
    server.kill()
    print(f"all held with tinker {tinker.__version__}")


if __name__ == "__main__":
    main()
