"""Plimsoll's environment collectors, for learners in Python.

``Collector`` yields batches ``[num_envs, frames]`` whose arrays are the collector's own memory; ``VectorEnv`` is a
``gymnasium.vector.VectorEnv``; ``Replay`` keeps frames for off-policy learners. They step native environments (``CartPole-v1``, ``Pendulum-v1``, ...; ``NATIVE_IDS``)
in threads, and any other (``gym:ID``, ``python:FILE.py:FUNCTION``) in worker processes that can neither touch a GPU
nor end the run.
"""

try:
    from ._native import NATIVE_IDS
except ImportError as error:
    raise ImportError(f"plimsoll.collect needs the wheel of a release, and numpy and gymnasium: pip install 'plimsoll-rl[collect]' ({error})") from error
from ..errors import PlimsollError
from .collector import Batch, Collector
from .replay import Replay, Transitions
from .vector_env import VectorEnv

__all__ = ["NATIVE_IDS", "Batch", "Collector", "PlimsollError", "Replay", "Transitions", "VectorEnv"]
