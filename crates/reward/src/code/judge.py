"""Runs the tests of programs, each of which runs in another process: a line with tests in, questions to the program out
and answers in, a line with the verdict out.

A name of the program is a stand-in here, and what it returns is a copy. So a program never sees what its results are
compared with, and no method of its objects takes part in a comparison with a plain value: such an object equals none.
"""
import ast
import builtins
import functools
import importlib
import signal
import sys
import types

# Modules that compute with values alone. Tests that import others look at more than values: they run inside.
PURE = {
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools",
    "json", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
}  # fmt: skip
# Names that look at more than values.
IMPURE = {
    "open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "dir", "id", "super", "__import__",
    "__builtins__", "__file__", "__name__", "breakpoint", "exit", "quit",
}  # fmt: skip


class Inside(Exception):
    """The tests hand the program something that cannot be copied."""


class Gone(BaseException):
    """The program has ended."""


def is_pure(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(name.name.split(".")[0] not in PURE for name in node.names):
            return False
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] not in PURE:
            return False
        if isinstance(node, ast.Name) and node.id in IMPURE:
            return False
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await)):
            return False
        # A copy is not the object itself.
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            if not any(isinstance(side, ast.Constant) for side in [node.left, *node.comparators]):
                return False
    return True


def stand_in(operation):
    """A method that is carried out in the program, and whose result may be plain."""

    def method(self, *args, **kwargs):
        return judge.ask(operation, self, *args, **kwargs)

    return method


def operator_of(operation, swapped=False):
    """A method for an operator. Its result stays in the program, because its operands may have come from the tests."""

    def method(self, *others):
        return judge.kept(operation, (*others, self) if swapped else (self, *others))

    return method


class Theirs:
    """An object of the program."""

    def __init__(self, number):
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name):
        return judge.ask("getattr", self, name)

    def __setattr__(self, name, value):
        judge.ask("setattr", self, name, value)

    def __delattr__(self, name):
        judge.ask("delattr", self, name)

    def __eq__(self, other):
        return isinstance(other, Theirs) and bool(judge.ask("eq", self, other))

    def __ne__(self, other):
        return not isinstance(other, Theirs) or bool(judge.ask("ne", self, other))

    def __bool__(self):
        return judge.ask("bool", self) is True

    def __hash__(self):
        return self._number

    def __instancecheck__(self, value):
        return isinstance(value, Theirs) and judge.ask("isinstance", value, self) is True

    def __subclasscheck__(self, kind):
        return isinstance(kind, Theirs) and judge.ask("issubclass", kind, self) is True

    def __mro_entries__(self, bases):
        raise Inside("a class of the tests below one of the program")

    def __str__(self):
        return plain(judge.ask("str", self), str)

    def __repr__(self):
        return plain(judge.ask("repr", self), str)

    def __len__(self):
        return plain(judge.ask("len", self), int)

    def __int__(self):
        return plain(judge.ask("int", self), int)

    def __float__(self):
        return plain(judge.ask("float", self), float)

    def __index__(self):
        return plain(judge.ask("index", self), int)

    def __iter__(self):
        iterator = judge.ask("iter", self)
        return iterator if isinstance(iterator, Theirs) else iter(iterator)

    __call__, __getitem__, __setitem__ = stand_in("call"), stand_in("getitem"), stand_in("setitem")
    __delitem__, __next__, __reversed__ = stand_in("delitem"), stand_in("next"), stand_in("reversed")
    __contains__, __enter__, __exit__ = stand_in("contains"), stand_in("enter"), stand_in("exit")


for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift"]:
    _plain = _name.rstrip("_")
    setattr(Theirs, f"__{_plain}__", operator_of(_name))
    setattr(Theirs, f"__r{_plain}__", operator_of(_name, swapped=True))
for _name in ["neg", "pos", "invert", "abs"]:
    setattr(Theirs, f"__{_name}__", operator_of(_name))


def ordering(operation):
    def method(self, other):
        return bool(judge.ask(operation, self, other)) if isinstance(other, Theirs) else NotImplemented

    return method


for _name in ["lt", "le", "gt", "ge"]:
    setattr(Theirs, f"__{_name}__", ordering(_name))


def plain(value, kind):
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} instead of a {kind.__name__}")
    return value


