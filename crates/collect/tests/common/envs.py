"""Environments for tests: duck-typed, so that numpy is enough, and able to fail in every way that a worker is asked to bear."""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time

import numpy as np


class Box:
    def __init__(self, low, high, shape, dtype):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)


class Discrete:
    def __init__(self, n, start=0):
        self.n, self.start = n, start


class MultiDiscrete:
    def __init__(self, nvec):
        self.nvec = np.array(nvec)
        self.shape = self.nvec.shape


class MultiBinary:
    def __init__(self, n):
        self.n, self.shape = n, (n,)


class Dict:
    def __init__(self, **spaces):
        self.spaces = spaces


class Tuple:
    def __init__(self, *spaces):
        self.spaces = spaces


class Sequence:
    pass


class Count:
    """Ends after `length` steps; observes a number that follows from its seed, its steps and its last action."""

    def __init__(self, length=7):
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(4)
        self.length, self.seed, self.steps = length, None, 0

    def observe(self, action):
        return np.array([self.seed % 1000, self.steps, action], np.float32)

    def reset(self, seed=None):
        self.seed, self.steps = seed, 0
        return self.observe(-1), {}

    def step(self, action):
        self.steps += 1
        return self.observe(action), self.steps / 2, self.steps == self.length, False, {}

    def close(self):
        pass


def first(marker):
    """True for one caller among all processes."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def libcuda(folder):
    """Maps a library of the driver's name, as importing torch does where there is a driver."""
    path = os.path.join(folder, "libcuda.so.1")
    # Others may have mapped it already: it is never seen without its bytes.
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(bytes(4096))
    os.rename(file.name, path)
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)


