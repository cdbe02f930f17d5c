"""Takes the place of a function or a class of the Python process that started this run; a call goes there over a socket.

This file is written by the package plimsoll, with what it replaces in the last line.
"""

import base64
import inspect
import json
import os
import pickle
import socket
import struct
import threading
import types


class _Told(Exception):
    """The traceback of the other process."""

    def __init__(self, text):
        super().__init__(text)
        self.text = text

    def __str__(self):
        return "\n" + self.text


class _Link:
    def __init__(self):
        self.lock = threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["PLIMSOLL_FUNCTIONS"])
        self.file = self.socket.makefile("rwb")

    def ask(self, **request):
        """Sends a request and returns the result; raises what was raised there.

        A request is JSON, which runs nothing where it is read; a reply comes from the user's own process.
        """
        data = json.dumps(request).encode()
        with self.lock:
            self.file.write(struct.pack("<Q", len(data)) + data)
            self.file.flush()
            head = self.file.read(8)
            if len(head) < 8:
                raise ConnectionError("the Python process that has this function has ended")
            kind, result, logged = pickle.loads(self.file.read(struct.unpack("<Q", head)[0]))
        if kind == "raised":
            error, text = result
            raise error from _Told(text)
        return result, logged


_LINK = None


def _link():
    global _LINK
    if _LINK is None:
        _LINK = _Link()
    return _LINK


def _packed(value):
    """An argument with its kind: an array of numpy, the state of a trainer, or what JSON has a form for."""
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return ["array", value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]
    if isinstance(value, types.SimpleNamespace):
        return ["state", vars(value)]
    return ["json", value]


def _call(key, arguments, keywords):
    # What is called back cannot be sent: the other side keeps what it was given, and it is given here.
    back = {name: keywords.pop(name) for name in ("log_metric", "log_extra") if name in keywords}
    packed = {name: _packed(value) for name, value in keywords.items()}
    result, logged = _link().ask(call=key, arguments=list(map(_packed, arguments)), keywords=packed, back=list(back))
    for name, given in logged:
        if back.get(name):
            back[name](*given)
    return result


def _signature(parameters):
    made = []
    for name, kind, has_default in parameters:
        default = None if has_default else inspect.Parameter.empty
        made.append(inspect.Parameter(name, inspect._ParameterKind(kind), default=default))
    return inspect.Signature(made)


def _function(about, key=None):
    def stand_in(*arguments, **keywords):
        return _call(about["key"] if key is None else key(arguments), arguments if key is None else arguments[1:], keywords)

    stand_in.__name__ = stand_in.__qualname__ = about["name"]
    stand_in.__doc__ = about["doc"]
    stand_in.__signature__ = _signature(about["parameters"])
    stand_in.__annotations__ = about["hints"]
    return stand_in


def _class(about):
    """Returns a class with the methods of the other; an object of it takes the place of one there."""
    members = {
        name: _function(method, lambda arguments, name=name: (arguments[0]._number, name))
        for name, method in about["methods"].items()
    }

    # Objects that are gone here, for the next request: one may go while a request is under way.
    gone = []

    def init(self):
        dropped, gone[:] = gone[:], []
        self._number, _ = _link().ask(new=about["key"], dropped=dropped)
        self.__dict__.update(about["values"])

    def drop(self):
        gone.append(self.__dict__.get("_number"))

    members["__init__"] = init
    members["__del__"] = drop
    if about["has_reward"]:
        members["reward"] = property(lambda self: _link().ask(get=self._number, name="reward")[0])
    return type(about["name"], (), members)


def _standing_in(text):
    about = pickle.loads(base64.b64decode(text))
    return _class(about) if "methods" in about else _function(about)


