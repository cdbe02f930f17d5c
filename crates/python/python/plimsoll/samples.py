"""Prompts of a run and responses to them, as flat arrays of numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from . import errors
from ._link import array

_FINISH = ("eos", "stop", "length")


class Prompts:
    """Prompts of the run's own data, by their positions: ``texts``, ``messages`` and ``columns`` are a row's."""

    def __init__(self, positions: numpy.ndarray, rows: list[dict[str, Any]]) -> None:
        #: Places in the order of training, [P] uint64.
        self.positions = positions
        self._rows = rows

    @property
    def texts(self) -> list[str]:
        return [row["prompt"] for row in self._rows]

    @property
    def messages(self) -> list[list[dict[str, Any]] | None]:
        """Returns the conversation of each prompt; None where it is plain text."""
        return [row["messages"] for row in self._rows]

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Returns the other columns of each row, such as its answer."""
        return [row["columns"] for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, which: slice) -> Prompts:
        return Prompts(self.positions[which], self._rows[which])


class Samples:
    """Responses to prompts. Legend: S sequences, N response tokens of all sequences.

    Sequence ``s`` is ``tokens[offsets[s]:offsets[s + 1]]``. Those of one prompt are next to each other.
    """

    def __init__(
        self,
        tokens: Any,
        offsets: Any,
        prompts: Sequence[Any],
        owners: Any,
        *,
        logprobs: Any = None,
        temperature: float = 1.0,
        version: int | None = None,
    ) -> None:
        """Takes sequences of the script's own, such as those of a replay buffer or of a file.

        ``prompts``: the tokens of each prompt; ``owners``: the prompt of each sequence, ascending; ``version``: the
        updates of the weights whose log-probs these are, if they are of this run.
        """
        #: Response tokens, [N] uint32.
        self.tokens = array("tokens", tokens, "<u4")
        #: Where each sequence begins, and the end of the last, [S + 1] int64.
        self.offsets = array("offsets", offsets, "<u4").astype(numpy.int64)
        #: Tokens of each prompt.
        self.prompts = [array("prompts", prompt, "<u4") for prompt in prompts]
        #: The prompt of each sequence: its group, [S] int64.
        self.groups = array("owners", owners, "<u4").astype(numpy.int64)
        #: Log-probability of each token when it was drawn, [N] float32; None of other sequences.
        self.logprobs = None if logprobs is None else array("logprobs", logprobs, "<f4")
        #: The temperature at which log-probs are taken.
        self.temperature = temperature
        #: Updates of the weights that drew them.
        self.version = version
        #: What they were held to, if not to the run file's form.
        self.schema: str | None = None
        #: The responses as text; empty of other sequences.
        self.texts: list[str] = []
        #: ``"eos"``, ``"stop"`` or ``"length"``.
        self.finish: list[str] = []
        #: Weighted sums of the run file's rewards, NaN where none gave a score, [S] float32; None if none graded them.
        self.rewards: numpy.ndarray | None = None
        #: The scores of each reward by its name, before its weight.
        self.reward_parts: dict[str, numpy.ndarray] = {}

    @classmethod
    def _drawn(cls, header: dict[str, Any], arrays: dict[str, numpy.ndarray]) -> Samples:
        ends = arrays["prompt_offsets"].astype(numpy.int64)
        prompts = [arrays["prompts"][start:end] for start, end in zip(ends, ends[1:])]
        owners = numpy.repeat(numpy.arange(len(prompts)), header["n"])
        samples = cls(
            arrays["tokens"],
            arrays["offsets"],
            prompts,
            owners,
            logprobs=arrays["logprobs"],
            temperature=header["temperature"],
            version=header["version"],
        )
        text, ends = arrays["texts"].tobytes(), arrays["text_offsets"]
        samples.texts = [text[start:end].decode("utf-8") for start, end in zip(ends, ends[1:])]
        samples.finish = [_FINISH[number] for number in arrays["finish"]]
        if header["rewards"]:
            samples.rewards = arrays["rewards"]
            parts = arrays["parts"].reshape(len(header["rewards"]), -1)
            samples.reward_parts = dict(zip(header["rewards"], parts))
        return samples

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> numpy.ndarray:
        """Returns the tokens of each sequence, [S]."""
        return numpy.diff(self.offsets)

    def spread(self, values: Any) -> numpy.ndarray:
        """Returns a number of each sequence for each of its tokens: [S] becomes [N]."""
        values = numpy.asarray(values)
        if values.shape != (len(self),):
            raise errors.usage("script-bad-array", f"{values.shape} numbers for {len(self)} sequences", "give one a sequence")
        return numpy.repeat(values, self.lengths)

    def sums(self, values: Any) -> numpy.ndarray:
        """Returns the sum of each sequence's tokens: [N] becomes [S], in float64."""
        return numpy.add.reduceat(numpy.asarray(values, numpy.float64), self.offsets[:-1])

    def __getitem__(self, which: Any) -> Samples:
        """Returns some of its sequences: a slice, a mask or ascending indices."""
        chosen = numpy.arange(len(self))[which]
        spans = [slice(self.offsets[s], self.offsets[s + 1]) for s in chosen]
        owners, groups = numpy.unique(self.groups[chosen], return_inverse=True)
        ends = numpy.concatenate([[0], numpy.cumsum(self.lengths[chosen])])

        def of(array: numpy.ndarray | None) -> numpy.ndarray | None:
            return None if array is None else numpy.concatenate([array[span] for span in spans] or [array[:0]])

        some = Samples(
            of(self.tokens),
            ends,
            [self.prompts[owner] for owner in owners],
            groups,
            logprobs=of(self.logprobs),
            temperature=self.temperature,
            version=self.version,
        )
        some.schema = self.schema
        some.texts = [self.texts[s] for s in chosen] if self.texts else []
        some.finish = [self.finish[s] for s in chosen] if self.finish else []
        some.rewards = None if self.rewards is None else self.rewards[chosen]
        some.reward_parts = {name: part[chosen] for name, part in self.reward_parts.items()}
        return some

    def __iter__(self) -> Iterator[numpy.ndarray]:
        """Yields the tokens of each sequence."""
        return (self.tokens[start:end] for start, end in zip(self.offsets, self.offsets[1:]))

    def __repr__(self) -> str:
        return f"<Samples: {len(self)} of {len(self.prompts)} prompts, {len(self.tokens)} tokens>"

    def _arrays(self) -> dict[str, numpy.ndarray]:
        ends = numpy.cumsum([0, *map(len, self.prompts)])
        return {
            "tokens": self.tokens,
            "offsets": self.offsets.astype("<u4"),
            "owners": self.groups.astype("<u4"),
            "prompts": numpy.concatenate(self.prompts) if self.prompts else self.tokens[:0],
            "prompt_offsets": ends.astype("<u4"),
        }
