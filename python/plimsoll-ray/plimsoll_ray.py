"""Starts the ranks of a Plimsoll run on the hosts of a Ray cluster.

A host is one bundle of a placement group, so its ranks are on one node, and all hosts get their places at once or none does. A rank is one
task, which starts the binary with the variables of torchrun and passes its lines on. What the cluster can never give is named before anything
waits; what a rank says of its end becomes the end of the job.
"""

import argparse
import ctypes
import json
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

USAGE, OTHER_RANK = 2, 5
# The run file, or memory: another start would end in the same way. 130 and 143: it was asked to end.
FINAL = {USAGE, 3, 130, 143}
# After one rank has ended, the others end by themselves within 12 seconds.
GRACE_S = 20
# How long a rank that is asked to end may take before it is killed.
LEAVE_S = 30
# Lines are passed on together for this long, in messages of at most this size.
TOGETHER_S, LINES_MAX = 0.2, 200
READ_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1


class Refused(Exception):
    """An end of the job with an exit code and a sentence."""

    def __init__(self, code, sentence):
        super().__init__(sentence)
        self.code = code


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(run(arguments()))
    except Refused as refused:
        print(refused, file=sys.stderr, flush=True)
        sys.exit(refused.code)


def arguments(words=None):
    words = sys.argv[1:] if words is None else words
    own, train = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        prog="plimsoll-ray",
        usage="plimsoll-ray RUN [options] [-- TRAIN_OPTIONS]",
        description=__doc__.splitlines()[0],
        epilog="What follows -- goes to plimsoll train, such as: -- --set train.steps=100. Variables of the ranks are those of the job: "
               "ray job submit --runtime-env-json '{\"env_vars\": {\"NCCL_DEBUG\": \"WARN\"}}' -- plimsoll-ray ...",
    )
    number = lambda least: lambda text: _number(text, least)  # noqa: E731
    parser.add_argument("run", help="the run file, as the nodes find it from --workdir")
    parser.add_argument("--hosts", type=number(1), default=1, help="nodes")
    parser.add_argument("--ranks-per-host", type=number(1), default=1)
    parser.add_argument("--cpus-per-rank", type=number(1), default=1)
    parser.add_argument("--gpus-per-rank", type=number(0), default=0)
    parser.add_argument("--memory-per-host", type=number(0), default=0, help="bytes; 0 asks for none")
    parser.add_argument("--open-files", type=number(1), default=1024, help="what a rank may open; a higher limit stays")
    parser.add_argument("--restarts", type=number(0), default=0, help="starts after the first one")
    parser.add_argument("--wait-seconds", type=number(1), default=600, help="for places that other jobs hold")
    parser.add_argument("--workdir", default=os.getcwd(), help="where the run starts on every node")
    parser.add_argument("--program", default="plimsoll", help="the binary, as the nodes find it")
    parser.add_argument("--port", type=number(1), help="where rank 0 listens; else a free one of its node")
    args = parser.parse_args(own)
    args.train = train
    return args


def _number(text, least):
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def run(args):
    """Starts the run, up to --restarts times again. Returns its exit code."""
    # Ray would show the lines of equal ranks once, and a second time what this shows.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    ray.init(log_to_driver=False, logging_level="warning")
    job = ray.get_runtime_context().get_job_id()
    for restart in range(args.restarts + 1):
        code, sentence = once(args, f"ray:{job}", restart)
        if code == 0 or code in FINAL or restart == args.restarts:
            break
        say(f"{sentence}\nthe run ended with exit code {code}: restart {restart + 1} of {args.restarts}")
    if code != 0:
        say(f"the run ended with exit code {code} after {restart} of {count(args.restarts, 'restart')}")
        # Last, because Ray shows the end of the output as the job's failure.
        raise Refused(code, sentence)
    return 0


def once(args, name, restart):
    """Starts all ranks and waits for their ends. Returns the exit code of the run and the sentence for it."""
    bundle = needs_of_host(args)
    check(args.hosts, bundle)
    # One node for tests with one host; several hosts are several nodes.
    group = placement_group([bundle] * args.hosts, "STRICT_SPREAD" if args.hosts > 1 else "STRICT_PACK")
    tasks = []
    try:
        wait_for_places(group, args, bundle)
        tasks = start(args, group, name, restart)
        return follow(tasks)
    finally:
        end(tasks)
        remove_placement_group(group)


