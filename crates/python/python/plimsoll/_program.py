"""Finds and runs the command ``plimsoll``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig

from . import errors


def program() -> str:
    """Returns the command's path: PLIMSOLL_PROGRAM, the one that was installed with this package, or one in PATH.

    Raises ``PlimsollError`` where there is none.
    """
    named = os.environ.get("PLIMSOLL_PROGRAM")
    place = named or os.path.join(sysconfig.get_path("scripts"), "plimsoll")
    found = place if os.access(place, os.X_OK) else None if named else shutil.which("plimsoll")
    if found is None:
        raise errors.usage(
            "file-missing",
            f"the command plimsoll is not there: {named or 'not next to this interpreter and not in PATH'}",
            "pip install the wheel of a release, or set PLIMSOLL_PROGRAM to the program that `cargo build --release` made",
        )
    return found


def environment() -> dict[str, str]:
    """Returns the environment of a command: its words are read here, so they have no colours."""
    return {**os.environ, "NO_COLOR": "1"}


def output(arguments: list[str], text: str | None = None, exits: tuple[int, ...] = (0,), **variables: str) -> str:
    """Runs a command to its end, with further variables of its environment, and returns its standard output.

    Raises the error that it named.
    """
    done = subprocess.run(
        [program(), *arguments],
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**environment(), **variables},
    )
    if done.returncode not in exits:
        raise errors.read(done.returncode, done.stderr.splitlines())
    warn(done.stderr)
    return done.stdout


def warn(text: str) -> None:
    """Shows what a command warned of."""
    shown = False
    for line in text.splitlines():
        shown = line.startswith("warning[") or (shown and line.startswith(("  ", "hint: ")))
        if shown:
            print(line, file=sys.stderr)


def as_json(arguments: list[str], text: str | None = None, exits: tuple[int, ...] = (0,)):
    """Runs a command with ``--json`` and returns the value that it printed."""
    return json.loads(output([*arguments, "--json"], text, exits))
