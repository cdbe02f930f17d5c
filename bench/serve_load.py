"""Loads a server of `plimsoll serve` with many streams at one time, and says what became of each.

    python3 bench/serve_load.py --binary target/release/plimsoll --model builtin:nano --streams 500 --seconds 600

It starts the server, keeps `--streams` requests open for `--seconds`, each a stream of `--tokens` tokens, some of which hang up in
the middle, and reads the server's resident memory every second. A request is lost if it ends without `[DONE]` and without an error
that was sent. It prints a table; with `--out FILE` it writes the same as Markdown. Only the standard library is needed.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time


class Counts:
    def __init__(self):
        self.done = self.refused = self.hung_up = self.lost = self.tokens = 0
        self.first, self.whole = [], []
        self.words = set()


async def request(host, port, body):
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def one_stream(host, port, args, draw, counts):
    """Sends one request and reads its stream."""
    prompt = f"{draw.randrange(1000)}+{draw.randrange(1000)}="
    asked = {"prompt": prompt, "max_tokens": args.tokens, "stream": True, "ignore_eos": True}
    asked["temperature"] = draw.choice([0, 0.7, 1.0])
    hangs_up = draw.random() < args.hang_up
    begun = time.monotonic()
    reader, writer = await request(host, port, json.dumps(asked).encode())
    try:
        status = int((await reader.readline()).split()[1])
        if status != 200:
            counts.refused += 1
            counts.words.add(f"status {status}")
            return
        events = 0
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                counts.done += 1
                counts.whole.append(time.monotonic() - begun)
                return
            events += 1
            if events == 1:
                counts.first.append(time.monotonic() - begun)
            choices = json.loads(line[6:]).get("choices")
            if choices is None:
                counts.lost += 1
                counts.words.add(line.decode().strip())
                return
            counts.tokens += len(choices[0].get("text", ""))
            if hangs_up and events == 2:
                counts.hung_up += 1
                return
        counts.lost += 1
        counts.words.add("a stream that broke off")
    finally:
        writer.close()


async def client(host, port, args, number, until, counts):
    draw = random.Random(number)
    while time.monotonic() < until:
        try:
            await one_stream(host, port, args, draw, counts)
        except (OSError, asyncio.IncompleteReadError, ValueError) as err:
            counts.lost += 1
            counts.words.add(repr(err))


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


async def watch(pid, until, readings):
    while time.monotonic() < until:
        readings.append(resident_kib(pid))
        await asyncio.sleep(1)


async def metrics(host, port):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    found = {}
    for line in text.splitlines():
        if line.startswith("plimsoll_serve_") and "{" not in line:
            name, number = line.split()
            found[name.removeprefix("plimsoll_serve_")] = float(number)
    return found


async def load(host, port, pid, args):
    counts, readings = Counts(), []
    until = time.monotonic() + args.seconds
    clients = (client(host, port, args, n, until, counts) for n in range(args.streams))
    await asyncio.gather(watch(pid, until, readings), *clients)
    # A client that hung up last is noticed before the next pass.
    for _ in range(100):
        after = await metrics(host, port)
        if after["running"] == after["waiting"] == 0:
            break
        await asyncio.sleep(0.1)
    return counts, readings, after


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def rows(args, counts, readings, after, plan):
    """The table: what was asked for, what became of it, how long it took, and the memory."""
    part = max(1, len(readings) // 10)
    tenths = [max(readings[at : at + part]) / 1024 for at in range(0, len(readings), part)]
    return [
        ("streams at one time", f"{args.streams}"),
        ("seconds", f"{args.seconds}"),
        ("requests that ended", f"{counts.done}"),
        ("hung up in the middle", f"{counts.hung_up}"),
        ("refused", f"{counts.refused}"),
        ("lost", f"{counts.lost}"),
        ("tokens a second", f"{after['generated_tokens_total'] / args.seconds:.0f}"),
        ("tokens a pass", f"{after['generated_tokens_total'] / max(1, after['passes_total']):.1f}"),
        ("first event, median and 99 %", f"{percentile(counts.first, 0.5):.2f} s, {percentile(counts.first, 0.99):.2f} s"),
        ("whole stream, median and 99 %", f"{percentile(counts.whole, 0.5):.2f} s, {percentile(counts.whole, 0.99):.2f} s"),
        ("KV blocks free at the end", f"{after['kv_blocks_free']:.0f} of {after['kv_blocks']:.0f}"),
        ("resident, highest of each tenth, MiB", ", ".join(f"{mib:.1f}" for mib in tenths)),
        ("the server's own words", plan),
    ]


def page(args, table):
    """The table with what was run, as Markdown."""
    command = f"python3 bench/serve_load.py --model {args.model} --streams {args.streams} --seconds {args.seconds}"
    lines = [
        "# A server under load",
        "",
        f"`{command}`: requests are streams of {args.tokens} tokens, of which {args.hang_up:.0%} hang up after two events. A request is lost",
        f"if it ends without `[DONE]` and without a refusal. {os.cpu_count()} cores, which the clients use too.",
        "",
        "| | |",
        "|---|---|",
    ]
    return "\n".join(lines + [f"| {name} | {value} |" for name, value in table]) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--model", default="builtin:nano")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--hang-up", type=float, default=0.1)
    parser.add_argument("--out")
    args = parser.parse_args()
    command = [args.binary, "serve", args.model, "--port", "0", "--sequences", str(args.sequences)]
    command += ["--queue", str(args.streams)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip().removeprefix("http://").removesuffix("/v1")
        plan = server.stderr.readline().strip()
        host, port = address.rsplit(":", 1)
        counts, readings, after = asyncio.run(load(host, int(port), server.pid, args))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait()
    table = rows(args, counts, readings, after, plan) + [("exit code after SIGTERM", f"{code}")]
    for name, value in table:
        print(f"{name:<38} {value}")
    for words in sorted(counts.words):
        print(f"  {words}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as out:
            out.write(page(args, table))
    sys.exit(0 if counts.lost == 0 else 1)


if __name__ == "__main__":
    main()
