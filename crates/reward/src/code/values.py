"""How two processes, one with a program and one with its tests, show each other values: as JSON, never as code.

A value of a built-in type is copied. Anything else stays where it is and is named by a number. What arrives from the
other side becomes a value of a built-in type, or a stand-in, so nothing of the other side ever runs here.
"""
import collections
import datetime
import decimal
import fractions
import json
import os

# Classes whose values are copied, apart from those of JSON: how they are written, and how they are read.
COPIED = {
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "deque": (collections.deque, list, collections.deque),
    "range": (range, lambda v: [v.start, v.stop, v.step], lambda v: range(*v)),
    "complex": (complex, lambda v: [v.real, v.imag], lambda v: complex(*v)),
    "bytes": (bytes, lambda v: v.hex(), bytes.fromhex),
    "bytearray": (bytearray, lambda v: v.hex(), bytearray.fromhex),
    "Fraction": (fractions.Fraction, lambda v: [v.numerator, v.denominator], lambda v: fractions.Fraction(*v)),
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "date": (datetime.date, str, datetime.date.fromisoformat),
    "time": (datetime.time, str, datetime.time.fromisoformat),
    "datetime": (datetime.datetime, str, datetime.datetime.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: datetime.timedelta(*v),
    ),
}
NAMES = {entry[0]: name for name, entry in COPIED.items()}
# Of these, an instance of a class of the program's own is copied as well, and keeps its attributes where it is.
BASES = (tuple, list, dict, str, int, float, set)
# Larger integers are written in hexadecimal, which has no limit on digits.
INTEGER_MAX = 1 << 63


def written(value, name):
    """`value` as JSON has it; `name` makes the name of one that is not copied."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -INTEGER_MAX < value < INTEGER_MAX else {"t": "int", "v": hex(value)}
    if kind is list:
        return [written(part, name) for part in value]
    if kind is dict:
        return {"t": "dict", "v": [[written(k, name), written(v, name)] for k, v in value.items()]}
    if kind in NAMES:
        tag = NAMES[kind]
        parts = COPIED[tag][1](value)
        return {"t": tag, "v": [written(part, name) for part in parts] if isinstance(parts, list) else parts}
    for base in BASES:
        if isinstance(value, base):
            copy = dict(dict.items(value)) if base is dict else base(value)
            return {"t": "sub", "v": written(copy, name), "o": name(value)}
    return name(value)


def read(data, named, sub):
    """The value that JSON has; `named` finds what a name means, and `sub` makes a copy with attributes elsewhere."""
    if isinstance(data, list):
        return [read(part, named, sub) for part in data]
    if not isinstance(data, dict):
        return data
    tag, value = data.get("t"), data.get("v")
    if tag == "int":
        return int(value, 16)
    if tag == "dict":
        return {read(k, named, sub): read(v, named, sub) for k, v in value}
    if tag == "sub":
        return sub(read(value, named, sub), data["o"])
    if tag in COPIED:
        return COPIED[tag][2]([read(part, named, sub) for part in value] if isinstance(value, list) else value)
    return named(data)


class Lines:
    """Whole lines of JSON over two descriptors."""

    def __init__(self, source, target):
        self.source, self.target, self.rest = source, target, b""

    def take(self):
        """The next message, or None at the end."""
        while b"\n" not in self.rest:
            piece = os.read(self.source, 1 << 16)
            if not piece:
                return None
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def give(self, message):
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self.target, line) :]


def private_lines():
    """The lines over standard input and output, which are then empty for everything else."""
    lines = Lines(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    return lines


