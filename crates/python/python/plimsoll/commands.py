"""The other commands: plan, eval, generate, serve, grade, explain, init, import."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _program, _settings, errors
from ._relay import Relay
from .training import RunFile


class Plan:
    """What a run needs: ``fits``, ``peak_bytes`` by pool, ``regions``, ``predicted_run_s``; ``json`` has all of it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.json = about
        self.fits: bool = about["fits"]
        self.regions: list[dict[str, Any]] = about["regions"]
        self.hints: list[str] = about["hints"]
        self.predicted_run_s: float | None = about.get("predicted_run_s")

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Returns the planned peak of each pool: ``host``, ``device``, ``disk``."""
        return {name: pool["peak_bytes"] for name, pool in self.json["pools"].items()}

    def __repr__(self) -> str:
        peaks = ", ".join(f"{name} {bytes / 2**20:,.1f} MiB" for name, bytes in self.peak_bytes.items())
        return f"<Plan {'fits' if self.fits else 'does not fit'}: {peaks}>"


def plan(
    run: RunFile = None,
    /,
    *,
    card: str | None = None,
    host_memory: str | None = None,
    limit: str | None = None,
    ranks: int | None = None,
    hosts: int | None = None,
    **keys: Any,
) -> Plan:
    """Returns where the memory of a run goes, on this machine or on another.

    ``card``: such as ``"h100"``; ``host_memory``: such as ``"64GiB"``; ``limit``: ``"host=8GiB,disk=100GiB"``. ``run`` and
    ``**keys`` are those of ``train``.

    Raises ``PlanDoesNotFit`` with the numbers and the settings that fit.
    """
    file, settings = _settings.run_file(run, _settings.flat(keys))
    options = {"card": card, "host-memory": host_memory, "limit": limit, "ranks": ranks, "hosts": hosts}
    arguments = ["plan", file, *_settings.sets(settings), *_flags(options)]
    about = _program.as_json(arguments, exits=(0, 3))
    if not about["fits"]:
        raise _does_not_fit(arguments)
    return Plan(about)


def _does_not_fit(arguments: list[str]) -> errors.PlimsollError:
    try:
        _program.output(arguments)
    except errors.PlimsollError as error:
        return error
    return errors.PlanDoesNotFit("the run does not fit", slug="host-pool-exceeded", exit_code=3)


def eval(
    model: Any,
    data: Any,
    *,
    reward: str | Callable[..., Any] = "exact",
    samples: int | None = None,
    prompts_max: int | None = None,
    max_new_tokens: int | None = None,
    seed: int | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Scores a model on prompts and returns the numbers: ``score``, ``pass_at_k``, ``examples``, ...

    ``model`` is a directory (of a model, a checkpoint or a run), ``"hf:org/name"``, ``"builtin:nano"``; ``data`` a file, a
    built-in task or rows; ``reward`` a kind or a function of this process.
    """
    rows = _settings.rows_of(data)
    place = _settings.rows_file(rows) if rows is not None else data
    options = {"samples": samples, "prompts-max": prompts_max, "max-new-tokens": max_new_tokens, "seed": seed}
    arguments = ["eval", "--model", os.fspath(model), "--data", os.fspath(place), *_flags(options)]
    with _Served(reward, _settings.flat(keys)) as served:
        arguments += ["--reward", served.kind, *_settings.sets(served.keys)]
        return served.as_json(arguments)


def generate(
    model: Any,
    prompt: str,
    *,
    system: str | None = None,
    raw: bool = False,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    **keys: Any,
) -> str:
    """Returns a model's response to a prompt: greedy, unless ``temperature`` is given."""
    settings = _settings.flat(keys)
    if temperature is not None:
        settings["rollout.temperature"] = temperature
    options = {"system": system, "max-new-tokens": max_new_tokens, "seed": seed}
    # The prompt goes by standard input: one may begin with a dash.
    arguments = ["generate", "--model", os.fspath(model), "--prompt", "-", *_flags(options), *_settings.sets(settings)]
    return _program.as_json([*arguments, *(["--raw"] if raw else [])], prompt)["text"]


