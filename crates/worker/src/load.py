"""Loads a user's file. Every script of a worker begins with these lines."""
import sys

# First of all: a file next to this script or in the working directory, which is "" here, may have the name of a module
# that the imports below need. The user's code gets the working directory back.
_here = globals().get("__file__", "").rpartition("/")[0]
_by_command = "" in sys.path[:1]
sys.path[:] = [entry for entry in sys.path if entry not in ("", _here)]

import importlib.machinery
import importlib.util
import os
import traceback

# Most characters sent of an exception's message, and of its frames.
_WORDS, _FRAMES = 10_000, 20_000


class _Hidden:
    """Finds a module whose name a user's file has as well. The file goes by another name."""

    def __init__(self, name, folders):
        self.name, self.folders = name, folders

    def find_spec(self, name, path=None, target=None):
        if name != self.name or path is not None or name in sys.builtin_module_names:
            return None
        rest = [entry for entry in sys.path if entry not in self.folders]
        return importlib.machinery.PathFinder.find_spec(name, rest)


def described(error, limit):
    """Returns a caught exception: its type, what it says, and `limit` frames with the exceptions before it."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    try:
        said = str(error)[:_WORDS]
    except Exception:
        said = ""
    try:
        lines = traceback.TracebackException(kind, error, error.__traceback__, limit=limit).format()
        *frames, _ = [line for line in lines]
    except Exception:
        frames = []
    described = {"kind": name, "said": said, "frames": "".join(frames)[-_FRAMES:]}
    # A lone surrogate is no text, and JSON with one is refused.
    return {key: text.encode(errors="backslashreplace").decode() for key, text in described.items()}


def load_file(path):
    """Returns the module in a file. It finds modules next to it, and hides none by its own name."""
    path = os.path.abspath(path)
    name, folder = os.path.splitext(os.path.basename(path))[0].replace(".", "_"), os.path.dirname(path)
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        sys.meta_path.insert(0, _Hidden(name, (folder, os.getcwd(), "")))
        name = "user_" + name
    sys.path[:0] = [folder, ""] if _by_command else [folder]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


