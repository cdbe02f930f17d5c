"""The command ``plimsoll-env-worker``: becomes a worker of Python environments. Started only by a collector."""

import os
import shutil
import sys
import sysconfig

from . import _native


def program() -> str | None:
    """Returns where the command is installed, next to this interpreter; None if it is not."""
    installed = os.path.join(sysconfig.get_path("scripts"), "plimsoll-env-worker")
    return installed if os.access(installed, os.X_OK) else shutil.which("plimsoll-env-worker")


def asked(env: str, num_envs: int, options: dict) -> dict:
    """Environments and options as the native side takes them; workers run this interpreter if none is named."""
    return {"env": env, "num_envs": num_envs, "program": program(), "python": sys.executable, **options}


def main() -> int:
    """Returns only if it could not become one; the reason is on stderr."""
    _native.become_env_worker(sys.argv[2:])
    return 1
