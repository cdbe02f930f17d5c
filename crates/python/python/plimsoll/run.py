"""What a run leaves: its events, curves, samples and checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from ._driver import Driver


class Step:
    """A step of a run: what it measured, and what is to happen after it."""

    def __init__(self, event: dict[str, Any], run: Run, driver: Driver | None = None) -> None:
        self._driver = driver
        #: The run that it belongs to.
        self.run = run
        #: The event as ``events.jsonl`` has it.
        self.event = event
        #: Its number, from 1.
        self.number: int = event["step"]
        #: Steps of the whole run.
        self.steps: int = event["steps"]
        #: Mean reward of its samples; None for supervised steps.
        self.reward: float | None = event.get("reward")
        self.loss: float | None = event.get("loss")
        #: Every metric by its name, such as ``"rewards/exact/mean"``.
        self.metrics: dict[str, float] = event["metrics"]
        self.seconds: float = event["seconds"]

    def __repr__(self) -> str:
        reward = "" if self.reward is None else f", reward {self.reward:.3f}"
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"<Step {self.number} of {self.steps}{reward}{loss}>"

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Returns its samples: prompt, response, rewards, log-probs, a dict each; empty for supervised steps."""
        return self.run.samples(self.number)

    def stop(self) -> None:
        """Saves the run after this step, and ends it. It resumes."""
        self._live("stop").stop()

    def save(self) -> None:
        """Saves a checkpoint after this step."""
        self._live("save").save()

    def change(self, **keys: Any) -> None:
        """Goes on after this step with other settings, of those that a resumed run may change.

        The run is saved, ends, and resumes with them: it is the run that would have been stopped and resumed by hand.
        """
        self._live("change").change(keys)

    def _live(self, what: str) -> Driver:
        if self._driver is None or not self._driver.is_at(self.number):
            raise errors.usage(
                "bad-usage",
                f"step {self.number} is over: `{what}` belongs in a callback, or in the loop over "
                "plimsoll.train(..., stream=True) while it is the newest step",
            )
        return self._driver


class Run:
    """The directory of a run, live or ended.

    ``plimsoll.Run("runs/out/first")`` opens one that is there; ``plimsoll.train`` returns the one that it trained.
    Iterating over it gives the steps that it has made.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.dir = Path(directory)
        #: True if this process stopped the run before its last step.
        self.stopped = False
        self._again: Any = None
        if not (self.dir / "events.jsonl").is_file():
            raise errors.usage("run-dir-unreadable", f"{self.dir} is not the directory of a run: it has no events.jsonl")

    def __repr__(self) -> str:
        return f"<Run {str(self.dir)!r}>"

    def __fspath__(self) -> str:
        return str(self.dir)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events of ``events.jsonl``: ``started``, ``step``, ``eval``, ``memory``, ``saved``, ``finished``, ..."""
        with open(self.dir / "events.jsonl", encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # The last line of a run under way may not be whole.
                    yield json.loads(line)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def steps(self) -> list[Step]:
        """Returns the steps that it has made."""
        return [Step(event, self) for event in self.events() if event["event"] == "step"]

    @property
    def summary(self) -> dict[str, Any] | None:
        """Returns what ``summary.json`` says of a run that has ended; None before."""
        path = self.dir / "summary.json"
        return json.loads(path.read_text("utf-8")) if path.is_file() else None

    @property
    def checkpoints(self) -> list[Path]:
        """Returns the checkpoints that are kept, oldest first."""
        return sorted(self.dir.glob("checkpoints/step-*"))

    @property
    def latest(self) -> Path:
        """Returns the newest checkpoint: a model like any other."""
        return self._checkpoint("latest")

    @property
    def best(self) -> Path:
        """Returns the checkpoint with the best score."""
        return self._checkpoint("best")

    def _checkpoint(self, name: str) -> Path:
        path = self.dir / "checkpoints" / name
        if not path.exists():
            raise errors.usage("run-dir-unreadable", f"{self.dir} has no checkpoint yet")
        return path.resolve()

    def samples(self, step: int) -> list[dict[str, Any]]:
        """Returns the samples of a step that the run keeps (``train`` writes some of each), a dict each."""
        return self._rows(f"step-{step:06}.jsonl")

    def eval_samples(self, step: int) -> list[dict[str, Any]]:
        """Returns the responses that an evaluation after a number of steps keeps."""
        return self._rows(f"eval-{step:06}.jsonl")

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self.dir / "samples" / name
        if not path.is_file():
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def curve(self, name: str = "reward"):
        """Returns the steps and the values of a metric: two arrays of numpy where it is there, else two lists.

        ``name`` is a metric, ``"reward"``, ``"loss"``, or ``"eval"`` for the held-out score. Raises KeyError with
        the names that there are.
        """
        points = self._points(name)
        if not points:
            names = sorted({metric for step in self.steps for metric in step.metrics} | {"reward", "loss", "eval"})
            raise KeyError(f"no metric `{name}`; there are: {', '.join(names)}")
        steps, values = [step for step, _ in points], [value for _, value in points]
        try:
            import numpy
        except ImportError:
            return steps, values
        return numpy.array(steps), numpy.array(values, dtype=float)

    def _points(self, name: str) -> list[tuple[int, float]]:
        points = []
        for event in self.events():
            if name == "eval" and event["event"] == "eval":
                points.append((event["step"], event["score"]))
            elif event["event"] == "step":
                value = event["metrics"].get(name, event.get(name) if name in ("reward", "loss", "accuracy") else None)
                points.append((event["step"], value))
        return [(step, value) for step, value in points if value is not None]

    def frame(self):
        """Returns the metrics of all steps as a ``pandas.DataFrame``, a row a step."""
        import pandas

        rows = [{"step": step.number, "reward": step.reward, "loss": step.loss, **step.metrics} for step in self.steps]
        return pandas.DataFrame(rows).set_index("step")

    def plot(self, *names: str, axes=None):
        """Draws curves with matplotlib and returns the axes; without names the reward or loss, and the held-out score."""
        from matplotlib import pyplot

        if not names:
            names = tuple(name for name in ("reward", "eval") if self._points(name)) or ("loss",)
        if axes is None:
            _, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
        for name in names:
            steps, values = self.curve(name)
            axes.plot(steps, values, label="held-out" if name == "eval" else name, marker="o" if name == "eval" else None)
        axes.set_xlabel("step")
        axes.set_title(str(self.dir), fontsize="medium")
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
        return axes

    def generate(self, prompt: str, **options: Any) -> str:
        """Returns the response of its newest checkpoint to a prompt; options as ``plimsoll.generate`` has them."""
        from .commands import generate

        return generate(self.dir, prompt, **options)

    def eval(self, data: Any, **options: Any) -> dict[str, Any]:
        """Scores its newest checkpoint on prompts; options as ``plimsoll.eval`` has them."""
        from .commands import eval

        return eval(self.dir, data, **options)

    def resume(self, **keys: Any):
        """Goes on where the run ended, with the run file, functions and settings that it was started with in this process.

        ``keys``: further settings, of those that a resumed run may change. Returns the run.
        """
        if self._again is None:
            raise errors.usage(
                "bad-usage",
                f"this process did not start {self.dir}, so it does not know the functions of the run",
                "plimsoll.train(RUN_FILE, ..., resume=True) with what the run was started with",
            )
        return self._again(keys)
