"""Workers of Python environments: the command plimsoll, which becomes one."""

import sys

from .. import _program


def asked(env: str, num_envs: int, options: dict) -> dict:
    """Returns environments and options as the native side takes them; workers run this interpreter if none is named."""
    return {"env": env, "num_envs": num_envs, "program": _program.program(), "python": sys.executable, **options}
