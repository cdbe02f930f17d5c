"""Steps environments for Plimsoll: one process, several of them, a socket of whole messages and shared memory.

Needs numpy; gymnasium only for `gym:ID`. Words are JSON: hello, spec, attach, attached, failed, exception, close. A step
is eight bytes there and the same eight back: operation, group, two zeros, number. Its data lies in slots of the shared
memory, whose places the word `attach` tells.
"""

import array
import faulthandler
import json
import mmap
import os
import signal
import socket
import sys
import traceback

# Requests to an environment of a group, and the flags of its answer.
SKIP, STEP, RESET, REMAKE = 0, 1, 2, 3
TERMINATED, TRUNCATED, RESET_ROW, FAILED = 1, 2, 8, 128
# The operation of a step: each environment by its ask, or a step of all.
GO, ALL_STEP = 1, 2
# The activity under way, so that the parent knows which time limit applies.
IN_STEP, IN_RESET, IN_MAKE = 0, 1, 2
DOING = ["step", "reset", "make"]

MESSAGE_BYTES = 1 << 16
TRACE_CHARS = 16 << 10
BOUNDS_MAX = 1024
DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"}

sock = None
np = None


class Bad(Exception):
    """The environment's answer violates its spaces or Gymnasium's interface."""


class Unsupported(Exception):
    """A space without a fixed size."""


class Changed(Exception):
    """The spaces differ from those of the first environment."""


def encoded(word):
    # File names may have bytes that are not characters.
    return json.dumps(word, ensure_ascii=False).encode("utf-8", "replace")


def say(word):
    sock.send(encoded(word))


def say_error(kind, body):
    """Sends what failed. Of a text too long for a message the end is kept: the line with the reason."""
    while len(message := encoded({kind: body})) > MESSAGE_BYTES:
        longest = max(("trace", "what"), key=lambda key: len(body[key]))
        body[longest] = body[longest][len(body[longest]) // 2 + 1 :]
    sock.send(message)


def theirs(trace):
    """Returns a traceback without the frames of this script; None if there are no others."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def about(error):
    """Returns (kind, last line, traceback without this script's frames) of a caught exception."""
    kinds = {MemoryError: "memory", Bad: "bad", Unsupported: "unsupported", Changed: "changed"}
    kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), "exception")
    if kind != "exception":
        return kind, str(error).strip().partition("\n")[0] or type(error).__name__, ""
    lines = traceback.format_exception(type(error), error, theirs(error.__traceback__))
    # The first line of what it says: the others are in the traceback.
    last = traceback.format_exception_only(type(error), error)[-1].strip().partition("\n")[0]
    return kind, last[-1000:], "".join(lines)[-TRACE_CHARS:]


# Spaces.


def kind_of(space):
    names = {"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"}
    return next((base.__name__ for base in type(space).__mro__ if base.__name__ in names), type(space).__name__)


def bounds(values):
    """Returns the bounds of a box: one number if all are equal or there are many, null for an infinite one."""
    values = np.asarray(values)
    if values.size == 0:
        return []
    least, most = values.min(), values.max()
    if least != most and values.size > BOUNDS_MAX:
        return None
    flat = [least] if least == most else values.ravel().tolist()
    return [float(value) if np.isfinite(value) else None for value in flat]


