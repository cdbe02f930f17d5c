"""Settings of a run as Python gives them, and as the command takes them: a run file and ``--set KEY=VALUE``."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import errors

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml(value) -> str:
    """Returns a value as inline TOML. Raises ``UsageError`` for one that TOML has no form for."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, os.PathLike):
        return toml(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    if hasattr(value, "__index__"):
        return str(value.__index__())
    if hasattr(value, "__float__"):
        number = float(value)
        if math.isfinite(number):
            return repr(number)
    raise errors.usage("bad-value", f"{value!r:.80} is a {type(value).__name__}, and a run file has no form for it")


def _key(key) -> str:
    if not isinstance(key, str):
        raise errors.usage("bad-value", f"{key!r:.80} is no name of a key: it is a {type(key).__name__}")
    return key if _BARE.fullmatch(key) else json.dumps(key)


def flat(keys: Mapping, before: str = "") -> dict[str, object]:
    """Returns nested settings as ``{"train.steps": 3}``; keys may have dots already. None leaves a key out."""
    found: dict[str, object] = {}
    for key, value in keys.items():
        if not isinstance(key, str):
            raise errors.usage("bad-value", f"{key!r:.80} is no name of a key: it is a {type(key).__name__}")
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            found.update(flat(value, f"{name}."))
        else:
            found[name] = value
    return found


def sets(keys: Mapping[str, object]) -> list[str]:
    """Returns flat settings as arguments of a command."""
    given = {key: value for key, value in keys.items() if value is not None}
    return [part for key, value in given.items() for part in ("--set", f"{key}={toml(_with_rows(key, value))}")]


def run_file(run, keys: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Returns the path of the run file, and the settings on top of it.

    ``run`` is a path, nested settings, or None where the settings are all there is. Settings without a file become one,
    in this user's temporary folder, by their content: a resumed run finds it again.
    """
    if isinstance(run, (str, os.PathLike)):
        return os.fspath(run), {key: value for key, value in keys.items() if value is not None}
    if run is not None and not isinstance(run, Mapping):
        raise errors.usage(
            "bad-value", f"a run is the path of a run file or a dict of its settings, not a {type(run).__name__}"
        )
    settings = {key: value for key, value in {**flat(run or {}), **keys}.items() if value is not None}
    if not settings:
        raise errors.usage("bad-value", "no run file and no settings", 'name a run file, such as "first.toml"')
    # The keys that a user names on top of a file win; here they are the file.
    later = {key: value for key, value in settings.items() if re.search(r"\.\d+\.", key)}
    lines = [f"{'.'.join(map(_key, key.split('.')))} = {toml(_with_rows(key, value))}\n" for key, value in settings.items() if key not in later]
    return str(kept("python.toml", "".join(lines).encode())), later


def _with_rows(key: str, value):
    """Writes rows where a key names data, and returns the file's path instead of them."""
    if key.split(".")[-1] in ("prompts", "pairs", "completions", "rows") or key.startswith("eval."):
        rows = rows_of(value)
        if rows is not None:
            return str(rows_file(rows))
    return value


def rows_of(value):
    """Returns a table as a list of dicts: a ``datasets.Dataset``, a ``pandas.DataFrame``, a list of dicts; else None."""
    if isinstance(value, (str, bytes, os.PathLike, Mapping)) or value is None:
        return None
    if hasattr(value, "to_list") and hasattr(value, "column_names"):
        return value.to_list()
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict("records")
    if isinstance(value, (list, tuple)) and value and all(isinstance(row, Mapping) for row in value):
        return list(value)
    return None


def json_lines(rows) -> str:
    """Returns rows as JSON lines. Raises ``UsageError`` for a value that JSON has no form for."""
    try:
        return "".join(json.dumps(row, ensure_ascii=False, default=_plain) + "\n" for row in rows)
    except (TypeError, ValueError) as error:
        raise errors.usage("data-bad-json", f"a row of the data cannot be written as JSON: {error}") from None


def rows_file(rows) -> Path:
    """Writes rows as JSON lines, by their content, and returns the path."""
    return kept("rows.jsonl", json_lines(rows).encode("utf-8", "backslashreplace"))


def _plain(value):
    """Returns a number or an array of numpy as JSON can carry it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__}: {value!r:.80}")


def kept(name: str, data: bytes) -> Path:
    """Writes a file for the command and returns its path, which follows from the content: a run that goes on finds it.

    It lies in a folder of the temporary folder that only this user can enter.
    """
    home = Path(tempfile.gettempdir()) / f"plimsoll-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    about = home.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise errors.usage("io-error", f"{home} is not a folder of this user alone", "remove it, or set TMPDIR")
    path = home / hashlib.sha256(data).hexdigest()[:16] / name
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    return path
