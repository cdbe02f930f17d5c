"""A run that a script leads: its process, and the frames between the two.

A frame is the length of its header, the header as JSON, which names the arrays, and their numbers. Numbers never pass
through JSON.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import numpy

from . import errors
from ._driver import show
from ._program import environment, program
from ._relay import Relay

#: Lines of the command that are kept to read its error from.
_LINES_MAX = 1000
#: Longest header of an answer, in bytes.
_HEADER_BYTES_MAX = 1 << 26


class Link:
    """The process of a run, and the socket on which it waits for its script."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._folder = tempfile.mkdtemp(prefix="plimsoll-")
        self.relay = Relay(self._folder)
        self._process: subprocess.Popen[str] | None = None
        self._socket: socket.socket | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES_MAX)

    def start(self, arguments: list[str]) -> None:
        """Starts ``plimsoll`` and waits until it has connected. Raises the error that it named."""
        self.relay.start()
        path = os.path.join(self._folder, "script")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            self._process = subprocess.Popen(
                [program(), *arguments, "--script", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env={**environment(), "PLIMSOLL_FUNCTIONS": self.relay.path},
            )
            self._reader = threading.Thread(target=self._read_lines, daemon=True, name="plimsoll-lines")
            self._reader.start()
            ended = os.pidfd_open(self._process.pid)
            try:
                ready, _, _ = select.select([listener, ended], [], [])
                if listener not in ready:
                    raise self._error()
                self._socket = listener.accept()[0]
            finally:
                os.close(ended)

    def _read_lines(self) -> None:
        in_error = False
        with self._process.stderr as lines:
            for line in lines:
                self._lines.append(line.rstrip("\n"))
                in_error = in_error or line.startswith("error[")
                if not in_error and (not self._quiet or line.startswith("warning[")):
                    show(line)

    def ask(self, verb: str, arrays: Mapping[str, numpy.ndarray] | None = None, **words: Any) -> tuple[dict, dict[str, numpy.ndarray]]:
        """Sends a request and returns the answer. Raises what the run refused it with, or how the run ended."""
        self.send({"verb": verb, **{name: value for name, value in words.items() if value is not None}}, arrays or {})
        return self.answer()

    def send(self, header: dict[str, Any], arrays: Mapping[str, numpy.ndarray]) -> None:
        if self._socket is None:
            raise errors.usage("script-ended", "the session is closed", "open it again: plimsoll.Session(..., resume=True)")
        named = [[name, array.dtype.str, int(array.size)] for name, array in arrays.items()]
        try:
            text = json.dumps({**header, "arrays": named}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            given = {name: value for name, value in header.items() if value is not None}
            raise errors.usage("script-bad-request", f"{given!r:.200}: {error}", "give finite numbers") from error
        try:
            self._socket.sendall(struct.pack("<I", len(text)) + text)
            for array in arrays.values():
                if array.size:
                    self._socket.sendall(memoryview(numpy.ascontiguousarray(array)).cast("B"))
        except (BrokenPipeError, ConnectionError):
            raise self._error() from None

    def answer(self) -> tuple[dict, dict[str, numpy.ndarray]]:
        (length,) = struct.unpack("<I", self._take(4))
        if length > _HEADER_BYTES_MAX:
            raise errors.usage("script-bad-frame", f"an answer with a header of {length} bytes")
        header = json.loads(self._take(length))
        arrays = {}
        for name, dtype, count in header.pop("arrays", []):
            kind = numpy.dtype(dtype)
            arrays[name] = numpy.frombuffer(self._take(count * kind.itemsize), kind)
        if "error" in header:
            raise refused(header["error"])
        return header, arrays

    def _take(self, count: int) -> bytearray:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                read = self._socket.recv_into(view[at:]) if self._socket else 0
            except ConnectionError:
                read = 0
            if read == 0:
                raise self._error()
            at += read
        return data

    def _error(self) -> errors.PlimsollError:
        """Returns how the run ended, which it did."""
        code = self.wait()
        error = errors.read(code, list(self._lines)) if code else None
        self.close()
        if error is None:
            return errors.usage("script-ended", "the run has made its last step", "session.done says so")
        error.__cause__ = self.relay.raised if error.slug.endswith("-function-raised") else None
        return error

    def wait(self) -> int:
        """Closes the socket, waits for the process, and returns its exit code."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        code = self._process.wait()
        self._reader.join()
        return code

    def ended(self) -> errors.PlimsollError | None:
        """Waits for the end of the run, and returns its error."""
        code = self.wait()
        return errors.read(code, list(self._lines)) if code else None

    def close(self) -> None:
        """Ends what is left of it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None and self._process.poll() is None:
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        with contextlib.suppress(OSError):
            self.relay.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def refused(about: dict[str, Any]) -> errors.PlimsollError:
    """Returns what a run refused a request with; it goes on."""
    return errors.UsageError(
        about["message"], slug=about["slug"], facts=about["facts"], hints=about["hints"], exit_code=2
    )


def array(name: str, given: Any, dtype: str) -> numpy.ndarray:
    """Returns an array of numpy, or of another library by DLPack, flat and of this dtype. Raises ``UsageError``."""
    try:
        if isinstance(given, (numpy.ndarray, list, tuple)) or not hasattr(given, "__dlpack__"):
            numbers = numpy.asarray(given)
        else:
            numbers = numpy.from_dlpack(given)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise errors.usage("script-bad-array", f"{name}: {error}", "give a flat array of numbers in host memory") from error
    wants = numpy.dtype(dtype)
    kinds = "fiub" if wants.kind == "f" else "iub"
    if numbers.dtype.kind not in kinds or numbers.ndim != 1:
        raise errors.usage(
            "script-bad-array",
            f"{name} is {numbers.ndim}-dimensional of {numbers.dtype}",
            f"give a flat array of {'real numbers' if wants.kind == 'f' else 'integers'}",
        )
    if wants.kind == "u" and numbers.size and (numbers.min() < 0 or numbers.max() > numpy.iinfo(wants).max):
        raise errors.usage("script-bad-array", f"{name} has {numbers.min()} to {numbers.max()}", "give numbers that are not negative")
    with numpy.errstate(over="ignore"):
        return numpy.ascontiguousarray(numbers, wants)