def needs_of_host(args):
    needs = {
        "CPU": args.cpus_per_rank * args.ranks_per_host,
        "GPU": args.gpus_per_rank * args.ranks_per_host,
        "memory": args.memory_per_host,
    }
    return {key: value for key, value in needs.items() if value > 0}


def check(hosts, bundle):
    """Refuses what no wait can change: fewer nodes than hosts that have what a host needs."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    # A list, because nodes for tests have one name.
    lacks = [(f"{node['NodeManagerHostname']} {node['NodeManagerAddress']}", lacking(node["Resources"], bundle)) for node in nodes]
    fit = sum(not words for _, words in lacks)
    if fit >= hosts:
        return
    sentence = f"error[ray-unschedulable]: {count(hosts, 'host')} with {shown(bundle)} each, and {fit} of {count(len(nodes), 'node')} can be one"
    for node, words in lacks:
        sentence += f"\n  {node}: {words or 'fits'}"
    raise Refused(USAGE, sentence + "\nhint: ask for what a node has, or start Ray with what it does not find by itself: ray start --num-gpus N")


def lacking(has, bundle):
    """Returns what of `bundle` a node has too little of, in words."""
    less = [key for key, value in bundle.items() if has.get(key, 0) < value]
    return ", ".join(f"{amount(key, has.get(key, 0))} of {amount(key, bundle[key])}" for key in less)


def amount(key, value):
    return f"{value / 2**30:.1f} GiB of memory" if key == "memory" else f"{value:g} {key}"


def shown(bundle):
    return ", ".join(amount(key, value) for key, value in bundle.items())


def count(number, what):
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def wait_for_places(group, args, bundle):
    if ray.wait([group.ready()], timeout=2)[0]:
        return
    free = ray.available_resources()
    now = ", ".join(amount(key, free.get(key, 0)) for key in bundle)
    say(f"waits for {count(args.hosts, 'host')} with {shown(bundle)} each; free in the cluster: {now}")
    if not ray.wait([group.ready()], timeout=args.wait_seconds)[0]:
        raise Refused(1, f"error[ray-unschedulable]: after {args.wait_seconds} s other jobs still hold what this one needs; free in the cluster: {now}\n"
                         "hint: ray job list, ray list actors; or wait longer with --wait-seconds")


def start(args, group, name, restart):
    """Starts the tasks of all ranks. Returns a list of (rank, generator of what it says)."""
    place = lambda host: InGroup(group, placement_group_bundle_index=host)  # noqa: E731
    address, port = ray.get(listener.options(num_cpus=args.cpus_per_rank, scheduling_strategy=place(0)).remote())
    ranks = args.hosts * args.ranks_per_host
    shared = {
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": args.ranks_per_host,
        "MASTER_ADDR": address,
        "MASTER_PORT": args.port or port,
        "TORCHELASTIC_RUN_ID": name,
        "TORCHELASTIC_RESTART_COUNT": restart,
        # Proves to the ranks that they are of one job.
        "PLIMSOLL_TOKEN": secrets.token_hex(16),
    }
    words = [args.program, "train", args.run] + ([] if "--resume" in args.train else ["--resume"]) + args.train
    needs = {"num_cpus": args.cpus_per_rank, "num_gpus": args.gpus_per_rank}
    if args.memory_per_host:
        needs["memory"] = args.memory_per_host // args.ranks_per_host
    tasks = []
    for number in range(ranks):
        host, local = divmod(number, args.ranks_per_host)
        env = {key: str(value) for key, value in {**shared, "RANK": number, "LOCAL_RANK": local}.items()}
        task = rank.options(scheduling_strategy=place(host), **needs)
        tasks.append((number, task.remote(words, env, args.workdir, args.open_files)))
    say(f"starts {count(ranks, 'rank')} on {count(args.hosts, 'host')}, rank 0 at {address}:{shared['MASTER_PORT']}: {shlex.join(words)}")
    return tasks


@ray.remote(max_retries=0)
def listener():
    """Returns this node's address and a port of it that is free now; rank 0 tries the next ones if it is taken."""
    with socket.socket() as free:
        free.bind(("", 0))
        return ray.util.get_node_ip_address(), free.getsockname()[1]


