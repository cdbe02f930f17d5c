"""Measures what a server of `plimsoll serve` gains where requests begin alike, with and without shared keys in one run.

    python3 bench/prefix_cache.py --binary target/release/plimsoll --model random:qwen2.5-0.5b --requests 256 --shared 4096

It starts the server once and sends `--requests` prompts of token ids at one time, of which the first `--shared` are the same and the
last `--own` are not. In a round without sharing each request has a `cache_salt` of its own, so no key is found; in one with sharing all
have the same. Both are drawn `--rounds` times in turn, with other ids each, and the answers of one pair must have equal tokens and
log-probabilities. Only the standard library is needed.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time


async def post(host, port, body):
    reader, writer = await asyncio.open_connection(host, port)
    text = json.dumps(body).encode()
    head = f"POST /inference/v1/generate HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        sys.exit(f"refused: {answer.decode()}")
    return json.loads(body)


async def round_of(host, port, prompts, tokens, salts):
    """Returns the seconds until the last answer, the tokens that were found, and what was drawn."""
    bodies = [
        {"token_ids": ids, "cache_salt": salt, "sampling_params": {"max_tokens": tokens, "seed": 1, "logprobs": 0, "ignore_eos": True}}
        for ids, salt in zip(prompts, salts)
    ]
    begun = time.monotonic()
    answers = await asyncio.gather(*(post(host, port, body) for body in bodies))
    seconds = time.monotonic() - begun
    cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    return seconds, cached, [answer["choices"] for answer in answers]


async def measure(host, port, args):
    draw = random.Random(7)
    rates, found = {"apart": [], "shared": []}, {"apart": 0, "shared": 0}
    for number in range(args.rounds):
        shared = [draw.randrange(args.vocabulary) for _ in range(args.shared)]
        prompts = [shared + [draw.randrange(args.vocabulary) for _ in range(args.own)] for _ in range(args.requests)]
        drawn = {}
        for way in ("apart", "shared"):
            salts = [f"{number} {way}" + (f" {i}" if way == "apart" else "") for i in range(args.requests)]
            seconds, cached, drawn[way] = await round_of(host, port, prompts, args.tokens, salts)
            rates[way].append(args.requests / seconds)
            found[way] += cached
        if drawn["apart"] != drawn["shared"]:
            sys.exit("answers differ with shared keys")
    return rates, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--model", default="random:qwen2.5-0.5b")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--shared", type=int, default=4096)
    parser.add_argument("--own", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=256, help="token ids are below this")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("server", nargs="*", help="further arguments of `plimsoll serve`, after --")
    args = parser.parse_args()
    command = [args.binary, "serve", args.model, "--port", "0", "--sequences", str(args.sequences), "--queue", str(args.requests)]
    command += ["--prompt-tokens", str(args.shared + args.own), "--max-new-tokens", str(args.tokens), *args.server]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip().removeprefix("http://").removesuffix("/v1")
        if not address:
            sys.exit(server.wait())
        host, port = address.rsplit(":", 1)
        rates, found = asyncio.run(measure(host, int(port), args))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    prompt_tokens = args.rounds * args.requests * (args.shared + args.own)
    for way in rates:
        each = ", ".join(f"{rate:.2f}" for rate in rates[way])
        print(f"{way:<8} {sorted(rates[way])[len(rates[way]) // 2]:9.2f} requests/s  ({each})  {found[way] / prompt_tokens:.1%} of prompt tokens found")
    middle = {way: sorted(of)[len(of) // 2] for way, of in rates.items()}
    print(f"gain     {middle['shared'] / middle['apart']:9.2f} x, equal tokens and log-probabilities")


if __name__ == "__main__":
    main()
