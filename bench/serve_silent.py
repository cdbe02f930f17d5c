"""Measures what clients that say nothing cost those that do: the latency of a small completion, alone and next to them.

    python3 bench/serve_silent.py --binary target/release/plimsoll --silent 2000

It starts a server of the built-in model and measures in rounds, alternately without and with `--silent` open connections, every other
one of which has sent half a head. It prints the medians of each round, and the median of their ratios. Only the standard library is
needed.
"""

import argparse
import http.client
import json
import re
import resource
import socket
import statistics
import subprocess
import time

HALF_A_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le"


def start(binary):
    """Starts a server on a free port; returns it with its address."""
    server = subprocess.Popen(
        [binary, "serve", "builtin:nano", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for line in server.stdout:
        found = re.search(r"http://([\d.]+):(\d+)", line)
        if found:
            return server, found.group(1), int(found.group(2))
    raise SystemExit("the server did not start")


def completion(host, port):
    """Returns the milliseconds of one small completion, and its status."""
    asked = json.dumps({"prompt": "1+2=", "max_tokens": 4, "temperature": 0})
    client = http.client.HTTPConnection(host, port, timeout=30)
    begun = time.perf_counter()
    client.request("POST", "/v1/completions", asked, {"Content-Type": "application/json"})
    reply = client.getresponse()
    reply.read()
    client.close()
    return 1e3 * (time.perf_counter() - begun), reply.status


def silent_clients(host, port, count):
    """Opens connections that say nothing, or half of what they should."""
    clients = []
    for index in range(count):
        client = socket.create_connection((host, port), timeout=5)
        if index % 2:
            client.sendall(HALF_A_HEAD)
        clients.append(client)
    return clients


def median(host, port, requests):
    """Returns the median of `requests` completions, in milliseconds, and how many were refused."""
    replies = [completion(host, port) for _ in range(requests)]
    return statistics.median(ms for ms, _ in replies), sum(status != 200 for _, status in replies)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--silent", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=80)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server, host, port = start(args.binary)
    try:
        median(host, port, args.requests)
        ratios = []
        for number in range(args.rounds):
            alone, _ = median(host, port, args.requests)
            clients = silent_clients(host, port, args.silent)
            loaded, refused = median(host, port, args.requests)
            for client in clients:
                client.close()
            ratios.append(loaded / alone)
            print(f"round {number + 1}: {alone:.2f} ms alone, {loaded:.2f} ms next to {args.silent} silent clients, {refused} refused")
        print(f"median of the ratios {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
