"""Functions and classes of this process as rewards, estimators and environments of a run.

The run starts workers as for any file in Python. A worker's file stands in for the function: it sends each call here over
a socket that only this user can reach, and here a thread makes it. So a function may use what its notebook has.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import os
import pickle
import socket
import struct
import sys
import threading
import traceback
import types
import typing
from pathlib import Path

from . import errors
from ._settings import kept

#: Longest request of a worker, in bytes.
_REQUEST_BYTES_MAX = 1 << 31

_WORKER = Path(__file__).with_name("_relay_worker.py")


class Relay:
    """Serves functions and classes to the workers of a run, from ``start`` to ``close``."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "functions")
        self.things: dict[str, object] = {}
        #: What a function raised last.
        self.raised: BaseException | None = None
        self._objects: dict[int, object] = {}
        self._num_objects = 0
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None

    def function(self, function) -> str:
        """Returns ``python:FILE:NAME`` for a function of this process."""
        name = name_of(function)
        about = _described(function, name)
        return self._offer(function, name, about)

    def environment(self, made) -> str:
        """Returns ``python:FILE:NAME`` for a class of this process, or a function that makes objects."""
        name = name_of(made)
        try:
            first = made()
        except Exception as error:
            raise errors.usage("text-environment-missing", f"`{name}()` raised {error!r}") from error
        public = [one for one in dir(type(first)) if not one.startswith("_")]
        methods = {
            one: _described(getattr(type(first), one), one) for one in public if inspect.isfunction(getattr(type(first), one))
        }
        spaces = ("action_space", "observation_space")
        about = {
            "name": name,
            "methods": methods,
            "values": {space: getattr(first, space) for space in spaces if hasattr(first, space)},
            "has_reward": hasattr(first, "reward") and "reward" not in methods,
        }
        close = getattr(first, "close", None)
        if callable(close):
            close()
        return self._offer(made, name, about)

    def _offer(self, thing, name: str, about: dict) -> str:
        # A run goes on with the function that it began with: another has another file. The name counts too: functions
        # that one line makes are told apart by nothing else.
        key = hashlib.sha256(f"{name}\n{_source(thing)}".encode("utf-8", "backslashreplace")).hexdigest()
        text = base64.b64encode(pickle.dumps({**about, "key": key}, protocol=4)).decode()
        file = kept(f"{name}.py", _WORKER.read_bytes() + f'{name} = _standing_in("{text}")\n'.encode())
        self.things[key] = thing
        return f"python:{file}:{name}"

    def start(self) -> None:
        """Listens for workers."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True, name="plimsoll-functions").start()

    def close(self) -> None:
        """Ends listening. Workers end with their run."""
        if self._listener is not None:
            # Closing it alone would leave the thread that accepts waiting for ever.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True, name="plimsoll-function").start()

    def _serve(self, link: socket.socket) -> None:
        with link, link.makefile("rwb") as file:
            try:
                while len(head := file.read(8)) == 8:
                    (length,) = struct.unpack("<Q", head)
                    if length > _REQUEST_BYTES_MAX:
                        return
                    reply = self._reply(json.loads(file.read(length)))
                    file.write(struct.pack("<Q", len(reply)) + reply)
                    file.flush()
            except (OSError, ValueError, RecursionError):
                pass  # The worker was ended, and its run says why; or it is none.

    def _reply(self, request) -> bytes:
        logged: list[tuple[str, tuple]] = []
        try:
            result = self._answer(request, logged)
            return pickle.dumps(("ok", result, logged), protocol=5)
        except Exception as error:
            self.raised = error
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
            return pickle.dumps(("raised", (_sendable(error), text), logged), protocol=5)

    def _answer(self, request, logged):
        match request:
            case {"call": key, "arguments": arguments, "keywords": keywords, "back": back}:
                keywords = {name: _unpacked(value) for name, value in keywords.items()}
                for name in back:
                    keywords[name] = lambda *given, name=name: logged.append((name, given))
                if isinstance(key, list):
                    with self._lock:
                        made = self._objects[key[0]]
                    if key[1].startswith("_"):
                        raise ValueError(f"`{key[1]}` is no public method")
                    called = getattr(made, key[1])
                else:
                    called = self.things[key]
                return _settled(called(*map(_unpacked, arguments), **keywords))
            case {"new": key, "dropped": dropped}:
                made = self.things[key]()
                with self._lock:
                    for number in dropped:
                        self._objects.pop(number, None)
                    self._num_objects += 1
                    self._objects[self._num_objects] = made
                    return self._num_objects
            case {"get": number, "name": "reward"}:
                with self._lock:
                    made = self._objects[number]
                return made.reward
        raise ValueError(f"an unknown request: {request!r:.80}")


def _unpacked(value):
    """The argument that a worker has packed."""
    match value:
        case ["json", plain]:
            return plain
        case ["state", fields]:
            return types.SimpleNamespace(**fields)
        case ["array", dtype, shape, text]:
            import numpy

            return numpy.frombuffer(base64.b64decode(text), dtype=dtype).reshape(shape).copy()
    raise ValueError(f"an unknown argument: {value!r:.80}")


def name_of(function) -> str:
    """Returns the name by which a function or class goes in metrics: its own, or that of its type."""
    name = getattr(function, "__name__", None) or type(function).__name__
    if name == "<lambda>":
        return "reward"
    return name if name.isidentifier() else "reward"


def _described(function, name: str) -> dict:
    """What a worker needs to know of a function: its parameters, docstring and type hints."""
    if not callable(function):
        raise errors.usage("bad-value", f"{function!r:.80} is a {type(function).__name__}, not a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise errors.usage("reward-function-signature", f"the parameters of `{name}` cannot be read: {error}") from None
    try:
        hints = typing.get_type_hints(function)
        pickle.dumps(hints)
    except Exception:
        hints = {}  # Types of the notebook itself: the worker does not have them.
    kinds = [(one.name, int(one.kind), one.default is not one.empty) for one in parameters]
    return {"name": name, "parameters": kinds, "doc": inspect.getdoc(function), "hints": hints}


def _source(thing) -> str:
    """What tells a function from another of its name: its source, or its code where there is none."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        return repr(_content(code)) if code else f"{type(thing)!r}"


def _content(value):
    """What code does, without where it is: its instructions, names and constants, those of functions within it too."""
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_varnames, [_content(one) for one in value.co_consts]
    # The order of a set is another in every process.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _settled(result):
    if not inspect.isawaitable(result):
        return result

    async def wait():
        return await result

    return asyncio.run(wait())


def _sendable(error: Exception) -> Exception:
    """The exception, or one with its name and words where the worker could not read it."""
    try:
        if type(error).__module__ == "builtins" and isinstance(pickle.loads(pickle.dumps(error)), Exception):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__qualname__}: {error}")


def needs_interpreter() -> str:
    """Returns this interpreter, which the workers run."""
    return sys.executable or "python3"
