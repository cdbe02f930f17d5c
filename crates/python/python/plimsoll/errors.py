"""The named errors of Plimsoll as exceptions.

The class says what kind of end it was, as the exit code of the command does; ``slug`` is the name.
"""

from __future__ import annotations


class PlimsollError(RuntimeError):
    """A named error: ``slug``, ``message``, ``facts`` with the numbers, ``hints``, ``exit_code``.

    ``plimsoll.explain(error.slug)`` returns its page.
    """

    def __init__(
        self,
        message: str,
        *,
        slug: str = "internal",
        facts: list[str] | None = None,
        hints: list[str] | None = None,
        exit_code: int = 1,
    ) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.facts = list(facts or [])
        self.hints = list(hints or [])
        self.exit_code = exit_code

    def __str__(self) -> str:
        lines = [f"[{self.slug}] {self.message}", *(f"  {fact}" for fact in self.facts)]
        return "\n".join([*lines, *(f"hint: {hint}" for hint in self.hints)])

    def __reduce__(self):
        return _again, (type(self), self.message, self.slug, self.facts, self.hints, self.exit_code)


def _again(kind, message, slug, facts, hints, exit_code):
    return kind(message, slug=slug, facts=facts, hints=hints, exit_code=exit_code)


class UsageError(PlimsollError):
    """A key, a value or a file of the run is not right: nothing was started."""


class PlanDoesNotFit(PlimsollError):
    """The run needs more memory than there is. ``facts`` has the pools, ``hints`` the settings that do fit."""


class TrainerKilled(PlimsollError):
    """The trainer was killed, by the kernel or by somebody. What was saved resumes."""


class RankLost(PlimsollError):
    """Another rank ended the run."""


class Interrupted(PlimsollError):
    """A signal ended the run after a step; it is saved and resumes."""


class CallbackError(PlimsollError):
    """A callback returned something that means nothing. The run is saved and resumes."""


_BY_EXIT_CODE = {
    2: UsageError,
    3: PlanDoesNotFit,
    4: TrainerKilled,
    5: RankLost,
    130: Interrupted,
    143: Interrupted,
}


def usage(slug: str, message: str, *hints: str) -> UsageError:
    """Returns an error of this package's own arguments."""
    return UsageError(message, slug=slug, hints=list(hints), exit_code=2)


def read(exit_code: int, lines: list[str]) -> PlimsollError:
    """Returns the error that a command printed last among its lines: ``error[slug]: ...``, facts, hints."""
    starts = [index for index, line in enumerate(lines) if line.startswith("error[") and "]: " in line]
    kind = _BY_EXIT_CODE.get(exit_code, PlimsollError)
    if not starts:
        ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        said = "; ".join(line.strip() for line in lines[-3:])
        return kind(f"plimsoll ended with {ended} and named no error{': ' if said else ''}{said}", exit_code=exit_code)
    head, *rest = lines[starts[-1] :]
    slug, _, message = head.removeprefix("error[").partition("]: ")
    facts: list[str] = []
    hints: list[str] = []
    for line in rest:
        if line.startswith("hint: "):
            hints.append(line.removeprefix("hint: "))
        elif hints:
            break  # What follows is not of the error.
        elif line.startswith("  "):
            facts.append(line[2:])
        elif facts:
            facts[-1] += "\n" + line
        else:
            message += "\n" + line
    return kind(message, slug=slug, facts=facts, hints=hints, exit_code=exit_code)
