"""Runs a program, and then does with what it defines what its tests ask for. Usage: -c SCRIPT FILE."""
import builtins
import operator
import sys
import types

OPERATIONS = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "hash": hash,
    "int": int,
    "float": float,
    "round": round,
    "reversed": reversed,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *error),
}


class Program:
    def __init__(self, lines, namespace):
        self.lines, self.namespace = lines, namespace
        self.objects, self.numbers = [], {}

    def name(self, value):
        number = self.numbers.get(id(value))
        if number is None:
            # Kept, so that its id stays its own.
            number = self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        shown = {"t": "theirs", "n": number}
        if type(value) is types.ModuleType:
            shown["module"] = value.__name__
        if isinstance(value, type) and issubclass(value, BaseException):
            shown["x"] = self.exception(value)
        return shown

    def exception(self, kind):
        """The name of an exception's class, and of the built-in class above it."""
        base = next(base for base in kind.__mro__ if getattr(builtins, base.__name__, None) is base)
        return [kind.__name__, base.__name__]

    def named(self, data):
        if data["t"] == "mine":
            return self.objects[data["n"]]
        if data["t"] == "builtin":
            return getattr(builtins, data["v"])
        number = data["n"]

        def call(*args, **kwargs):
            """A function of the tests."""
            shown = {"n": number, "args": self.written(list(args)), "kwargs": self.written(kwargs)}
            self.lines.give({"back": shown})
            while "done" not in (message := self.lines.take()):
                self.lines.give(self.answer(message))
            if "raised" in message:
                raise RuntimeError(message["raised"])
            return self.read(message["done"])

        return call

    def written(self, value):
        return written(value, self.name)

    def read(self, data):
        return read(data, self.named, lambda value, shown: self.named(shown))

    def answer(self, message):
        try:
            if "names" in message:
                found = {name: self.namespace[name] for name in message["names"] if name in self.namespace}
                return {"names": {name: self.written(value) for name, value in found.items()}}
            args, kwargs = self.read(message["args"]), self.read(message["kwargs"])
            if message["do"] == "keep":
                # The result of an operator stays here: what it was computed from may be what it is compared with.
                return {"value": self.name(getattr(operator, args[0])(*args[1:]))}
            operation = OPERATIONS.get(message["do"]) or getattr(operator, message["do"])
            reply = {"value": self.written(operation(*args, **kwargs))}
            # Functions change lists and dictionaries that they are given: the tests see that in their own.
            after = self.written(args)
            changed = [[at, data] for at, data in enumerate(after) if data != message["args"][at]]
            return {**reply, "changed": changed} if changed else reply
        except BaseException as error:
            kind = self.name(type(error))
            try:
                return {"raised": kind, "args": self.written(list(error.args))}
            except Exception:
                return {"raised": kind, "args": []}


def main():
    lines = private_lines()
    path = sys.argv[1]
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = path
    sys.argv = [path]
    exec(code, module.__dict__)
    program = Program(lines, module.__dict__)
    while (message := lines.take()) is not None:
        lines.give(program.answer(message))


main()
