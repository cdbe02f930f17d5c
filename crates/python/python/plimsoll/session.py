"""``plimsoll.Session``: a loop of your own over the parts of a step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy

from . import _settings, errors
from ._link import Link, array
from .commands import Plan
from .samples import Prompts, Samples
from .training import RunFile, Reward, rewards_of

#: A loss of the script's own: from the log-probs of some sequences and those to its value, its derivative by each
#: log-prob and, if there is one, by each entropy.
Loss = Callable[[numpy.ndarray, "Part"], Union[tuple[float, Any], tuple[float, Any, Any]]]


class Part:
    """What a loss of the script's own gets of a micro-batch besides its log-probs."""

    def __init__(self, samples: Samples, start: int, end: int, entropy: numpy.ndarray) -> None:
        #: Its tokens, as a slice of the arrays over all tokens.
        self.tokens = slice(start, end)
        #: Its sequences, as a slice of those of all.
        self.sequences = slice(*numpy.searchsorted(samples.offsets, [start, end]))
        #: Entropy of the distribution of each token.
        self.entropy = entropy
        self._samples = samples

    @property
    def samples(self) -> Samples:
        """Returns its sequences."""
        return self._samples[self.sequences]


class Session:
    """A run whose steps this script makes.

        with plimsoll.Session("first.toml") as session:
            for step in session:
                samples = session.sample()
                advantages = samples.rewards - samples.rewards.mean()
                session.forward_backward(samples, advantages)
                session.step()

    It is a run like any other: the plan first, then ``run.dir`` with events, checkpoints, evaluation and metrics as the
    run file has them. ``plan`` is there before anything is allocated; the first request begins the run.
    """

    def __init__(
        self,
        run: RunFile = None,
        /,
        *,
        reward: Reward | Sequence[Reward] | None = None,
        resume: bool = False,
        overwrite: bool = False,
        quiet: bool = False,
        **keys: Any,
    ) -> None:
        """Plans a run.

        Args:
            run: A run file, or a dict of its settings, or nothing where keywords are all there is.
            reward: Functions or kinds of rewards, as ``plimsoll.train`` takes them.
            resume: Goes on where the run in the directory was saved; ``state`` is what this script kept there.
            overwrite: Replaces the run in the directory.
            quiet: Shows nothing but warnings.
            **keys: Keys of the run file, as ``plimsoll.train`` takes them.

        Raises:
            PlanDoesNotFit: With the numbers and the settings that fit.
            UsageError: A key, a value or a file is not right, or the run is none that a script can lead.
        """
        if resume and overwrite:
            raise errors.usage("bad-usage", "resume goes on with what is in the directory, and overwrite removes it", "choose one")
        self._link = Link(quiet)
        try:
            settings = _settings.flat(keys)
            settings.update(rewards_of(self._link.relay, reward))
            file, settings = _settings.run_file(run, settings)
            options = [*(["--resume"] if resume else []), *(["--overwrite"] if overwrite else [])]
            self._link.start(["train", file, *_settings.sets(settings), *options])
            header, arrays = self._link.answer()
        except BaseException:
            self._link.close()
            raise
        #: Where its memory goes.
        self.plan = Plan({"fits": True, "hints": [], **json.loads(arrays["plan"].tobytes())})
        #: Steps of the whole run, and those that are made.
        self.steps: int = header["steps"]
        self.number = 0
        #: What this script kept in the checkpoint that is resumed; None if nothing.
        self.state: bytes | None = None
        self.prompts_per_step: int = header["prompts_per_step"]
        self.group_size: int = header["group_size"]
        #: Numbers of the newest step, by name, as ``events.jsonl`` has them.
        self.metrics: dict[str, float] = {}
        self._begun = self._closed = False
        # True once something of the next step was asked for.
        self._in_step = False

    def begin(self) -> None:
        """Allocates what was planned, and begins or resumes the run. The first request does it."""
        if self._begun:
            return
        self._begun = True
        header, arrays = self._link.ask("begin")
        self.number = header["made"]
        self.state = arrays["state"].tobytes() if header["has_state"] else None

    @property
    def done(self) -> bool:
        """True once the last step is made."""
        return self.number >= self.steps

    def __iter__(self) -> Iterator[int]:
        """Yields the number of each step that is to be made, from 1."""
        self.begin()
        while not self.done:
            step = self.number + 1
            yield step
            if self.number < step:
                raise errors.usage("script-out-of-order", f"step {step} has no end", "call step() at the end of the loop's body")

    def prompts(self, count: int | None = None) -> Prompts:
        """Returns the next prompts of the run's data, in the order of training; as many as a step has unless given."""
        _, arrays = self._ask("prompts", count=self.prompts_per_step if count is None else count)
        return Prompts(arrays["positions"], [json.loads(row) for row in arrays["rows"].tobytes().splitlines()])

    def sample(
        self,
        prompts: Prompts | Sequence[Any] | None = None,
        n: int | None = None,
        *,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        schema: str | Mapping[str, Any] | None = None,
        grade: bool = True,
    ) -> Samples:
        """Draws ``n`` responses to each prompt.

        Args:
            prompts: Of ``prompts()``, which is asked if there are none; or texts, conversations, rows with a column
                ``prompt`` and what rewards need, or arrays of tokens.
            n: Responses to a prompt; ``rollout.group_size`` unless given.
            temperature, max_new_tokens, stop: Instead of those of ``[rollout]``.
            seed: With one, the responses follow from it and the prompts alone; else from the run's seed and how many
                were drawn before.
            schema: What the responses are held to, instead of ``rollout.schema``, which the run must have: a JSON schema or
                ``"regex:..."``.
            grade: False where the run file's rewards are not wanted.

        Raises ``UsageError``: ``script-too-large`` for more than a step has.
        """
        words = {"n": self.group_size if n is None else n, "temperature": temperature, "seed": seed, "grade": grade}
        words.update(max_new_tokens=max_new_tokens, stop=[stop] if isinstance(stop, str) else None if stop is None else list(stop))
        form = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        arrays = _prompts(self.prompts() if prompts is None else prompts)
        samples = Samples._drawn(*self._ask("sample", arrays, schema=form, **words))
        samples.schema = form
        return samples

    def score(self, samples: Samples, role: str = "reference", *, temperature: float | None = None) -> numpy.ndarray:
        """Returns the log-prob of each token, [N], under ``"reference"`` or, with the newest weights, ``"actor"``."""
        temperature = samples.temperature if temperature is None else temperature
        return self._ask("score", samples._arrays(), role=role, temperature=temperature, schema=samples.schema)[1]["logprobs"]

    def forward_backward(
        self,
        samples: Samples,
        advantages: Any = None,
        loss: str | Loss | None = None,
        *,
        gradients: Any = None,
        entropy_gradients: Any = None,
        logprobs: Any = None,
        reference: Any = None,
        mask: Any = None,
        **options: Any,
    ) -> Learned:
        """Computes the gradients of a loss over sequences, and adds them to those since the last update.

        Args:
            advantages: One for each sequence or each token.
            loss: The loss of a method by its name (``"grpo"``, ``"cispo"``, ...), that of the run file if there is none,
                or a function: ``loss(logprobs, part)`` returns its value and its derivative by each log-prob. It is
                called for each micro-batch, while its activations are there.
            gradients: Or the derivative by each log-prob, [N], where it is known before. ``entropy_gradients`` likewise.
            logprobs: Log-probs that ratios are taken to, [N]; those of the samples unless given.
            reference: Those of the reference, for a term of KL.
            mask: 0 on tokens that are not trained, [N].
            **options: ``clip_low``, ``clip_high``, ``dual_clip``, ``aggregation``, ``entropy_coef``, ``kl_coef``; and
                ``total_tokens``, ``total_sequences`` of the whole update, where this is a part of it.

        Raises ``UsageError`` for arrays that do not fit, and ``loss-not-finite``; the gradients since the last update are
        then dropped.
        """
        arrays = {**samples._arrays(), **_tokens(samples, "advantages", advantages), **_tokens(samples, "mask", mask)}
        old = samples.logprobs if logprobs is None else logprobs
        by = "questions" if callable(loss) else "loss" if gradients is None else "arrays"
        if old is None:
            if by == "loss":
                hint = "logprobs=session.score(samples, \"actor\")"
                raise errors.usage("script-bad-array", "these samples have no log-probs", hint)
            old = numpy.zeros(len(samples.tokens), numpy.float32)
        if by == "loss" and advantages is None:
            raise errors.usage("script-bad-array", "there are no advantages", "give one for each sequence or each token")
        arrays["logprobs"] = array("logprobs", old, "<f4")
        more = {"reference": reference, "gradients": gradients, "entropy_gradients": entropy_gradients}
        arrays.update({name: array(name, numbers, "<f4") for name, numbers in more.items() if numbers is not None})
        words = {"by": by, "temperature": samples.temperature, "schema": samples.schema, **options}
        words["version"] = samples.version if logprobs is None else None
        words["loss"] = loss if isinstance(loss, str) else None
        self.begin()
        self._in_step = True
        self._link.send({"verb": "learn", **{name: value for name, value in words.items() if value is not None}}, arrays)
        return Learned(*self._learned(samples, loss))

    def _learned(self, samples: Samples, loss: Any) -> tuple[dict, dict[str, numpy.ndarray]]:
        """Answers the questions of the run, and returns its answer."""
        raised = None
        while True:
            try:
                header, arrays = self._link.answer()
            except errors.PlimsollError as error:
                raise (raised or error) from (error if raised else None)
            if "ask" not in header:
                return header, arrays
            try:
                part = Part(samples, header["start"], header["end"], arrays["entropy"])
                value, *found = loss(arrays["logprobs"], part)
                if not numpy.isfinite(value):
                    raise errors.usage("loss-not-finite", f"the loss of tokens {part.tokens.start} to {part.tokens.stop} is {value}")
                names = ("gradients", "entropy_gradients")
                answer = {name: array(name, numbers, "<f4") for name, numbers in zip(names, found)}
                self._link.send({"verb": "gradients", "loss": float(value)}, answer)
            except Exception as error:
                raised = error
                self._link.send({"verb": "abandon"}, {})

    def drop(self) -> None:
        """Forgets the gradients since the last update."""
        self._ask("drop")

    def step(
        self,
        lr: float | None = None,
        *,
        more: bool = False,
        update: bool = True,
        reward: float | None = None,
        metrics: Mapping[str, float] | None = None,
        state: bytes | None = None,
    ) -> dict[str, float]:
        """Applies the gradients by the run file's optimizer, ends the step, and returns its numbers.

        Args:
            lr: Instead of ``train.learning_rate`` and its schedule.
            more: Further updates of the same step follow: the step goes on.
            update: False ends a step that learns nothing.
            reward: The mean reward, where the script made its own.
            metrics: Further numbers for ``events.jsonl``, by name.
            state: What the script wants to have again where it resumes after this step: checkpoints keep it.

        Raises ``UsageError``: ``script-out-of-order`` without gradients, ``gradient-not-finite``. The weights are then
        unchanged, and the step goes on.
        """
        arrays = {} if state is None else {"state": numpy.frombuffer(bytes(state), numpy.uint8)}
        numbers = {name: float(value) for name, value in (metrics or {}).items()}
        rate = None if lr is None else float(lr)
        mean = None if reward is None else float(reward)
        header, _ = self._ask("step", arrays, lr=rate, more=more, update=update, reward=mean, metrics=numbers)
        if not more:
            self._in_step = False
            self.number, self.metrics = header["step"], header["metrics"]
        return header["metrics"]

    def save(self) -> None:
        """Saves a checkpoint between two steps, which ``resume=True`` and ``plimsoll train --resume`` go on from."""
        self._ask("save")

    def close(self, save: bool = False) -> None:
        """Ends the run: after its last step when it is evaluated and saved, before that with a checkpoint if asked.

        Raises the error with which it ended.
        """
        if self._closed:
            return
        if save and self._in_step:
            raise errors.usage("script-out-of-order", "a step is under way, and a checkpoint lies between two", "end the step first")
        self._closed = True
        try:
            if self._begun and not self.done and not self._in_step:
                self._link.ask("close", save=save)
            error = self._link.ended()
        finally:
            self._link.close()
        if error is not None and not (error.slug in ("interrupted", "script-ended") and not self.done):
            raise error

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            # What a step has begun is lost; those before it are saved.
            self.close(save=self.number > 0 and not self._in_step)
            return
        # What ended the script is the error; whatever was saved is there.
        self._closed = True
        self._link.close()

    def __repr__(self) -> str:
        return f"<Session: {self.number} of {self.steps} steps>"

    def _ask(self, verb: str, arrays: Mapping[str, numpy.ndarray] | None = None, **words: Any) -> tuple[dict, dict]:
        self.begin()
        if self.done:
            raise errors.usage("script-out-of-order", f"{verb}: the run has made its last step", "raise train.steps and resume it")
        self._in_step |= verb != "save"
        return self._link.ask(verb, arrays, **words)


