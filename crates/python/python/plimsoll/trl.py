"""TRL's trainers as a way in: their arguments become a run file, by what ``plimsoll import trl`` knows of them.

What has a counterpart is mapped, what would make another run is refused by its name, and ``notes`` says what was changed.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _program, _settings, errors
from ._relay import Relay, name_of
from .commands import Plan, plan
from .run import Run
from .training import of_function, train


class Trainer:
    """What TRL's trainers have in common: ``run_file`` is the text of the run file, ``train`` runs it."""

    #: The trainer's and the arguments' class in TRL.
    _trainer, _config = "", ""

    def __init__(
        self,
        model: Any,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        peft_config: Any = None,
        **others: Any,
    ) -> None:
        """Takes what TRL's trainer takes.

        Args:
            model: A name on the hub, a directory or ``"builtin:nano"``; not a module: the weights are loaded by the run.
            args: A dict of TRL's arguments, or TRL's own config object.
            train_dataset: A ``datasets.Dataset``, a list of dicts, a ``DataFrame``, or the path of a file.
            eval_dataset: The same.
            peft_config: A dict of ``LoraConfig``'s arguments, or the object.

        Raises ``PlimsollError`` where something has no counterpart.
        """
        self._functions: dict[str, Callable[..., Any]] = {}
        script = self._script(model, args, train_dataset, eval_dataset, peft_config, others)
        file = _settings.kept(f"{self._trainer}.py", script.encode("utf-8", "backslashreplace"))
        text = _program.output(["import", "trl", os.fspath(file)])
        for name in re.findall(r"left out: (\w+) = .*: this option is not known here", text):
            raise errors.usage("unknown-key", f"`{name}` is no argument of TRL's {self._config} that is known here", f"leave out {name}")
        head, _, rest = text.partition("\n# What is not as it was in ")
        #: The run file.
        self.run_file: str = head.replace(f"# Imported from TRL: {file}\n", "", 1).rstrip() + "\n"
        #: What was changed, left out or chosen.
        self.notes: list[str] = [
            line.removeprefix("#").strip() for line in rest.splitlines()[1:] if line.strip("# ") and "its file is loaded" not in line
        ]

    def plan(self, **options: Any) -> Plan:
        """Returns where its memory goes; options as ``plimsoll.plan`` has them."""
        return plan(self._path(), **{**self._stand_ins(Relay("")), **options})

    def train(self, **options: Any) -> Run:
        """Trains, and returns the run; options as ``plimsoll.train`` has them."""
        # The functions are offered by the run's own relay.
        return train(self._path(), _functions=self._stand_ins, **options)

    def _path(self) -> str:
        return str(_settings.kept(f"{self._trainer}.toml", self.run_file.encode()))

    def _stand_ins(self, relay: Relay) -> dict[str, object]:
        """Returns the settings by which the rewards of this process are found."""
        found: dict[str, object] = {}
        kinds = re.findall(r'^\[\[reward\]\][^\[]*?^kind = "(.*?)"', self.run_file, re.MULTILINE | re.DOTALL)
        for index, kind in enumerate(kinds):
            function = self._functions.get(kind.rpartition(":")[2])
            if kind.startswith("python:") and function is not None:
                found.update({f"reward.{index}.{key}": value for key, value in of_function(relay, function).items()})
        return found

    def _script(self, model: Any, args: Any, train_dataset: Any, eval_dataset: Any, peft_config: Any, others: dict) -> str:
        """Writes what TRL would run, for ``plimsoll import`` to read. It is never run."""
        if not isinstance(model, (str, os.PathLike)):
            raise errors.usage(
                "import-unreadable",
                f"model is a {type(model).__name__}: its weights are loaded by the run",
                "name it: a directory, a name on the hub, or a checkpoint",
            )
        given = {"model": os.fspath(model), **others}
        lines = ["from datasets import load_dataset", f"from trl import {self._config}, {self._trainer}", "from peft import LoraConfig"]
        for name in ("reward_funcs", "tools"):
            if name in given:
                given[name] = _Words(self._named(given[name], lines))
        for name, rows in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset)):
            if rows is not None:
                lines.append(f"{name} = {_dataset(rows)}")
                given[name] = _Words(name)
        settings = _given(args, ("output_dir",))
        lines.append(f"args = {self._config}({_arguments(settings)})")
        given["args"] = _Words("args")
        if peft_config is not None:
            lines.append(f"peft_config = LoraConfig({_arguments(_given(peft_config, ()))})")
            given["peft_config"] = _Words("peft_config")
        lines += [f"trainer = {self._trainer}({_arguments(given)})", "trainer.train()"]
        return "\n".join(lines) + "\n"

    def _named(self, functions: Any, lines: list[str]) -> str:
        words = []
        for function in functions if isinstance(functions, (list, tuple)) else [functions]:
            if callable(function):
                name = name_of(function)
                if name in self._functions:
                    raise errors.usage("bad-value", f"two functions are called `{name}`", "give one another name")
                self._functions[name] = function
                lines.append(f"def {name}(prompts, completions, **kwargs):\n    pass")
                words.append(name)
            else:
                words.append(repr(function))
        return f"[{', '.join(words)}]"