@ray.remote(max_retries=0, num_returns="streaming")
def rank(words, env, workdir, open_files):
    """Runs one rank. Yields lists of its lines, and at last (exit code, its sentence or None)."""
    with tempfile.NamedTemporaryFile("r") as sentence:
        env = {**os.environ, **env, "TORCHELASTIC_ERROR_FILE": sentence.name}
        try:
            child = subprocess.Popen(words, env=env, cwd=workdir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, preexec_fn=lambda: with_parent(open_files))
        except (OSError, subprocess.SubprocessError) as error:
            yield USAGE, f"error: {socket.gethostname()}: {shlex.join(words)} in {workdir}: {error}"
            return
        try:
            yield from lines(child.stdout.fileno())
            yield child.wait(), said(sentence)
        finally:
            # Here too when the task is cancelled: the rank saves, or leaves.
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(LEAVE_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def with_parent(open_files):
    """In the child: it is asked to end if Ray's worker dies, and may open the files that the plan counts."""
    import resource

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < open_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(open_files, hard), hard))


def lines(pipe):
    """Yields lists of lines, each soon after it was written."""
    rest, together, since = b"", [], None
    while True:
        timeout = None if since is None else max(0, since + TOGETHER_S - time.monotonic())
        chunk = os.read(pipe, READ_BYTES) if select.select([pipe], [], [], timeout)[0] else None
        if chunk:
            *whole, rest = (rest + chunk).split(b"\n")
            together += [line.decode(errors="replace") for line in whole]
            since = since or time.monotonic()
        if together and (not chunk or len(together) >= LINES_MAX or time.monotonic() - since >= TOGETHER_S):
            yield together
            together = []
        if not together:
            since = None
        if chunk == b"":
            if rest:
                yield [rest.decode(errors="replace")]
            return


def said(file):
    """Returns the sentence that a rank left for its launcher."""
    try:
        return json.load(file)["message"]["message"]
    except (ValueError, KeyError, TypeError):
        return None


def follow(tasks):
    """Shows what ranks say until all have ended. Returns the run's exit code and its sentence.

    Rank 0 speaks for all; lines of others are warnings and errors, and carry their number.
    """
    ends, running, failed_at = [], {generator: number for number, generator in tasks}, None
    while running:
        timeout = None if failed_at is None else failed_at + GRACE_S - time.monotonic()
        if timeout is not None and timeout <= 0:
            break
        for generator in ray.wait(list(running), num_returns=1, timeout=timeout, fetch_local=False)[0]:
            number = running[generator]
            said_now = next_of(generator, number)
            if isinstance(said_now, list):
                show(number, said_now)
                continue
            del running[generator]
            ends.append((number, *said_now))
            if said_now[0] != 0 and failed_at is None:
                failed_at = time.monotonic()
    return verdict(ends)


def next_of(generator, number):
    try:
        return ray.get(next(generator))
    except StopIteration:
        return 1, f"error: rank {number}: its task ended without an exit code"
    except ray.exceptions.RayError as error:
        # Ray's first line names the node or the worker that is gone.
        words = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return 4, f"error: rank {number}: its Ray worker is gone: {words}"


def show(number, words):
    for line in words:
        print(line if number == 0 else f"rank {number}: {line}", flush=True)


def verdict(ends):
    """Returns the exit code and the sentence of the rank that failed first for a reason of its own."""
    failed = [end for end in ends if end[1] != 0]
    if not failed:
        return 0, None
    own = [end for end in failed if end[1] not in (OTHER_RANK, 130, 143)]
    number, code, _ = (own or failed)[0]
    # The sentence of the dead rank, whichever rank lived to write it.
    sentences = [sentence for _, _, sentence in own + failed if sentence]
    return code if code > 0 else 128 - code, sentences[0] if sentences else f"error: rank {number} ended with exit code {code}"


def end(tasks):
    """Ends what still runs: asks, so that children end with their tasks, and then forces."""
    for _, generator in tasks:
        ray.cancel(generator, force=False)


def say(words):
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