def restore(old, new):
    """Gives a container of the tests the content that it had in the program after a call."""
    if type(old) is not type(new):
        return new
    if isinstance(old, list):
        old[:] = [restore(a, b) for a, b in zip(old, new)] + new[len(old) :]
    elif isinstance(old, dict):
        kept = {key: restore(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(kept)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, (bytearray, collections.deque)):
        old.clear()
        old.extend(new)
    else:
        return new
    return old


class Judge:
    """One set of tests and its program."""

    def __init__(self, lines):
        self.lines, self.functions, self.exceptions = lines, [], {}

    def name(self, value):
        if isinstance(value, Theirs):
            return {"t": "mine", "n": value._number}
        # A copy of an object below a built-in class, or the class of an exception.
        number = getattr(type(value) if not isinstance(value, type) else value, "_number", None)
        if number is not None:
            return {"t": "mine", "n": number}
        if getattr(builtins, getattr(value, "__name__", "") or "", None) is value:
            return {"t": "builtin", "v": value.__name__}
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self.functions.append(value)
            return {"t": "theirs", "n": len(self.functions) - 1}
        raise Inside(f"a {type(value).__name__}")

    def named(self, data):
        if data.get("module", "").split(".")[0] in PURE:
            return importlib.import_module(data["module"])
        number = data["n"]
        if "x" not in data:
            return Theirs(number)
        if number not in self.exceptions:
            name, base = data["x"]
            base = getattr(builtins, base, None)
            base = base if isinstance(base, type) and issubclass(base, BaseException) else Exception
            known = getattr(builtins, name, None)
            own = types.new_class(str(name), (base,), exec_body=lambda body: body.update(_number=number))
            self.exceptions[number] = base if known is base else own
        return self.exceptions[number]

    def sub(self, value, shown):
        """A copy of an instance of a class below a built-in one: its value is here, its attributes are there."""
        theirs = self.named(shown)
        kind = type(value)
        attributes = {
            "_number": shown["n"],
            "__getattr__": lambda self, name: getattr(theirs, name),
            "__hash__": kind.__hash__,
        }
        return type(kind.__name__, (kind,), attributes)(value)

    def written(self, value):
        return written(value, self.name)

    def read(self, data):
        return read(data, self.named, self.sub)

    def ask(self, operation, *args, **kwargs):
        written_args = self.written(list(args))
        reply = self.put({"do": operation, "args": written_args, "kwargs": self.written(kwargs)})
        for at, data in reply.get("changed", ()):
            restore(args[at], self.read(data))
        return self.read(reply["value"])

    def kept(self, operation, operands):
        operands = [operation, *self.written(list(operands))]
        return self.read(self.put({"do": "keep", "args": operands, "kwargs": self.written({})})["value"])

    def put(self, question):
        """Asks the program, and calls functions of the tests for it meanwhile."""
        self.lines.give(question)
        while "back" in (reply := self.hear()):
            asked = reply["back"]
            try:
                function = self.functions[asked["n"]]
                result = function(*self.read(asked["args"]), **self.read(asked["kwargs"]))
                self.lines.give({"done": self.written(result)})
            except Exception as error:
                self.lines.give({"done": None, "raised": f"{type(error).__name__}: {error}"[:1000]})
        if "raised" in reply:
            kind = self.named(reply["raised"])
            raise kind(*self.read(reply["args"])) if isinstance(kind, type) else RuntimeError("an exception")
        return reply

    def hear(self):
        message = self.lines.take()
        if message is None or "gone" in message:
            raise Gone
        return message

    def run(self, tree):
        names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
        namespace = {"__name__": "tests"}
        for name, data in self.put({"names": names})["names"].items():
            if not hasattr(builtins, name) or isinstance(data, dict):
                namespace[name] = self.read(data)
        exec(compile(tree, "<tests>", "exec"), namespace)


judge = None


def verdict(lines, text):
    """Tries a program by its tests; says why if they do not hold."""
    global judge
    judge = Judge(lines)
    try:
        judge.run(ast.parse(text))
        return {"holds": True}
    except Inside as why:
        return {"inside": str(why)}
    except Gone:
        return {"holds": False, "why": "the program ended before its tests"}
    except BaseException as error:
        trace, line = error.__traceback__, 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "<tests>" else line
            trace = trace.tb_next
        place = text.splitlines()[line - 1].strip() if line else "the tests"
        return {"holds": False, "why": f"{place[:200]}: {type(error).__name__} {str(error)[:200]}".strip()}


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lines = private_lines()
    while (message := lines.take()) is not None:
        text = message.get("tests")
        if text is None:
            # An answer to tests that died before they could read it.
            continue
        try:
            pure = is_pure(ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pure = False
        if not pure:
            lines.give({"inside": "the tests look at more than values"})
            continue
        # A process for each program, so that nothing of one is there for the next.
        child = os.fork()
        if child == 0:
            try:
                lines.give(verdict(lines, text))
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status != 0:
            lines.give({"holds": False, "why": f"the tests ended with status {status}"})


main()