class GRPO(Trainer):
    """TRL's ``GRPOTrainer``: ``GRPO("Qwen/Qwen2.5-0.5B", reward_funcs=f, args={"num_generations": 8}, train_dataset=rows)``."""

    _trainer, _config = "GRPOTrainer", "GRPOConfig"

    def __init__(self, model: Any, reward_funcs: Any, args: Any = None, train_dataset: Any = None, **others: Any) -> None:
        super().__init__(model, args, train_dataset, reward_funcs=reward_funcs, **others)


class RLOO(Trainer):
    """TRL's ``RLOOTrainer``."""

    _trainer, _config = "RLOOTrainer", "RLOOConfig"

    def __init__(self, model: Any, reward_funcs: Any, args: Any = None, train_dataset: Any = None, **others: Any) -> None:
        super().__init__(model, args, train_dataset, reward_funcs=reward_funcs, **others)


class SFT(Trainer):
    """TRL's ``SFTTrainer``."""

    _trainer, _config = "SFTTrainer", "SFTConfig"


class DPO(Trainer):
    """TRL's ``DPOTrainer``."""

    _trainer, _config = "DPOTrainer", "DPOConfig"


class KTO(Trainer):
    """TRL's ``KTOTrainer``."""

    _trainer, _config = "KTOTrainer", "KTOConfig"


class _Words(str):
    """Words of a script, which stand there as they are."""


def _arguments(settings: Mapping[str, Any]) -> str:
    for name, value in settings.items():
        if not _is_plain(value):
            raise errors.usage(
                "import-unreadable",
                f"{name} is a {type(value).__name__}, and a run file has no form for it",
                f"leave out {name}; what takes its place is in the book's page on coming from TRL",
            )
    return ", ".join(f"{name}={value if isinstance(value, _Words) else repr(value)}" for name, value in settings.items())


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def _given(args: Any, always: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments that a dict or a config object was given: those that are not its class's own values."""
    if args is None:
        return {}
    if isinstance(args, Mapping):
        return dict(args)
    if not dataclasses.is_dataclass(args) or isinstance(args, type):
        raise errors.usage("import-unreadable", f"the arguments are a {type(args).__name__}, not a dict or a config of TRL")
    names = [field.name for field in dataclasses.fields(args) if field.init]
    required = {name: getattr(args, name) for name in always if name in names}
    plain = type(args)(**required)
    given = {name: _value(getattr(args, name)) for name in names if getattr(args, name) != getattr(plain, name, None)}
    return {**{name: _value(value) for name, value in required.items()}, **given}


def _value(value: Any) -> Any:
    """An enumeration's value, a set as a list, and what else is plain as it is."""
    if hasattr(value, "value") and type(value).__module__ != "builtins":
        return value.value
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def _dataset(rows: Any) -> str:
    table = _settings.rows_of(rows)
    place = str(_settings.rows_file(table)) if table is not None else rows
    if not isinstance(place, (str, os.PathLike)):
        raise errors.usage("import-unreadable", f"a dataset is a {type(rows).__name__}", "give a Dataset, a list of dicts, or a path")
    kind = "parquet" if str(place).endswith(".parquet") else "json"
    return f"load_dataset({kind!r}, data_files={os.fspath(place)!r}, split='train')"
