"""Loads `plimsoll serve MODEL --train` with clients of Tinker's API that train and sample, and kills some of them.

    python -m venv v && v/bin/pip install tinker==0.38.0 numpy
    v/bin/python bench/tinker_load.py plimsoll random:nano --clients 16 --minutes 10
    v/bin/python bench/tinker_load.py plimsoll random:nano --clients 4 --kills 50

Each client is a process with a token of its own: an adapter that learns a text, drawn from after every step. Numbers of a
client follow from its seed alone, so all clients of one seed must hear the same, whoever else is there, and also over
kills of the server. With `--minutes`, one client is killed halfway. Prints steps, samples, lost futures and the server's
memory over time.
"""
import argparse
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOKEN = "tml-tenant-%03d-0123456789"


def client(address, model, number, steps, seconds, out):
    """Trains and samples; writes a line for each step: what was heard, as a hash."""
    os.environ.update(TINKER_TELEMETRY="0", HF_HUB_OFFLINE="1")
    import tinker
    from tinker import types

    now = lambda value: value.result() if hasattr(value, "result") else value
    service = tinker.ServiceClient(base_url=address, api_key=TOKEN % number)
    trainer = now(service.create_lora_training_client(base_model=model, rank=[4, 8, 16][number % 3], seed=number % 3))
    vocab = 13 if model.endswith("nano") else 200
    text = [(7 * i * i + 11 * (number % 3) + 3) % vocab for i in range(48)]
    datum = types.Datum(model_input=types.ModelInput.from_ints(text[:-1]), loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * 47})
    until = time.time() + seconds
    with open(out, "w", buffering=1) as file:
        for step in range(steps):
            if time.time() > until:
                break
            learnt = trainer.forward_backward([datum] * 4, "cross_entropy")
            stepped = trainer.optim_step(types.AdamParams(learning_rate=1e-3))
            loss = now(learnt).metrics["loss:sum"]
            now(stepped)
            sampler = now(trainer.save_weights_and_get_sampling_client())
            drawn = now(sampler.sample(types.ModelInput.from_ints(text[:6]), 4, types.SamplingParams(max_tokens=16, seed=step, stop=[])))
            heard = [loss, [(list(s.tokens), list(s.logprobs)) for s in drawn.sequences]]
            file.write(f"{step} {hashlib.sha256(json.dumps(heard).encode()).hexdigest()[:16]} {loss:.6f} {time.time():.3f}\n")


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


class Server:
    def __init__(self, args):
        self.folder = tempfile.mkdtemp(prefix="tinker-load-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        tenants = os.path.join(self.folder, "tenants")
        with open(tenants, "w") as file:
            file.writelines(f"t{i} {TOKEN % i}\n" for i in range(args.clients))
        self.command = [args.plimsoll, "serve", args.model, "--train", self.folder, "--port", str(self.port), "--tenants", tenants, *args.flags]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=open(os.path.join(self.folder, "log"), "a"))
        for _ in range(2400):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(open(os.path.join(self.folder, "log")).read())
                time.sleep(0.05)


def lines(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [line.split() for line in file if line.endswith("\n")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    args, args_of_server = parser.parse_known_args()
    args.flags = args_of_server
    server, seconds = Server(args), args.minutes * 60
    address, outs, clients = f"http://127.0.0.1:{server.port}", [], []
    for number in range(args.clients):
        outs.append(os.path.join(server.folder, f"client-{number}"))
        run = [sys.executable, __file__, "--client", address, args.model, str(number), str(args.steps), str(seconds), outs[-1]]
        clients.append(subprocess.Popen(run, stderr=open(outs[-1] + ".err", "w")))
    began, memory, killed, victim = time.time(), [], 0, args.clients - 1 if args.kills == 0 and args.clients > 3 else None
    while any(client.poll() is None for client in clients):
        time.sleep(1)
        passed = time.time() - began
        memory.append((passed, resident(server.process.pid)))
        if victim is not None and passed > seconds / 2:
            clients[victim].kill()
            victim = None
        if killed < args.kills and passed > (killed + 1) * seconds / (args.kills + 1):
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            server.start()
            killed += 1
        if passed > seconds * 2 + 300:
            raise SystemExit("clients do not end")
    done = [lines(out) for out in outs]
    broken = [n for n, c in enumerate(clients) if c.returncode not in (0, -signal.SIGKILL)]
    for n in broken:
        print(f"client {n}: {open(outs[n] + '.err').read()[-600:]}")
    differ = 0
    for kind in range(3):
        alike = [done[n] for n in range(args.clients) if n % 3 == kind]
        for step in range(max(map(len, alike), default=0)):
            differ += len({heard[step][1] for heard in alike if len(heard) > step}) > 1
    steps = [len(one) for one in done]
    tenth = max(1, len(memory) // 10)
    after = [mib for _, mib in memory[len(memory) // 4:]]
    print(f"{args.clients} clients, {time.time() - began:.0f} s: {sum(steps)} steps with 4 samples each ({min(steps)} to {max(steps)} a client), "
          f"{sum(steps) / (time.time() - began):.2f} a second")
    print(f"server killed {killed} times; clients that ended with an error: {len(broken)}; steps that differ between clients of one seed: {differ}")
    print(f"memory: first tenth {statistics.mean(m for _, m in memory[:tenth]):.0f} MiB, last tenth {statistics.mean(m for _, m in memory[-tenth:]):.0f} MiB, "
          f"most {max(after):.0f} MiB")
    server.process.terminate()
    if broken or differ:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        address, model, number, steps, seconds, out = sys.argv[2:]
        client(address, model, int(number), int(steps), float(seconds), out)
    else:
        main()
