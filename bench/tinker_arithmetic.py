"""Learns addition over Tinker's API, next to the same run by `plimsoll train`.

    python -m venv v && v/bin/pip install tinker==0.38.0 numpy
    v/bin/python bench/tinker_arithmetic.py plimsoll --steps 100

The loop is that of the cookbook's `rl_loop` with `importance_sampling`: draw groups, centre the rewards, one
forward_backward and one step, a new sampler. Prints the share of right answers, the largest difference between a token's
log-probability by the sampler and by the trainer, which must be 0, and the steps an hour of both.
"""
import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.update(TINKER_TELEMETRY="0", HF_HUB_OFFLINE="1")
import tinker
from tinker import types

PROMPTS, GROUP, RANK, RATE = 32, 8, 16, 2e-3
MODEL, NEW = "builtin:nano", 5
DIGITS, EOS = {**{str(d): d + 2 for d in range(10)}, "+": 12, "=": 13}, 1
encode = lambda text: [DIGITS[letter] for letter in text]


def server(binary, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "serve", MODEL, "--train", folder, "--port", str(port), "--sequences", str(PROMPTS * GROUP)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server does not listen")


def over_api(address, steps):
    service = tinker.ServiceClient(base_url=address, api_key="tml-arithmetic-0123456789")
    now = lambda value: value.result() if hasattr(value, "result") else value
    trainer = now(service.create_lora_training_client(base_model=MODEL, rank=RANK, seed=1))
    draw, shares, seconds, own, worst = random.Random(7), [], [], [], 0.0
    parts = {}
    for step in range(steps):
        clock, processor = [time.time()], time.process_time()

        def took(part):
            clock.append(time.time())
            parts.setdefault(part, []).append(clock[-1] - clock[-2])

        sampler = now(trainer.save_weights_and_get_sampling_client())
        took("a new sampler")
        sums = [(draw.randrange(100, 1000), draw.randrange(100, 1000)) for _ in range(PROMPTS)]
        prompts = [encode(f"{a}+{b}=") for a, b in sums]
        params = types.SamplingParams(max_tokens=NEW, seed=step, temperature=1.0)
        asked = [sampler.sample(types.ModelInput.from_ints(prompt), GROUP, params) for prompt in prompts]
        data, right = [], 0
        for (a, b), prompt, answers in zip(sums, prompts, asked):
            drawn = answers.result().sequences
            rewards = [float(list(s.tokens) == [*encode(str(a + b)), EOS]) for s in drawn]
            right, mean = right + sum(rewards), statistics.mean(rewards)
            for s, reward in zip(drawn, rewards):
                tokens, before = prompt + list(s.tokens), len(prompt) - 1
                data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
                    "target_tokens": tokens[1:],
                    "logprobs": [0.0] * before + list(s.logprobs),
                    "advantages": [0.0] * before + [(reward - mean) / (PROMPTS * GROUP)] * len(s.tokens),
                }))
        took("samples, and data of them")
        learnt = trainer.forward_backward(data, "importance_sampling")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=RATE))
        took("data sent")
        result = learnt.result()
        stepped.result()
        took("gradients and step")
        for datum, out in zip(data, result.loss_fn_outputs):
            theirs = datum.loss_fn_inputs["logprobs"]
            pairs = zip(theirs.data, out["logprobs"].data)
            worst = max([worst, *(abs(q - p) for q, p in pairs if q != 0.0)])
        shares.append(right / (PROMPTS * GROUP))
        took("numbers compared")
        seconds.append(clock[-1] - clock[0])
        own.append(time.process_time() - processor)
        if step % 10 == 9:
            print(f"step {step + 1}: {statistics.mean(shares[-10:]):.3f} right; sampler and trainer differ by at most {worst}", flush=True)
    print("of a step over the API, medians in ms: " + ", ".join(f"{part} {1000 * statistics.median(all):.0f}" for part, all in parts.items()) + f"; the client computes for {1000 * statistics.median(own):.0f}")
    return shares, seconds, worst


def by_train(binary, folder, steps):
    sets = [f"model={MODEL}", f"rollout.max_new_tokens={NEW}", f"run.dir={folder}", f"train.steps={steps}", "eval.every=100000", f"lora.rank={RANK}", "lora.alpha=32", f"train.learning_rate={RATE}", "train.schedule=constant"]
    command = [binary, "train", "runs/first.toml", "--json", *(word for one in sets for word in ("--set", one))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    with open(os.path.join(folder, "events.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["event"] == "step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--model", default=MODEL, help="another than builtin:nano learns nothing, and shows the time of its steps")
    parser.add_argument("--new-tokens", type=int, default=NEW)
    args = parser.parse_args()
    globals().update(MODEL=args.model, NEW=args.new_tokens)
    folder = tempfile.mkdtemp(prefix="tinker-arithmetic-")
    process, address = server(args.plimsoll, os.path.join(folder, "train"))
    try:
        shares, seconds, worst = over_api(address, args.steps)
    finally:
        process.terminate()
    process.wait()
    api = 3600 / statistics.median(seconds)
    print(f"over the API: {statistics.mean(shares[:5]):.3f} right at first, {statistics.mean(shares[-10:]):.3f} at last; {api:.0f} steps an hour (median)")
    rows = by_train(args.plimsoll, os.path.join(folder, "run"), args.steps)
    times = [row["seconds_since_start"] for row in rows]
    took = [after - before for before, after in zip(times, times[1:])]
    reward = [row["reward"] for row in rows]
    train = 3600 / statistics.median(took)
    parts = {part: statistics.median(row["metrics"][f"time/{part}"] for row in rows) for part in ("rollout", "update")}
    print("of a step by plimsoll train, medians in ms: " + ", ".join(f"{part} {1000 * time:.0f}" for part, time in parts.items()))
    print(f"by plimsoll train: {statistics.mean(reward[:5]):.3f} right at first, {statistics.mean(reward[-10:]):.3f} at last; {train:.0f} steps an hour (median)")
    print(f"steps an hour over the API: {api / train:.2f} of plimsoll train")
    if worst:
        raise SystemExit("sampler and trainer differ")


if __name__ == "__main__":
    main()
