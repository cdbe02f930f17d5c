"""Finds a function of a user's file and calls it with the keywords that it names."""
import inspect


def load(path, name):
    module = load_file(path)
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


def fitting(names, keywords):
    return keywords if names is None else {k: v for k, v in keywords.items() if k in names}