def describe(space, path=""):
    kind = kind_of(space)
    if kind == "Box":
        dtype, shape = np.dtype(space.dtype), [int(n) for n in space.shape]
        if dtype.name not in DTYPES:
            raise Unsupported(f"space `{path}`: elements of {dtype.name}")
        low = bounds(space.low)
        high = bounds(space.high)
        # For a large box with a bound per element, the widest bounds, so that they fit in one message.
        low = bounds(np.min(space.low)) if low is None else low
        high = bounds(np.max(space.high)) if high is None else high
        return {"kind": "box", "dtype": dtype.name, "shape": shape, "low": low, "high": high}
    if kind == "Discrete":
        return {"kind": "discrete", "n": int(space.n), "start": int(getattr(space, "start", 0))}
    if kind == "MultiDiscrete":
        if np.any(np.asarray(getattr(space, "start", 0)) != 0):
            raise Unsupported(f"space `{path}`: MultiDiscrete with a start other than 0")
        return {"kind": "multidiscrete", "nvec": [int(n) for n in np.asarray(space.nvec).ravel()]}
    if kind == "MultiBinary":
        n = space.n
        return {"kind": "multibinary", "shape": [int(n)] if np.ndim(n) == 0 else [int(m) for m in n]}
    if kind == "Dict":
        strange = [name for name in space.spaces if type(name) is not str]
        if strange:
            raise Unsupported(f"space `{path}`: the key {strange[0]!r} is no string")
        names = sorted(space.spaces)
        return {"kind": "dict", "spaces": [[name, describe(space.spaces[name], f"{path}.{name}")] for name in names]}
    if kind == "Tuple":
        return {"kind": "tuple", "spaces": [describe(part, f"{path}.{i}") for i, part in enumerate(space.spaces)]}
    raise Unsupported(f"space `{path.lstrip('.')}`: {kind} has no fixed size")


def leaves_of(space, path=()):
    """Returns (path, shape, kind) of each leaf, in the order of the slots."""
    kind = kind_of(space)
    if kind == "Dict":
        return [leaf for name in sorted(space.spaces) for leaf in leaves_of(space.spaces[name], path + (name,))]
    if kind == "Tuple":
        return [leaf for i, part in enumerate(space.spaces) for leaf in leaves_of(part, path + (i,))]
    shape = {"MultiDiscrete": lambda: np.asarray(space.nvec).shape, "Discrete": lambda: ()}.get(kind, lambda: space.shape)
    return [(path, tuple(shape()), kind)]


def build(space, values):
    """Builds a value of `space` from the values of its leaves, in order."""
    kind = kind_of(space)
    if kind == "Dict":
        return {name: build(space.spaces[name], values) for name in sorted(space.spaces)}
    if kind == "Tuple":
        return tuple(build(part, values) for part in space.spaces)
    return next(values)


class Column:
    """One leaf of all slots: an array [k, *shape] in the shared memory."""

    def __init__(self, memory, base, slot_bytes, count, leaf, shape_of):
        self.path, shape, self.kind = shape_of
        self.array = np.ndarray(
            (count,) + shape, leaf["dtype"], memory, base + leaf["offset"],
            (slot_bytes,) + np.empty(shape, leaf["dtype"]).strides,
        )
        self.shape, self.dtype = shape, self.array.dtype

    def fitting(self, value, shape):
        for key in self.path:
            value = value[key]
        value = np.asarray(value)
        name = " `" + ".".join(map(str, self.path)) + "`" if self.path else ""
        if value.shape != shape:
            raise Bad(f"observation{name} has shape {value.shape}, the space says {shape}")
        if value.dtype != self.dtype and not np.can_cast(value.dtype, self.dtype, "same_kind"):
            raise Bad(f"observation{name} has dtype {value.dtype}, the space says {self.dtype}")
        return value