class Learned:
    """What ``forward_backward`` computed."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, numpy.ndarray]) -> None:
        #: ``loss``, ``tokens``, ``clip_ratio_low``, ``kl_to_old``, ``entropy``, ...
        self.metrics: dict[str, float] = header["metrics"]
        #: Log-prob and entropy of each token with the newest weights, [N]; None where no token was trained.
        self.logprobs = arrays.get("logprobs")
        self.entropy = arrays.get("entropy")

    def __repr__(self) -> str:
        return f"<Learned: {self.metrics}>"


def _tokens(samples: Samples, name: str, given: Any) -> dict[str, numpy.ndarray]:
    """Returns an array over tokens, from one over sequences if it is that."""
    if given is None:
        return {}
    numbers = array(name, given, "<f4")
    return {name: samples.spread(numbers) if numbers.size == len(samples) != len(samples.tokens) else numbers}


def _prompts(given: Prompts | Sequence[Any]) -> dict[str, numpy.ndarray]:
    if isinstance(given, Prompts):
        return {"positions": array("positions", given.positions, "<u8")}
    rows = [{"prompt": one} if isinstance(one, str) else one for one in given]
    rows = [{"prompt": one} if _is_conversation(one) else one for one in rows]
    if rows and all(isinstance(row, Mapping) for row in rows):
        return {"rows": numpy.frombuffer(_settings.json_lines(rows).encode("utf-8", "backslashreplace"), numpy.uint8)}
    tokens = [array("prompts", one, "<u4") for one in rows]
    if not tokens:
        raise errors.usage("script-bad-request", "there are no prompts", "give at least one")
    ends = numpy.cumsum([0, *map(len, tokens)])
    return {"prompts": numpy.concatenate(tokens), "prompt_offsets": ends.astype("<u4")}


def _is_conversation(one: Any) -> bool:
    return isinstance(one, (list, tuple)) and bool(one) and all(isinstance(message, Mapping) for message in one)


__all__ = ["Learned", "Part", "Prompts", "Samples", "Session"]
