"""Runs ``plimsoll train`` for Python: events come over a socket, a step waits for the answer of callbacks."""

from __future__ import annotations

import collections
import contextlib
import inspect
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import _settings, errors
from ._program import environment, program
from ._relay import Relay
from .run import Run, Step

#: Lines of the command that are kept to read its error from.
_LINES_MAX = 1000
_FUNCTION_RAISED = (
    "reward-function-raised",
    "advantage-function-raised",
    "text-environment-raised",
)


class Driver:
    """One run, from its start to its end, over as many processes as it takes."""

    def __init__(self, file: str, keys: dict[str, object], options: list[str], callbacks: Sequence[Any], quiet: bool) -> None:
        self.file, self.keys, self.options, self.quiet = file, keys, options, quiet
        self.callbacks = callbacks
        self.run: Run | None = None
        self.is_streamed = False
        self._folder = tempfile.mkdtemp(prefix="plimsoll-")
        self.relay = Relay(self._folder)
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES_MAX)
        self._wish = "go"
        self._changes: dict[str, object] = {}
        self._step: int | None = None
        self._raised: BaseException | None = None
        self._dir: str | None = None
        self._is_in_callback = False

    # What a step may ask.

    def is_at(self, step: int) -> bool:
        """True while the run waits after this step."""
        return self._step == step

    def stop(self) -> None:
        self._wish = "stop"

    def save(self) -> None:
        if self._wish == "go":
            self._wish = "save"

    def change(self, keys: dict[str, object]) -> None:
        self._changes.update(_settings.flat(keys))
        self._wish = "stop"

    # The run.

    def steps(self) -> Iterator[Step]:
        """Runs it to its end, and yields each step while the run waits. Raises its error."""
        try:
            self.relay.start()
            while True:
                self._start()
                yield from self._until_end()
                if not self._goes_on():
                    break
            self._tell("on_end", self.run)
        except GeneratorExit:
            # The loop was left: the run is saved and ends.
            self._wish = "stop"
            self._finish()
            raise
        except BaseException as error:
            self._kill()
            raise error
        finally:
            self.relay.close()
            if self._listener is not None:
                self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        path = os.path.join(self._folder, "callback")
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen(1)
        arguments = [program(), "train", self.file, *_settings.sets(self.keys), *self.options, "--callback", path]
        self._lines.clear()
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**environment(), "PLIMSOLL_FUNCTIONS": self.relay.path},
        )
        self._reader = threading.Thread(target=self._read_lines, args=(self._process,), daemon=True, name="plimsoll-lines")
        self._reader.start()

    def _read_lines(self, process: subprocess.Popen[str]) -> None:
        with process.stderr as lines:
            self._read(lines)

    def _read(self, lines: Iterable[str]) -> None:
        in_error = False
        for line in lines:
            self._lines.append(line.rstrip("\n"))
            # An error is raised here; shown once.
            in_error = in_error or line.startswith("error[")
            is_warning = line.startswith("warning[")
            if not in_error and (not self.quiet or is_warning):
                show(line)

    def _until_end(self) -> Iterator[Step]:
        """Yields the steps of one process, until it has ended."""
        link = self._accepted()
        if link is None:
            return
        with link:
            for event in self._events(link):
                if event["event"] == "started":
                    self._open(event["dir"])
                elif event["event"] == "step":
                    yield from self._at_step(link, event)
                else:
                    self._tell(f"on_{event['event']}", event)

    def _accepted(self) -> socket.socket | None:
        """Waits for the run to connect; None if it ended before."""
        ended = os.pidfd_open(self._process.pid)
        try:
            while True:
                try:
                    ready, _, _ = select.select([self._listener, ended], [], [])
                except KeyboardInterrupt as error:
                    self._interrupt(error)
                    continue
                return self._listener.accept()[0] if self._listener in ready else None
        finally:
            os.close(ended)

    def _events(self, link: socket.socket) -> Iterator[dict[str, Any]]:
        rest = b""
        while True:
            try:
                data = link.recv(1 << 16)
            except ConnectionError:
                return
            except KeyboardInterrupt as error:
                self._interrupt(error)
                continue
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _at_step(self, link: socket.socket, event: dict[str, Any]) -> Iterator[Step]:
        if self.run is None:
            self._open(self._dir or ".")
        self._wish = "stop" if self._raised else "go"
        self._step = event["step"]
        step = Step(event, self.run, self)
        try:
            self._tell("on_step", step)
            if self.is_streamed:
                yield step
        except KeyboardInterrupt as error:
            self._interrupt(error)
        finally:
            self._step = None
            self._answer(link)

    def _answer(self, link: socket.socket) -> None:
        try:
            link.sendall(json.dumps({"do": self._wish}).encode() + b"\n")
        except OSError:
            pass  # The run has ended; its error says why.
        except KeyboardInterrupt as error:
            # Whether the line is sent is not known. A second one changes nothing: the run ends after this step.
            self._interrupt(error)
            self._answer(link)

    def _open(self, directory: str) -> None:
        self._dir = directory
        if self.run is None and os.path.isfile(os.path.join(directory, "events.jsonl")):
            self.run = Run(directory)
            self.run._again = self._resumed
            self._tell("on_start", self.run)

    def _tell(self, name: str, argument: Any) -> None:
        """Calls the callbacks. What one raises stops the run, and is raised when that is saved."""
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            if method is None and name == "on_step" and callable(callback):
                method = callback
            if method is None or self._raised is not None:
                continue
            try:
                self._is_in_callback = True
                try:
                    answer = method(argument)
                finally:
                    self._is_in_callback = False
                if inspect.isawaitable(answer) or answer not in (None, "stop", "save"):
                    shown = f"{answer!r:.80}"
                    raise errors.CallbackError(
                        f"the callback `{_name(callback)}` returned {shown}",
                        slug="callback-failed",
                        hints=['return None, "save" or "stop"'],
                    )
                if name == "on_step" and answer is not None:
                    {"stop": self.stop, "save": self.save}[answer]()
            except KeyboardInterrupt as error:
                self._interrupt(error)
            except Exception as error:
                self._raised = error
                self._wish = "stop"

    # Its end.

    def _interrupt(self, error: KeyboardInterrupt) -> None:
        """Asks the run to save and end; a second time ends it at once."""
        if isinstance(self._raised, KeyboardInterrupt):
            self._kill()
            raise error
        self._raised = error
        self._wish = "stop"
        show("stopping: this step is finished and saved, then the run ends; interrupt again to end it at once\n")
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def _wait(self) -> int:
        while True:
            try:
                code = self._process.wait()
                self._reader.join()
                return code
            except KeyboardInterrupt as error:
                self._interrupt(error)

    def _goes_on(self) -> bool:
        """Waits for the process. Returns true if the run is to go on with other settings. Raises its error."""
        code = self._wait()
        error = None if code == 0 else errors.read(code, list(self._lines))
        is_asked = self._wish == "stop" and isinstance(error, errors.Interrupted)
        where = f"the run is saved in {self._dir} and resumes" if isinstance(error, errors.Interrupted) else None
        if self._raised is not None:
            raised = self._raised
            if isinstance(raised, KeyboardInterrupt):
                raise KeyboardInterrupt(where or str(error or "the run had ended")) from error
            if hasattr(raised, "add_note") and where:
                raised.add_note(where)
            raise raised
        if is_asked and self._changes:
            self.keys = {**self.keys, **self._changes}
            self._changes = {}
            self.options = _resuming(self.options)
            return True
        if is_asked:
            self.run.stopped = True
            return False
        if error is not None:
            raise error from (self.relay.raised if error.slug in _FUNCTION_RAISED else None)
        return False

    def _finish(self) -> None:
        """Lets the run save and end, after the loop over its steps was left."""
        code = self._wait()
        if self.run is not None:
            self.run.stopped = code != 0

    def _kill(self) -> None:
        """Ends what is still running, after something went wrong here."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _resumed(self, keys: dict[str, object]) -> Run:
        again = Driver(self.file, {**self.keys, **_settings.flat(keys)}, _resuming(self.options), self.callbacks, self.quiet)
        again.relay.things = self.relay.things
        return again.to_end()

    def to_end(self) -> Run:
        """Runs it to its end and returns it. Raises its error."""
        with self._interrupts():
            for _ in self.steps():
                pass
        return self.run

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Takes SIGINT as the wish to save and end, wherever this package is at that moment; within a callback, and a
        second time, it interrupts as ever."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, frame: Any) -> None:
            if self._is_in_callback or isinstance(self._raised, KeyboardInterrupt):
                raise KeyboardInterrupt
            self._interrupt(KeyboardInterrupt())

        before = signal.signal(signal.SIGINT, asked)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


class Stream:
    """The steps of a run as they are made. The run waits after each until the next is asked for.

    Leaving the loop stops the run with a checkpoint.
    """

    def __init__(self, driver: Driver) -> None:
        driver.is_streamed = True
        self._driver = driver
        self._steps = driver.steps()

    @property
    def run(self) -> Run | None:
        """Returns the run, once it has begun."""
        return self._driver.run

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Step:
        return next(self._steps)

    def close(self) -> None:
        """Stops the run with a checkpoint, if it is under way."""
        self._steps.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resuming(options: list[str]) -> list[str]:
    return [*(option for option in options if option not in ("--overwrite", "--resume")), "--resume"]


def _name(callback: Callable[..., Any]) -> str:
    return getattr(callback, "__name__", None) or type(callback).__name__


def show(line: str) -> None:
    """Shows a line of a run: in a notebook as output of its cell, else on standard error."""
    in_notebook = "ipykernel" in sys.modules
    (sys.stdout if in_notebook else sys.stderr).write(line)