class Slots:
    """Observations of all environments. A value that does not fit its space is `Bad`."""

    def __init__(self, memory, base, slot_bytes, count, leaves, space):
        both = zip(leaves, leaves_of(space))
        self.columns = [Column(memory, base, slot_bytes, count, leaf, of) for leaf, of in both]
        first = self.columns[0]
        # A row of a memoryview accepts only arrays of the same type and shape, and is faster than numpy.
        flat = len(self.columns) == 1 and not first.path and len(first.shape) == 1
        self.rows = [memoryview(first.array[i]) if flat else None for i in range(count)]
        self.plain = first.array if len(self.columns) == 1 and not first.path and not flat else None

    def put(self, i, value):
        plain = self.plain
        if plain is not None and type(value) is np.ndarray:
            if value.dtype == plain.dtype and value.shape == plain.shape[1:]:
                plain[i] = value
                return
        elif plain is not None and plain.ndim == 1 and type(value) in (int, np.int64):
            plain[i] = value
            return
        try:
            for column in self.columns:
                column.array[i] = column.fitting(value, column.shape)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise Bad(f"an observation that its space does not hold: {type(error).__name__}: {error}") from None

    def put_all(self, first, n, value, where=None):
        """Writes observations of a vector environment, of those in `where` if given."""
        try:
            for column in self.columns:
                new = column.fitting(value, (n,) + column.shape)
                if where is None:
                    column.array[first : first + n] = new
                else:
                    column.array[first : first + n][where] = new[where]
        except (KeyError, IndexError, TypeError) as error:
            raise Bad(f"observations that their space does not hold: {type(error).__name__}: {error}") from None


class Actions:
    """Actions of all environments in their space; copies, because an environment may keep them."""

    def __init__(self, memory, base, slot_bytes, count, leaves, space):
        self.space = space
        self.columns = [Column(memory, base, slot_bytes, count, leaf, of) for leaf, of in zip(leaves, leaves_of(space))]
        self.bare = len(self.columns) == 1 and not self.columns[0].path
        self.choice = None
        if self.bare and self.columns[0].kind == "Discrete":
            self.choice = memory[base : base + slot_bytes * count].cast("q")

    def list(self, first, last):
        if self.choice is not None:
            return self.choice[first:last].tolist()
        parts = [list(column.array[first:last].copy()) for column in self.columns]
        if self.bare:
            return parts[0]
        return [build(self.space, iter(leaves)) for leaves in zip(*parts)]

    def batch(self, first, last):
        return build(self.space, iter([column.array[first:last].copy() for column in self.columns]))


# Environments.


def load(spec):
    """Returns the function that makes an environment: (whether it was found, what it needs)."""
    kind, _, rest = spec["env"].partition(":")
    kwargs = spec.get("kwargs") or {}
    if kind == "gym":
        sys.path.insert(0, os.getcwd())
        import gymnasium

        return lambda: gymnasium.make(rest, **kwargs)
    path, _, name = rest.rpartition(":")
    module = load_file(path)
    make = getattr(module, name)
    return lambda: make(**kwargs)


def is_vector(env):
    return hasattr(env, "num_envs") and hasattr(env, "single_observation_space")


def autoreset_of(env):
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", "NextStep")
    return str(getattr(mode, "value", mode))


def spaces_of(env):
    if is_vector(env):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def said_of(env):
    """Returns the word `spec` of an environment."""
    observation, action = spaces_of(env)
    registered = getattr(env, "spec", None)
    steps_max = getattr(registered, "max_episode_steps", None)
    return {
        "id": getattr(registered, "id", None) or type(env).__name__,
        "observation": describe(observation, "observation"),
        "action": describe(action, "action"),
        "vector": int(env.num_envs) if is_vector(env) else 0,
        "autoreset": autoreset_of(env) if is_vector(env) else "SameStep",
        "steps_max": int(steps_max) if steps_max and steps_max > 0 else None,
    }


