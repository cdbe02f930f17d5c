"""Slots of bytes as numpy arrays, and the spaces of Gymnasium that they belong to."""

import gymnasium.spaces as gym
import numpy as np


class Slot:
    """The places of the leaves of a space in a slot of bytes, as a numpy structure."""

    def __init__(self, part: dict):
        self.space = to_gymnasium(part["space"])
        self.leaves = part["leaves"]
        self.dtype = np.dtype(
            {
                "names": [f"leaf{i}" for i in range(len(self.leaves))],
                "formats": [(leaf["dtype"], tuple(leaf["shape"])) for leaf in self.leaves],
                "offsets": [leaf["offset"] for leaf in self.leaves],
                "itemsize": part["bytes"],
            }
        )

    def view(self, slots: np.ndarray):
        """Returns an array of slots, [...], as a value of the space with the same leading axes, without a copy."""
        leaves = iter([slots[name] for name in self.dtype.names])
        return nest(self.space, leaves)

    def pack(self, value, count: int) -> bytes:
        """Returns ``count`` values of the space, nested as in Gymnasium's vector environments, as the bytes of their slots."""
        slots = np.zeros(count, self.dtype)
        leaves = list(flatten(self.space, value))
        for name, leaf, described in zip(self.dtype.names, leaves, self.leaves, strict=True):
            array = np.asarray(leaf)
            shape = (count, *described["shape"])
            if array.size != slots[name].size:
                raise ValueError(f"{described['path'] or 'value'} has shape {array.shape}; it takes {shape}")
            slots[name] = array.reshape(shape)
        return slots.tobytes()


def to_gymnasium(space: dict):
    """Returns the space of Gymnasium with the same values."""
    kind = space["kind"]
    if kind == "box":
        shape = tuple(space["shape"])
        low, high = (bounds(space[name], shape, sign) for name, sign in (("low", -np.inf), ("high", np.inf)))
        dtype = np.dtype(space["dtype"])
        if dtype.kind in "iub":
            info = np.iinfo(dtype) if dtype.kind != "b" else None
            least, most = (info.min, info.max) if info else (0, 1)
            low, high = np.maximum(low, least), np.minimum(high, most)
        return gym.Box(low.astype(dtype), high.astype(dtype), shape, dtype)
    if kind == "discrete":
        return gym.Discrete(space["n"], start=space.get("start", 0))
    if kind == "multidiscrete":
        return gym.MultiDiscrete(space["nvec"])
    if kind == "multibinary":
        return gym.MultiBinary(space["shape"])
    if kind == "dict":
        return gym.Dict({name: to_gymnasium(part) for name, part in space["spaces"]})
    if kind == "tuple":
        return gym.Tuple([to_gymnasium(part) for part in space["spaces"]])
    raise ValueError(f"a space of kind {kind}")


def bounds(values: list, shape: tuple, unbounded: float) -> np.ndarray:
    """Returns the bounds of all elements; ``None`` means unbounded."""
    array = np.array([unbounded if value is None else value for value in values], np.float64)
    return np.full(shape, array[0]) if array.size == 1 else array.reshape(shape)


def nest(space, leaves):
    """Nests leaves as the space does."""
    if isinstance(space, gym.Dict):
        return {name: nest(part, leaves) for name, part in space.spaces.items()}
    if isinstance(space, gym.Tuple):
        return tuple(nest(part, leaves) for part in space.spaces)
    return next(leaves)


def flatten(space, value):
    """Returns the leaves of a nested value, in order."""
    if isinstance(space, gym.Dict):
        for name, part in space.spaces.items():
            yield from flatten(part, value[name])
    elif isinstance(space, gym.Tuple):
        for part, inner in zip(space.spaces, value, strict=True):
            yield from flatten(part, inner)
    else:
        yield value