def do(fault, folder):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        sys.exit(0)
    if fault == "os_exit":
        os._exit(3)
    if fault == "raise":
        raise RuntimeError("the speed is negative")
    if fault == "raise_long":
        raise RuntimeError("\N{SNOWMAN}" * 60_000 + " is the last word")
    if fault == "raise_surrogate":
        raise RuntimeError("no file " + os.fsdecode(b"caf\xe9"))
    if fault == "sleep":
        time.sleep(1000)
    if fault == "hold_gil":
        ctypes.PyDLL(None).sleep(1000)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "leak":
        held = []
        for _ in range(1000):
            held.append(np.ones(1 << 20))
            time.sleep(0.002)
    if fault == "leak_in_children":
        # Each is within its own limit.
        for _ in range(4):
            if os.fork() == 0:
                held = np.ones(100 << 17)
                time.sleep(1000)
        time.sleep(1000)
    if fault == "close_socket":
        os.close(3)
        time.sleep(1000)
    if fault == "print":
        print("words on standard output", flush=True)
        os.write(1, b"x" * 100_000)
    if fault == "grandchild":
        child = subprocess.Popen(["sleep", "1000"])
        open(os.path.join(folder, "grandchild"), "w").write(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "say_nonsense":
        os.write(3, b"nonsense")


class Faulty(Count):
    """Fails once among all environments of a run: at step `at` of an episode, or in reset or make."""

    def __init__(self, folder, fault, where="step", at=3, always=False):
        self.folder, self.fault, self.where, self.at, self.always = folder, fault, where, at, always
        self.now("make")
        super().__init__()

    def now(self, where):
        if where == self.where and (self.always or first(os.path.join(self.folder, "failed"))):
            do(self.fault, self.folder)
            return True
        return False

    def reset(self, seed=None):
        # The first episode begins well, so that all environments are under way.
        if self.seed is not None if hasattr(self, "seed") else False:
            self.now("reset")
        return super().reset(seed)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.steps == self.at and self.now("step"):
            if self.fault == "shape":
                observation = np.zeros(5, np.float32)
            if self.fault == "dtype":
                observation = np.array(["a", "b", "c"])
            if self.fault == "nan":
                observation[1] = np.nan
            if self.fault == "infinite":
                observation[1] = -np.inf
            if self.fault == "reward_nan":
                reward = float("nan")
            if self.fault == "reward_none":
                reward = None
            if self.fault == "reward_inf":
                reward = 1e300
            if self.fault == "reward_raises":
                reward = Unreadable()
            if self.fault == "old_step":
                return observation, reward, False, {}
        return (observation, reward, *rest)


class Parent(Count):
    """Starts a process at its step `at`, counted over all episodes, and goes on."""

    def __init__(self, folder, at):
        super().__init__()
        self.folder, self.left = folder, at

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            child = subprocess.Popen(["sleep", "1000"])
            path = os.path.join(self.folder, "child")
            open(path + ".new", "w").write(str(child.pid))
            os.rename(path + ".new", path)
        return super().step(action)


class Unreadable:
    def __float__(self):
        raise RuntimeError("two numbers are no reward")


class Space(Count):
    """Observes what no slot holds."""

    def __init__(self, what):
        super().__init__()
        number = Box(0, 1, (), np.float32)
        spaces = {"a": Dict(b=number), "a.b": number}
        if what == "keys":
            spaces = {1: number}
        if what == "many":
            spaces = {f"a part with a long name and a number {i}": number for i in range(2000)}
        self.observation_space = Box(0, 1, (3,), np.float16) if what == "half" else Dict(**{})
        if what != "half":
            self.observation_space.spaces = spaces


class Changing(Count):
    """Its spaces change after its second reset."""

    def reset(self, seed=None):
        if self.seed is not None:
            self.observation_space = Box(-np.inf, np.inf, (4,), np.float32)
        return super().reset(seed)


class Spaces(Count):
    """Every kind of space; observes its action back."""

    def __init__(self):
        super().__init__()
        self.action_space = Dict(
            b=Discrete(3, start=-1), a=Tuple(MultiDiscrete([2, 5]), MultiBinary(3)), c=Box(-1, 1, (2, 2), np.float64)
        )
        self.observation_space = Dict(
            image=Box(0, 255, (2, 3), np.uint8), heard=self.action_space, flag=Box(0, 1, (), np.bool_)
        )

    def observe(self, action):
        if action == -1:
            action = {"b": -1, "a": (np.array([1, 4]), np.array([0, 1, 0], np.int8)), "c": np.full((2, 2), 0.5)}
        image = np.full((2, 3), self.steps, np.uint8)
        return {"image": image, "heard": action, "flag": self.steps % 2 == 1}


class Wide(Count):
    """Observations as float64 lists where the space says float32; they are cast, not refused."""

    def observe(self, action):
        return [float(self.seed % 1000), float(self.steps), float(action)]


class Vector:
    """`n` counters as one, with each of Gymnasium's ways to begin episodes anew."""

    def __init__(self, n=2, mode="SameStep"):
        self.num_envs, self.mode, self.metadata = n, mode, {"autoreset_mode": mode}
        self.envs = [Count(3 + i) for i in range(n)]
        self.single_observation_space, self.single_action_space = self.envs[0].observation_space, Discrete(4)
        self.ended = [False] * n

    def reset(self, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        seeds = seed if seed is not None else [7] * self.num_envs
        for env, one, mine in zip(self.envs, seeds, mask):
            if mine:
                env.reset(one)
        self.ended = [False] * self.num_envs
        return self.all(), {}

    def all(self):
        return np.stack([env.observe(env.action if env.steps else -1) for env in self.envs])

    def step(self, actions):
        n = self.num_envs
        rewards, done, finals = np.zeros(n), np.zeros(n, bool), np.full(n, None)
        for i, (env, action) in enumerate(zip(self.envs, actions)):
            env.action = int(action)
            if self.mode == "NextStep" and self.ended[i]:
                env.reset(env.seed + 1)
                self.ended[i] = False
                continue
            observation, rewards[i], done[i], _, _ = env.step(int(action))
            if done[i] and self.mode == "SameStep":
                finals[i] = observation
                env.reset(env.seed + 1)
            self.ended[i] = bool(done[i])
        infos = {"final_obs": finals} if done.any() else {}
        return self.all(), rewards, done, np.zeros(n, bool), infos

    def close(self):
        pass


class OneSeed(Vector):
    """Takes one seed for all of it, as those of Gymnasium do that compute in arrays."""

    def reset(self, seed=None, options=None):
        if isinstance(seed, list):
            raise TypeError(f"Seed must be a python integer, actual type: {type(seed)}")
        return super().reset(None if seed is None else [seed + i for i in range(self.num_envs)], options)


class LateVector(Vector):
    """All but the first of a run are made late, and not at all once another has stepped."""

    def __init__(self, folder, n):
        self.stepped = os.path.join(folder, "stepped")
        if not first(os.path.join(folder, "first")):
            time.sleep(0.3)
            if os.path.exists(self.stepped):
                raise RuntimeError("too late")
        super().__init__(n)

    def step(self, actions):
        open(self.stepped, "w").close()
        return super().step(actions)


class Torch(Count):
    """Imports torch where it is installed and asks it for the card; elsewhere maps a library of the driver's name."""

    def __init__(self, folder):
        try:
            import torch

            try:
                self.held = torch.zeros(1, device="cuda")
            except (AssertionError, RuntimeError):
                self.held = torch.zeros(1)
        except ImportError:
            self.held = libcuda(folder)
        super().__init__()


class Family(Count):
    """Starts a process in a new session, independent of its parent, and writes down its id."""

    def __init__(self, folder):
        super().__init__()
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        path = os.path.join(folder, "grandchildren")
        lock = os.path.join(folder, "lock")
        while not first(lock):
            time.sleep(0.001)
        known = open(path).read() + " " if os.path.exists(path) else ""
        with open(path + ".new", "w") as file:
            file.write(known + str(child.pid))
        os.rename(path + ".new", path)
        os.remove(lock)


class Opens(Count):
    """Opens a file in its first step, once among all environments, and keeps it open."""

    def __init__(self, path, folder):
        super().__init__()
        self.path, self.folder, self.held = path, folder, None

    def step(self, action):
        if first(os.path.join(self.folder, "opened")):
            self.held = open(self.path)
        return super().step(action)


class MapsCuda(Count):
    """Maps a file of the name of the driver's library."""

    def __init__(self, folder):
        super().__init__()
        mine = os.path.join(folder, str(os.getpid()))
        os.makedirs(mine, exist_ok=True)
        self.held = libcuda(mine)


class Probe(Count):
    """Observes what it is refused: the numbers of the errors of a socket beyond this machine and of a call of the
    driver, and its limit of descriptors 0."""

    def observe(self, action):
        import fcntl
        import socket

        refused = []
        for attempt in (
            lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
            lambda: fcntl.ioctl(0, (ord("F") << 8) | 42, bytes(8)),
        ):
            try:
                attempt()
                refused.append(0)
            except OSError as error:
                refused.append(error.errno)
        return np.array(refused + [os.getsid(0) == os.getpid()], np.float32)


class Slow(Count):
    def __init__(self, seconds):
        self.seconds = seconds
        super().__init__()

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Huge(Count):
    """A slot of 256 MiB."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 1, (), np.uint8)
        self.observation_space.shape = (1 << 28,)


class Unsupported(Count):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict(words=Sequence())


class Different(Count):
    """Each one has other spaces than the last."""

    made = 0

    def __init__(self):
        super().__init__()
        Different.made += 1
        self.action_space = Discrete(3 + Different.made)