class Worker:
    """The environments of this process, by slot."""

    def __init__(self, make, said, env, attach, memory):
        count = attach["envs"]
        self.make_one, self.said, self.count, self.reseed = make, said, count, attach["reseed"]
        self.steps_max, self.taken = attach["episode_steps_max"], np.zeros(count, np.int64)
        part = lambda name, form, n: memory[attach[name] : attach[name] + n].cast(form)
        self.cursor = part("cursor", "i", 8)
        self.asks = part("asks", "B", count)
        self.flags = part("flags", "B", count)
        self.rewards = part("rewards", "d", 8 * count)
        self.seeds = part("seeds", "Q", 8 * count)
        observation, action = spaces_of(env)
        slots = lambda name: Slots(
            memory, attach[name], attach["observation_bytes"], count, attach["observation_leaves"], observation
        )
        self.observations, self.finals = slots("observations"), slots("finals")
        self.actions = Actions(memory, attach["actions"], attach["action_bytes"], count, attach["action_leaves"], action)
        self.vector = said["vector"]
        # Whether a vector environment takes a single seed, as those that compute in arrays do.
        self.one_seed = False
        self.envs, self.spaces = [None] * count, [None] * count
        self.steps, self.fresh, self.ended = [None] * count, [True] * count, [False] * count
        for i in range(0, count, self.vector or 1):
            self.cursor[0], self.cursor[1] = i, IN_MAKE
            self.hold(i, env if i == 0 else make())
        self.cursor[1] = IN_STEP

    def hold(self, i, env):
        new = said_of(env)
        if any(new[key] != self.said[key] for key in ("observation", "action", "vector", "autoreset")):
            raise Changed(f"environment {i} of the worker has other spaces than the first: {differing(self.said, new)}")
        self.envs[i], self.spaces[i] = env, spaces_of(env)[0]
        # Counted in a separate call, so that steps without a limit have no overhead.
        self.steps[i] = Limited(env.step, self.steps_max) if self.steps_max and not self.vector else env.step
        for at in range(i, i + (self.vector or 1)):
            self.fresh[at], self.ended[at] = True, False

    def remake(self, i):
        self.cursor[1] = IN_MAKE
        old, self.envs[i], self.steps[i] = self.envs[i], None, None
        try:
            if old is not None:
                old.close()
        except Exception:
            pass  # It failed already; what closing it says is of no more use.
        self.hold(i, self.make_one())

    def seed(self, i):
        fresh, self.fresh[i] = self.fresh[i], False
        return self.seeds[i] if fresh or self.reseed else None

    def begin(self, i):
        """Begins an episode of environment `i`. Returns its first observation."""
        self.cursor[1] = IN_RESET
        env = self.envs[i]
        if self.steps_max:
            self.steps[i].taken = 0
        seed = self.seed(i)
        first = env.reset(seed=seed) if seed is not None else env.reset()
        if type(first) is not tuple or len(first) != 2:
            raise Bad(f"reset returned {type(first).__name__}, not (observation, info)")
        space = env.observation_space
        if space is not self.spaces[i]:
            self.same_space(space)
            self.spaces[i] = space
        self.cursor[1] = IN_STEP
        return first[0]

    def same_space(self, space):
        new = describe(space, "observation")
        if new != self.said["observation"]:
            raise Changed(f"after a reset the observation space is another: {differing(self.said, {'observation': new})}")

    def failed(self, i, error):
        for at in range(i, i + (self.vector or 1)):
            self.flags[at] = FAILED
        kind, what, trace = about(error)
        doing = DOING[self.cursor[1]]
        self.cursor[1] = IN_STEP
        say_error("exception", {"env": i, "doing": doing, "kind": kind, "what": what, "trace": trace})

    def step_all(self, first, last):
        """Steps each environment of a group: the hot path."""
        cursor, rewards, flags, slots = self.cursor, self.rewards, self.flags, self.observations
        rows = slots.rows
        for i, step, action in zip(range(first, last), self.steps[first:last], self.actions.list(first, last)):
            cursor[0] = i
            try:
                observation, reward, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    self.finals.put(i, observation)
                    observation = self.begin(i)
                    flags[i] = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
                else:
                    flags[i] = 0
            except Exception as error:
                self.failed(i, as_bad(error))
                continue
            row = rows[i]
            if row is not None:
                try:
                    row[:] = observation
                except (TypeError, ValueError):
                    # Not an array of exactly this type: from now on this environment's observations are checked.
                    row = rows[i] = None
            if row is None:
                try:
                    slots.put(i, observation)
                except Exception as error:
                    self.failed(i, error)
                    continue
            try:
                rewards[i] = reward
            except (TypeError, ValueError):
                self.failed(i, Bad(f"reward {reward!r:.100} is no number"))
            except Exception as error:
                self.failed(i, error)

    def one(self, i, ask):
        self.cursor[0] = i
        try:
            if ask == REMAKE:
                self.remake(i)
            self.observations.put(i, self.begin(i))
            self.flags[i] = 0
        except Exception as error:
            self.failed(i, error)

    def group(self, operation, first, last):
        if operation == ALL_STEP and not self.vector:
            return self.step_all(first, last)
        asks = [STEP] * (last - first) if operation == ALL_STEP else self.asks[first:last].tolist()
        if self.vector:
            for i in range(first, last, self.vector):
                self.cursor[0] = i
                try:
                    self.vector_group(i, asks[i - first : i - first + self.vector])
                except Exception as error:
                    self.failed(i, as_bad(error))
            return
        for i, ask in zip(range(first, last), asks):
            if ask == STEP:
                self.step_all(i, i + 1)
            elif ask != SKIP:
                self.one(i, ask)

    def vector_group(self, i, asks):
        """Steps or resets a vector environment as one."""
        n, env = self.vector, self.envs[i]
        if REMAKE in asks:
            self.remake(i)
            asks, env = [RESET] * n, self.envs[i]
        if asks == [SKIP] * n:
            return
        flags = self.flags
        if asks == [RESET] * n:
            self.cursor[1] = IN_RESET
            seeds = [self.seed(at) for at in range(i, i + n)]
            observation, _ = self.reset_vector(env, seeds if None not in seeds else [None] * n)
            self.observations.put_all(i, n, observation)
            flags[i : i + n] = bytes(n)
            self.ended[i : i + n], self.taken[i : i + n] = [False] * n, 0
            self.cursor[1] = IN_STEP
            return
        mode = self.said["autoreset"]
        if STEP not in asks and mode == "Disabled":
            mask = np.asarray(asks) == RESET
            flags[i : i + n] = bytes(n)
            return self.reset_some(i, mask)
        if asks != [STEP] * n:
            raise Bad(f"a vector environment in autoreset mode {mode} was asked {asks}, which it cannot do for some alone")
        observation, rewards, terminated, truncated, infos = env.step(self.actions.batch(i, i + n))
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        rewards = np.asarray(rewards, np.float64)
        if rewards.shape != (n,) or terminated.shape != (n,) or truncated.shape != (n,):
            raise Bad(f"rewards {rewards.shape} and flags {terminated.shape}, {truncated.shape} of {n} environments")
        if self.steps_max:
            self.taken[i : i + n] += 1
            truncated = truncated | (self.taken[i : i + n] >= self.steps_max)
        done = terminated | truncated
        new = terminated * np.uint8(TERMINATED) | truncated * np.uint8(TRUNCATED)
        if mode == "SameStep":
            for at in np.flatnonzero(done):
                self.finals.put(i + int(at), final_of(infos, int(at)))
        else:
            self.finals.put_all(i, n, observation, done)
        if mode == "NextStep":
            # The step after an end ignores its action and returns the first observation of the next episode.
            reset_rows = np.asarray(self.ended[i : i + n])
            new[reset_rows], rewards = RESET_ROW, np.where(reset_rows, 0.0, rewards)
            self.ended[i : i + n] = (done & ~reset_rows).tolist()
        elif mode == "Disabled" and done.any():
            self.observations.put_all(i, n, observation, ~done)
            self.reset_some(i, done)
            observation = None
        if observation is not None:
            self.observations.put_all(i, n, observation)
        self.rewards[i : i + n] = memoryview(np.ascontiguousarray(rewards))
        flags[i : i + n] = new.astype(np.uint8).tobytes()

    def reset_vector(self, env, seeds, **more):
        """Resets with one seed each, or with only the first one if the environment takes no list."""
        given = [seed for seed in seeds if seed is not None]
        if not given:
            return env.reset(**more)
        if not self.one_seed:
            try:
                return env.reset(seed=seeds, **more)
            except Exception:
                answer = env.reset(seed=given[0], **more)
                self.one_seed = True
                return answer
        return env.reset(seed=given[0], **more)

    def reset_some(self, i, mask):
        """Begins episodes of those in `mask`, as the autoreset mode Disabled allows."""
        n = self.vector
        self.cursor[1] = IN_RESET
        seeds = [self.seed(i + at) if mask[at] else None for at in range(n)]
        observation, _ = self.reset_vector(self.envs[i], seeds, options={"reset_mask": mask})
        self.taken[i : i + n][mask] = 0
        self.cursor[1] = IN_STEP
        self.observations.put_all(i, n, observation, mask)

    def close(self):
        for env in self.envs:
            if env is not None:
                env.close()


