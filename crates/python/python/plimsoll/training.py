"""``plimsoll.train``: a run file, a dict or keywords, and functions of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, overload

from . import _settings, errors
from ._driver import Driver, Stream
from ._relay import Relay, needs_interpreter
from .run import Run

RunFile = Union[str, "os.PathLike[str]", Mapping[str, Any], None]
Reward = Union[str, Callable[..., Any], Mapping[str, Any]]

#: Memory of the worker that takes the place of a function of this process: the function itself runs here.
_STAND_IN_MEMORY = "256MiB"


@overload
def train(
    run: RunFile = None,
    /,
    *,
    reward: Reward | Sequence[Reward] | None = None,
    estimator: Callable[..., Any] | str | None = None,
    environment: Callable[..., Any] | str | None = None,
    callbacks: Iterable[Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    ranks: int = 1,
    quiet: bool = False,
    callback_seconds: int = 3600,
    stream: Literal[False] = False,
    **keys: Any,
) -> Run: ...


@overload
def train(
    run: RunFile = None,
    /,
    *,
    reward: Reward | Sequence[Reward] | None = None,
    estimator: Callable[..., Any] | str | None = None,
    environment: Callable[..., Any] | str | None = None,
    callbacks: Iterable[Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    ranks: int = 1,
    quiet: bool = False,
    callback_seconds: int = 3600,
    stream: Literal[True],
    **keys: Any,
) -> Stream: ...


def train(
    run: RunFile = None,
    /,
    *,
    reward: Reward | Sequence[Reward] | None = None,
    estimator: Callable[..., Any] | str | None = None,
    environment: Callable[..., Any] | str | None = None,
    callbacks: Iterable[Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    ranks: int = 1,
    quiet: bool = False,
    callback_seconds: int = 3600,
    stream: bool = False,
    _functions: Callable[[Any], dict[str, object]] | None = None,
    **keys: Any,
) -> Run | Stream:
    """Trains, and returns the run when it has ended.

    It is the run of the command ``plimsoll train``: the same plan, the same bits, the same named errors, which are
    raised here as ``PlimsollError``. Interrupting it (Ctrl-C, the stop button of a notebook) saves it after its step.

    Args:
        run: A run file, or a dict of its settings, or nothing where keywords are all there is.
        reward: A function ``f(prompts, completions, **columns) -> list[float]`` of this process, a kind of reward such
            as ``"math"`` or ``"python:FILE.py:f"``, a dict ``{"kind": f, "weight": 0.5}``, or a list of these. It
            replaces the rewards of the run file.
        estimator: A function that returns one advantage a token from the step's arrays (`docs: own advantage`), or the
            name of a built-in one. A function needs numpy.
        environment: A class of this process with ``reset`` and ``step``, or with tools, or the name of an environment.
        callbacks: Functions that get each ``Step`` and may return ``"stop"`` or ``"save"``; or objects with methods
            ``on_start(run)``, ``on_step(step)``, ``on_eval(event)``, ``on_saved(event)``, ``on_end(run)``. The run
            waits for them. What one raises is raised here, when the run is saved.
        resume: Goes on where the run in the directory ended, bit for bit.
        overwrite: Replaces the run in the directory.
        ranks: Processes that train it together, on one machine.
        quiet: Shows nothing but warnings.
        callback_seconds: How long callbacks, or the body of the loop, may take after a step.
        stream: Returns an iterator over the steps as they are made, instead of the run at its end:
            ``for step in plimsoll.train("first.toml", stream=True): ...``. Leaving the loop stops the run.
        **keys: Keys of the run file: ``train={"steps": 40}``, ``model="builtin:nano"``, ``**{"run.dir": "out"}``. Rows
            may stand where a key names data: ``data={"prompts": [{"prompt": "1+1=", "answer": "2"}]}``.

    Raises:
        PlanDoesNotFit: Before anything is allocated, with the numbers and settings that fit.
        UsageError: A key, a value or a file is not right.
        PlimsollError: Anything else, by its name.
    """
    settings = _settings.flat(keys)
    if resume and overwrite:
        raise errors.usage("bad-usage", "resume goes on with what is in the directory, and overwrite removes it", "choose one")
    options = [*(["--resume"] if resume else []), *(["--overwrite"] if overwrite else [])]
    options += ["--ranks", str(ranks)] if ranks != 1 else []
    options += ["--callback-seconds", str(callback_seconds)]
    callbacks = list(callbacks)
    for callback in callbacks:
        if not callable(callback) and not any(hasattr(callback, f"on_{event}") for event in ("start", "step", "eval", "saved", "end")):
            raise errors.usage("bad-value", f"the callback {callback!r:.80} is no function and has no method on_step")
    driver = Driver("", {}, options, callbacks, quiet)
    if _functions is not None:
        settings = {**_functions(driver.relay), **settings}
    settings.update(_of_functions(driver, reward, estimator, environment, settings))
    driver.file, driver.keys = _settings.run_file(run, settings)
    return Stream(driver) if stream else driver.to_end()


def _of_functions(driver: Driver, reward: Any, estimator: Any, environment: Any, settings: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings by which the functions of this process are found."""
    found: dict[str, object] = {}
    relay = driver.relay
    found.update(rewards_of(relay, reward))
    if callable(estimator):
        found["loss.advantage"] = relay.function(estimator)
        found["loss.advantage_python"] = settings.get("loss.advantage_python", needs_interpreter())
    elif estimator is not None:
        found["loss.advantage"] = estimator
    if callable(environment):
        found["environment.env"] = relay.environment(environment)
        found["environment.python"] = settings.get("environment.python", needs_interpreter())
    elif environment is not None:
        found["environment.env"] = environment
    return found


def rewards_of(relay: Relay, reward: Any) -> dict[str, object]:
    """Returns the setting of rewards that are functions of this process, kinds or tables; none without any."""
    if reward is None:
        return {}
    tables = [_reward(relay, one) for one in (reward if isinstance(reward, (list, tuple)) else [reward])]
    _own_names(tables)
    return {"reward": tables}


def of_function(relay: Relay, function: Callable[..., Any]) -> dict[str, object]:
    """Returns the reward's table by which a function of this process is found."""
    return {
        "kind": relay.function(function),
        "python": needs_interpreter(),
        "workers": 1,
        "worker_memory": _STAND_IN_MEMORY,
    }


def _reward(relay: Any, reward: Any) -> dict[str, object]:
    table = dict(reward) if isinstance(reward, Mapping) else {"kind": reward}
    kind = table.get("kind")
    if callable(kind):
        table = {**of_function(relay, kind), **{key: value for key, value in table.items() if key != "kind"}}
    elif not isinstance(kind, str):
        raise errors.usage(
            "unknown-reward",
            f"a reward is a function, a kind such as \"math\" or a dict with `kind`, not a {type(kind).__name__}",
        )
    return table


def _own_names(tables: Sequence[Mapping[str, object]]) -> None:
    """Refuses two functions of one name, whose metrics would be one."""
    names = [str(table["kind"]).rpartition(":")[2] for table in tables if str(table["kind"]).startswith("python:")]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise errors.usage(
            "bad-value", f"two rewards are called `{twice[0]}`, and their metrics would be one", "give one another name"
        )


__all__ = ["train"]
