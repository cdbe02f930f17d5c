"""A table of bits: adapters that learn side by side on one `plimsoll serve MODEL --train`, against each of them alone.

    python -m venv v && v/bin/pip install tinker==0.38.0 numpy
    v/bin/python bench/tinker_bits.py plimsoll random:nano
    v/bin/python bench/tinker_bits.py plimsoll random:nano --slots 3
    v/bin/python bench/tinker_bits.py plimsoll random:nano --alter 5

Each client is a tenant with one adapter, whose rank, seed and texts follow from its number. All of them learn at the
same time on one server; then each does the same on a fresh server of its own, with the fewest slots. What a client
hears is written down: losses, norms of gradients, log-probabilities of its data, samples and their log-probabilities.
The table has a hash of it from both runs, and the largest difference between a sampled token's log-probability by the
sampler, which drew it, and those by the trainer and by the sampler's pass over the whole sequence. Ends with 1 if a bit
differs.

With `--slots`, fewer adapters have slots than learn, so they are parked on the disk and come back between steps; the
hashes must be those of a run without. `--alter N` gives client N another seed when it is alone, and must be noticed.
Flags that are not known here go to the server.
"""
import argparse
import hashlib
import json
import os
import random
import socket
import struct
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

os.environ.update(TINKER_TELEMETRY="0", HF_HUB_OFFLINE="1")
import tinker
from tinker import types

TOKEN = "tml-tenant-%03d-0123456789"
RANKS, VOCAB, TEXTS, PROMPT, SAMPLES, NEW, EVERY, RATE = [4, 8, 16], 13, 5, 12, 4, 16, 5, 2e-3
TRAIN_SLOTS_MIN = 2  # The server takes no fewer.

now = lambda value: value.result() if hasattr(value, "result") else value
bits = lambda value: struct.pack("<f", value)