def as_bad(error):
    """Detects an older interface: values that cannot be unpacked in frames of this script."""
    if theirs(error.__traceback__) is None and isinstance(error, (TypeError, ValueError)) and not isinstance(error, Bad):
        return Bad(f"step did not return (observation, reward, terminated, truncated, info): {error}")
    return error


class Limited:
    """A step function that truncates an episode after `most` steps."""

    def __init__(self, step, most):
        self.step, self.most, self.taken = step, most, 0

    def __call__(self, action):
        observation, reward, terminated, truncated, info = self.step(action)
        self.taken += 1
        return observation, reward, terminated, truncated or self.taken >= self.most, info


def final_of(infos, at):
    """Returns the last observation of an episode that a vector environment ended and restarted in one step."""
    finals = infos.get("final_obs", infos.get("final_observation"))
    if finals is None:
        raise Bad("autoreset mode SameStep, and `infos` has no `final_obs`")
    return element(finals, at)


def element(value, at):
    if isinstance(value, dict):
        return {name: element(part, at) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(element(part, at) for part in value)
    return value[at]


def differing(old, new):
    return "; ".join(f"{key} was {json.dumps(old[key])[:300]}, is {json.dumps(new[key])[:300]}" for key in new if new[key] != old[key])


def receive_word():
    message, control, _, _ = sock.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4))
    if not message:
        os._exit(0)
    fds = array.array("i")
    for _, _, data in control:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(message), list(fds)


