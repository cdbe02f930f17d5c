"""The earlier name of ``plimsoll.collect``."""

import sys

import plimsoll.collect
from plimsoll.collect import *  # noqa: F403

for _name in ("collector", "replay", "spaces", "vector_env"):
    sys.modules[f"{__name__}.{_name}"] = sys.modules[f"plimsoll.collect.{_name}"]