@dataclass
class Heard:
    """What one client heard, in its order, each with a name."""

    values: list = field(default_factory=list)
    times: list = field(default_factory=list)  # Of the ends of updates.
    compared: int = 0  # Log-probabilities of which sampler and trainer had to agree.
    unlike: int = 0  # Those of other bits.
    worst: float = 0.0

    def note(self, name, value):
        self.values.append((name, value))

    def compare(self, sampler, *others):
        for other in others:
            assert len(other) == len(sampler), (len(other), len(sampler))
            for one, two in zip(sampler, other):
                self.compared += 1
                self.unlike += bits(one) != bits(two)
                self.worst = max(self.worst, abs(one - two))

    def hash(self):
        """JSON has each number to its last bit."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()


class Server:
    """A fresh server with a tenant for each client, over a folder of its own."""

    def __init__(self, args, slots):
        self.folder = tempfile.TemporaryDirectory(prefix="tinker-bits-", ignore_cleanup_errors=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.train, self.log, tenants = (os.path.join(self.folder.name, name) for name in ["train", "log", "tenants"])
        with open(tenants, "w") as file:
            file.writelines(f"t{i} {TOKEN % i}\n" for i in range(args.adapters))
        # The rank's bound is the same for all: the last bits of a gradient's norm follow from it.
        flags = {"--train": self.train, "--port": self.port, "--tenants": tenants, "--rank-max": max(RANKS),
                 "--train-slots": max(slots, TRAIN_SLOTS_MIN), "--sample-slots": slots}
        words = [str(word) for flag in flags.items() for word in flag]
        self.slots = f"{flags['--train-slots']} slots to train and {flags['--sample-slots']} to sample"
        self.command = [args.plimsoll, "serve", args.model, *words, *args.flags]
        self.address, self.parked = f"http://127.0.0.1:{self.port}", set()

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=log)
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                threading.Thread(target=self.watch, daemon=True).start()
                return self
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        self.process.kill()
        with open(self.log) as log:
            raise SystemExit(f"the server does not listen: {log.read()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def watch(self):
        """Notes files of parked adapters: one that comes back and is parked again is another file."""
        folder = os.path.join(self.train, "parked")
        while self.process.poll() is None:
            try:
                notes = [file for file in os.scandir(folder) if file.name.endswith(".json")]
                self.parked |= {(file.name, file.stat().st_mtime_ns) for file in notes}
            except OSError:
                pass  # One was taken back while the folder was read.
            time.sleep(0.005)


def rank_of(number):
    return RANKS[number % 3]


def loss_of(number):
    """Every third client, of all ranks."""
    return "importance_sampling" if (number + number // 3) % 3 == 2 else "cross_entropy"


def texts_of(number):
    """Texts of different lengths; the first two begin alike, as responses to one prompt do."""
    draw = random.Random(number)
    texts = [[draw.randrange(VOCAB) for _ in range(draw.randrange(PROMPT + 2, 60))] for _ in range(TEXTS)]
    return [texts[0], texts[0][:PROMPT] + texts[1][PROMPT:], *texts[2:]]


def datum(tokens, **inputs):
    model_input = types.ModelInput.from_ints(tokens[:-1])
    return types.Datum(model_input=model_input, loss_fn_inputs={"target_tokens": tokens[1:], **inputs})


def plain(tokens):
    return datum(tokens, weights=[1.0] * (len(tokens) - 1))


def logprobs_of(result):
    return [list(out["logprobs"].data) for out in result.loss_fn_outputs]


def data_of(number, texts, trainer, drawn):
    """The texts, for importance sampling next to the responses that were drawn last."""
    if loss_of(number) == "cross_entropy":
        return [plain(text) for text in texts]
    before = logprobs_of(now(trainer.forward([plain(text) for text in texts], "cross_entropy")))
    data = []
    for index, (tokens, logprobs) in enumerate([*zip(texts, before), *drawn]):
        advantage = [0.5, -0.25, 0.125][index % 3]
        data.append(datum(tokens, logprobs=logprobs, advantages=[advantage] * len(logprobs)))
    return data


def sampled(heard, trainer, prompt, step):
    """Draws from the weights of now; the trainer and the sampler compute the log-probabilities again."""
    sampler = now(trainer.save_weights_and_get_sampling_client())
    params = types.SamplingParams(max_tokens=NEW, seed=step, stop=[])
    drawn = now(sampler.sample(types.ModelInput.from_ints(prompt), SAMPLES, params)).sequences
    whole = [prompt + list(sequence.tokens) for sequence in drawn]
    again = [sampler.compute_logprobs(types.ModelInput.from_ints(tokens)) for tokens in whole]
    theirs = logprobs_of(now(trainer.forward([plain(tokens) for tokens in whole], "cross_entropy")))
    for index, (sequence, prefilled, trained) in enumerate(zip(drawn, again, theirs)):
        prefilled, logprobs = list(now(prefilled))[1:], list(sequence.logprobs)
        name = f"after update {step}, sample {index}"
        heard.note(f"{name}: tokens", list(sequence.tokens))
        heard.note(f"{name}: log-probabilities by the sampler", logprobs)
        heard.note(f"{name}: log-probabilities by the sampler's pass over all", prefilled)
        heard.note(f"{name}: log-probabilities by the trainer", trained)
        heard.compare(logprobs, prefilled[PROMPT - 1:], trained[PROMPT - 1:])
    return list(zip(whole, theirs))


def client(address, args, number, seed, together):
    """Learns for `args.updates` updates, and samples after every fifth."""
    service = tinker.ServiceClient(base_url=address, api_key=TOKEN % number)
    trainer = now(service.create_lora_training_client(base_model=args.model, rank=rank_of(number), seed=seed))
    heard, texts = Heard(), texts_of(number)
    together.wait(timeout=120)
    data = data_of(number, texts, trainer, [])
    for step in range(1, args.updates + 1):
        learnt = trainer.forward_backward(data, loss_of(number))
        stepped = trainer.optim_step(types.AdamParams(learning_rate=RATE))
        learnt = now(learnt)
        heard.note(f"update {step}: metrics", sorted(learnt.metrics.items()))
        heard.note(f"update {step}: log-probabilities", logprobs_of(learnt))
        heard.note(f"update {step}: the step's metrics", sorted((now(stepped).metrics or {}).items()))
        heard.times.append(time.time())
        if step % EVERY == 0:
            data = data_of(number, texts, trainer, sampled(heard, trainer, texts[0][:PROMPT], step))
    return heard


def side_by_side(args):
    slots, together = args.slots or args.adapters, threading.Barrier(args.adapters)
    began = time.time()
    with Server(args, slots) as server, ThreadPoolExecutor(args.adapters) as pool:
        asked = [pool.submit(client, server.address, args, n, 100 + n, together) for n in range(args.adapters)]
        heard = [one.result() for one in asked]
    turns = [number for _, number in sorted((at, number) for number, one in enumerate(heard) for at in one.times)]
    changes = sum(one != two for one, two in zip(turns, turns[1:]))
    print(f"side by side, {server.slots}: {time.time() - began:.0f} s, {len(turns)} updates, {changes} of them after "
          f"one of another client; adapters were seen parked {len(server.parked)} times", flush=True)
    return heard


def alone(args):
    heard, began = [], time.time()
    for number in range(args.adapters):
        seed = 100 + number + 1000 * (number == args.alter)
        with Server(args, 1) as server:
            heard.append(client(server.address, args, number, seed, threading.Barrier(1)))
        assert not server.parked, "one adapter alone was parked"
    print(f"alone, {server.slots}, a fresh server for each: {time.time() - began:.0f} s", flush=True)
    return heard


def first_difference(one, two):
    """Names the first value that differs, with both, and says how many do."""
    pairs = [(name, a, b) for (name, a), (_, b) in zip(one.values, two.values) if json.dumps(a) != json.dumps(b)]
    if not pairs:
        return f"{len(one.values)} values were heard side by side, {len(two.values)} alone"
    name, a, b = pairs[0]
    while isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        index = next(i for i in range(len(a)) if json.dumps(a[i]) != json.dumps(b[i]))
        name, a, b = f"{name}[{index}]", a[index], b[index]
    return f"{len(pairs)} of {len(one.values)} values differ, first {name}: {a} side by side, {b} alone"


def table(args, together, apart):
    """Prints a row for each client; returns the numbers of those that differ."""
    differ = []
    print("client  rank  loss                 updates  side by side      alone             equal  sampler - trainer")
    for number, (one, two) in enumerate(zip(together, apart)):
        equal = one.hash() == two.hash()
        differ += [] if equal else [number]
        print(f"{number:6}  {rank_of(number):4}  {loss_of(number):19}  {len(one.times):7}  {one.hash()[:16]}  "
              f"{two.hash()[:16]}  {'yes' if equal else 'NO':5}  {max(one.worst, two.worst):g}")
    for number in differ:
        print(f"client {number}: {first_difference(together[number], apart[number])}")
    return differ


def rows_of(together, apart):
    """All that was heard, for other readers."""
    about = lambda one: {"hash": one.hash(), "sampler_trainer_max": one.worst, "values": one.values}
    return [{"client": number, "rank": rank_of(number), "loss": loss_of(number), "side_by_side": about(one),
             "alone": about(two)} for number, (one, two) in enumerate(zip(together, apart))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("model", help="random:nano or builtin:nano")
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--slots", type=int, help="of the server with all adapters; one for each if left out")
    parser.add_argument("--alter", type=int, help="a client that has another seed when it is alone")
    parser.add_argument("--out", help="where all that was heard is written, as JSON")
    args, args.flags = parser.parse_known_args()
    began = time.time()
    together, apart = side_by_side(args), alone(args)
    differ = table(args, together, apart)
    compared, unlike = (sum(getattr(one, name) for one in together + apart) for name in ["compared", "unlike"])
    whole = hashlib.sha256("".join(one.hash() for one in together).encode()).hexdigest()
    print(f"sampler and trainer: {unlike} of {compared} log-probabilities differ as bits")
    print(f"hash of all side by side: {whole[:16]}; {time.time() - began:.0f} s")
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"model": args.model, "differ": differ,
                       "clients": rows_of(together, apart)}, file)
    print(f"{len(differ)} of {args.adapters} differ", flush=True)
    if differ or unlike:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