def start():
    """Sends `hello`, makes the environments and takes the shared memory; None after a failure, which was sent."""
    global np
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        import numpy
    except ImportError as error:
        say_error("failed", {"doing": "numpy", "kind": "missing", "what": str(error), "trace": "", "python": version})
        return None
    np = numpy
    say({"hello": {"protocol": 1, "pid": os.getpid(), "python": version, "numpy": np.__version__}})
    doing = "import"
    try:
        spec, _ = receive_word()
        make = load(spec["spec"])
        doing = "make"
        env = make()
        doing = "spaces"
        said = said_of(env)
        described = encoded({"spec": said})
        if len(described) > MESSAGE_BYTES:
            raise Unsupported(f"spaces whose description takes {len(described)} bytes, more than {MESSAGE_BYTES}")
        sock.send(described)
        attach, (fd,) = receive_word()
        memory = memoryview(mmap.mmap(fd, attach["attach"]["bytes"]))
        os.close(fd)
        doing = "make"
        worker = Worker(make, said, env, attach["attach"], memory)
    except Exception as error:
        kind, what, trace = about(error)
        if isinstance(error, ModuleNotFoundError) and error.name == "gymnasium":
            kind = "missing"
        say_error("failed", {"doing": doing, "kind": kind, "what": what, "trace": trace, "python": version})
        return None
    say({"attached": worker.count})
    return worker, [tuple(group) for group in attach["attach"]["groups"]]


def main():
    global sock
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sys.argv = [sys.argv[0]]
    started = start()
    if started is None:
        return
    worker, groups = started
    receive, send, group = sock.recv, sock.send, worker.group
    while True:
        message = receive(64)
        if len(message) != 8:
            break
        group(message[0], *groups[message[1]])
        send(message)
    if message:
        worker.close()


if __name__ == "__main__":
    main()