def grade(reward: str | Callable[..., Any], rows: Iterable[Mapping[str, Any]], **keys: Any) -> list[float | None]:
    """Returns the score of each row, which has ``response`` and ``ground_truth``, by a kind of reward or a function."""
    rows = _settings.rows_of(rows) or list(rows)
    lines = _settings.json_lines(rows)
    if keys:
        raise errors.usage("bad-usage", f"grade takes no further settings: {', '.join(keys)}")
    with _Served(reward, {}) as served:
        text = served.output(["grade", "--reward", served.kind, "-"], lines)
    return [json.loads(line)["score"] for line in text.splitlines()]


def explain(what: str | errors.PlimsollError) -> str:
    """Returns the page of an error, by its slug or as it was raised, or of a key of the run file."""
    slug = what.slug if isinstance(what, errors.PlimsollError) else what
    return _program.output(["explain", *slug.split()])


def init(name: str | None = None, **flags: Any) -> str:
    """Writes a run file to begin with and returns its path; flags as ``plimsoll init`` has them, such as ``model=``."""
    options = {flag.replace("_", "-"): value for flag, value in flags.items()}
    before = set(os.listdir())
    _program.output(["init", *([name] if name else []), *_flags(options)])
    made = sorted(set(os.listdir()) - before)
    named = flags.get("output") or (f"{name}.toml" if name else None)
    return os.fspath(named or (made[0] if made else "run.toml"))


class Server:
    """A server that answers requests as OpenAI's API does. ``url`` is its address; ``close`` or ``with`` ends it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        #: ``http://127.0.0.1:PORT/v1``, as ``base_url`` of OpenAI's client.
        self.url = url

    def close(self) -> None:
        """Lets running responses end, and the server."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def __repr__(self) -> str:
        return f"<Server {self.url}>"


def serve(model: Any, *, port: int = 0, start_seconds: float = 600, **options: Any) -> Server:
    """Starts a server of a model on this machine and returns it when it listens; options as ``plimsoll serve`` has them.

    Raises the error that the command named.
    """
    settings = _settings.flat(options.pop("keys", {}))
    flags = {name.replace("_", "-"): value for name, value in options.items()}
    arguments = ["serve", os.fspath(model), "--port", str(port), *_flags(flags), *_settings.sets(settings)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [_program.program(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env=_program.environment(),
        )
        ready, _, _ = select.select([process.stdout], [], [], start_seconds)
        line = process.stdout.readline() if ready else ""
        address = next((word.rstrip("/.,;") for word in line.split() if word.startswith("http://")), None)
        if address is None:
            process.terminate()
            code = process.wait()
            process.stdout.close()
            log.seek(0)
            raise errors.read(code, log.read().splitlines())
    return Server(process, address if address.endswith("/v1") else f"{address}/v1")


class _Served:
    """A reward of a command: a kind as it is, a function of this process while the command runs."""

    def __init__(self, reward: str | Callable[..., Any], keys: dict[str, object]) -> None:
        self.keys = keys
        self._folder = tempfile.TemporaryDirectory(prefix="plimsoll-")
        self._relay = Relay(self._folder.name)
        self._is_function = callable(reward)
        self.kind = self._relay.function(reward) if callable(reward) else str(reward)

    def __enter__(self) -> _Served:
        if self._is_function:
            self._relay.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._relay.close()
        self._folder.cleanup()

    def output(self, arguments: list[str], text: str | None = None) -> str:
        try:
            return _program.output(arguments, text, PLIMSOLL_FUNCTIONS=self._relay.path)
        except errors.PlimsollError as error:
            raise error from self._relay.raised

    def as_json(self, arguments: list[str]) -> Any:
        return json.loads(self.output([*arguments, "--json"]))


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Returns options as flags: True is a flag alone, a list repeats its flag, None and False are left out."""
    arguments: list[str] = []
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None and one is not False:
                arguments += [f"--{name}"] if one is True else [f"--{name}={os.fspath(one) if isinstance(one, os.PathLike) else one}"]
    return arguments
