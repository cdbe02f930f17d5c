"""Serves one reward function: a JSON line in, a JSON line out. Usage: serve.py FILE FUNCTION.

Standard output belongs to the protocol, so the user's prints go to standard error.
"""
import importlib.util
import inspect
import json
import os
import sys
import traceback


def reply(out, message):
    out.write(json.dumps(message) + "\n")
    out.flush()


def load(path, name):
    directory = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        known = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise LookupError(f"`{path}` has no function `{name}`; it has: {', '.join(known) or 'none'}")
    return function


def takes(function):
    """The keywords that the function names, or None if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def number(value):
    """A score as JSON can carry it: a float, "nan", "inf", "-inf" or null; TypeError for anything else."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"a {type(value).__name__}: {value!r:.80}")
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return value


def answer(function, names, line):
    try:
        batch = json.loads(line)
        if names is not None:
            batch = {k: v for k, v in batch.items() if k in names}
        scores = function(**batch)
        if inspect.isawaitable(scores):
            import asyncio

            async def wait():
                return await scores

            scores = asyncio.run(wait())
    except MemoryError:
        return {"memory": True}
    except Exception:
        return {"raised": traceback.format_exc(limit=8)}
    try:
        if isinstance(scores, (str, bytes, dict)):
            raise TypeError(f"a {type(scores).__name__} instead of a list")
        return {"scores": [number(score) for score in scores]}
    except (TypeError, ValueError) as error:
        return {"bad": str(error)}


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        function = load(sys.argv[1], sys.argv[2])
        names = takes(function)
    except BaseException:
        reply(out, {"load": traceback.format_exc(limit=8)})
        # The parent reads why and ends us; waiting here keeps the message from racing with the exit.
        sys.stdin.readline()
        return
    reply(out, {"ready": True})
    for line in sys.stdin:
        reply(out, answer(function, names, line))


main()
