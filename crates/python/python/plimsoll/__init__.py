"""Reinforcement-learning post-training of language models: memory decided before the run, every failure named.

    import plimsoll

    def brevity(prompts, completions, answer, **columns):
        return [float(truth in text) - 0.1 * len(text) for text, truth in zip(completions, answer)]

    run = plimsoll.train("first.toml", reward=brevity, train={"steps": 40})
    run.plot()

``help(plimsoll.train)`` says what it takes. A run is that of the command ``plimsoll train``: same plan, same bits, same named
errors, as exceptions. Collectors of environments for learners of your own are in ``plimsoll.collect``.
"""

from . import errors
from ._driver import Stream
from .commands import Plan, Server, eval, explain, generate, grade, init, plan, serve
from .errors import (
    CallbackError,
    Interrupted,
    PlanDoesNotFit,
    PlimsollError,
    RankLost,
    TrainerKilled,
    UsageError,
)
from .run import Run, Step
from .training import train
from .trl import DPO, GRPO, KTO, RLOO, SFT



def __getattr__(name: str):
    # Runs need the standard library alone; a session needs numpy.
    if name in ("Learned", "Part", "Prompts", "Samples", "Session"):
        try:
            from . import session
        except ModuleNotFoundError as error:
            raise errors.usage("file-missing", f"plimsoll.{name} needs numpy, and {error}", "pip install numpy") from error
        return getattr(session, name)
    raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")


__all__ = [
    "DPO",
    "GRPO",
    "KTO",
    "RLOO",
    "SFT",
    "CallbackError",
    "Interrupted",
    "Plan",
    "PlanDoesNotFit",
    "PlimsollError",
    "RankLost",
    "Run",
    "Server",
    "Step",
    "Stream",
    "TrainerKilled",
    "UsageError",
    "errors",
    "eval",
    "explain",
    "generate",
    "grade",
    "init",
    "plan",
    "serve",
    "train",
]
