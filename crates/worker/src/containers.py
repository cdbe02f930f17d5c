"""Containers, which `docker` or `podman` run: each has a name that says which process made it, so that those of a process that
has ended are found and removed.

What the engine fails at is a `ContainerFault`: it ends an episode, and is never a result and never a reward.
"""
import fcntl
import hashlib
import io
import secrets
import selectors
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time

# Longest life of a container, in seconds: one that nothing removes ends by itself.
CONTAINER_LIFE = 24 * 3600
# Tries to start a container, and seconds for what an engine does at once.
START_TRIES = 2
ENGINE_SECONDS = 60
# Most processes of a container, and most bytes read of what an engine says.
PIDS_MAX = 4096
WORDS_BYTES_MAX = 1 << 16
# Most bytes of a file that is read out of a container, as a tar.
TAR_BYTES_MAX = 1 << 20
LABEL = "plimsoll.containers"
# Ends at once when it is asked to, where a shell alone ignores the signal, and outlives a command that kills what it can.
MAIN = f"trap 'exit 0' TERM; n=0; while [ $n -lt {CONTAINER_LIFE // 60} ]; do sleep 60 & wait; n=$((n+1)); done"
# Runs $1, and says with which code it ended after the word $2, so that the end of a command and that of the engine differ.
SHELL = (
    'if command -v bash >/dev/null 2>&1; then bash -c "$1" </dev/null 2>&1; else sh -c "$1" </dev/null 2>&1; fi; '
    'printf "\\n%s %s\\n" "$2" "$?"'
)
# Kills the group of the shell that has the word $1, which leads a session of its own.
KILL = (
    'for p in /proc/[0-9]*; do n=${p#/proc/}; [ "$n" = "$$" ] || { grep -qs -- "$1" "$p/cmdline" && kill -9 -- "-$n"; }; done'
)


class ContainerFault(Exception):
    """An engine that is not there or fails, or a container that is gone."""


class Kept:
    """The beginning and the end of what is written, `most` bytes of it."""

    def __init__(self, most):
        self.head_most, self.tail_most = most // 2, most - most // 2
        self.head, self.tail, self.left_out = bytearray(), bytearray(), 0

    def add(self, data):
        room = self.head_most - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        over = len(self.tail) - self.tail_most
        if over > 0:
            del self.tail[:over]
            self.left_out += over

    def text(self):
        between = f"\n[{self.left_out} bytes are left out here]\n" if self.left_out else ""
        return self.head.decode(errors="replace") + between + self.tail.decode(errors="replace")


def ran(command, seconds, most):
    """Runs a program. Returns its exit code, None if it had none after `seconds`, and what it wrote to each pipe."""
    pipe = subprocess.PIPE
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    kept = {program.stdout: Kept(most), program.stderr: Kept(WORDS_BYTES_MAX)}
    until = time.monotonic() + seconds
    try:
        with selectors.DefaultSelector() as pipes:
            for one in kept:
                pipes.register(one, selectors.EVENT_READ)
            while pipes.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in pipes.select(left):
                    data = os.read(key.fd, 1 << 16)
                    kept[key.fileobj].add(data)
                    if not data:
                        pipes.unregister(key.fileobj)
        try:
            code = program.wait(timeout=max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            code = None
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()
        for one in kept:
            one.close()
    return code, *kept.values()


class Engine:
    """The program that runs containers."""

    def __init__(self, named):
        self.command, self.made = engine_command(named), 0
        self.owner = f"{machine_word()}-{os.getpid()}-{started_at(os.getpid())}"
        code, _, words = self.ran(["version"], ENGINE_SECONDS)
        if code != 0:
            raise ContainerFault(f"{self.failed('version', code, words)}\n{self.hint()}")
        self.sweep()

    def ran(self, words, seconds, most=WORDS_BYTES_MAX):
        try:
            return ran([*self.command, *words], seconds, most)
        except OSError as error:
            raise ContainerFault(f"`{self.command[0]}` cannot be started: {error}") from None

    def done(self, words, seconds=ENGINE_SECONDS):
        """What the engine says when it has done something."""
        code, said, errors = self.ran(words, seconds)
        if code != 0:
            raise ContainerFault(self.failed(words[0], code, errors))
        return said.text()

    def failed(self, what, code, words):
        how = "took too long" if code is None else f"failed with status {code}"
        return f"`{' '.join(self.command)} {what}` {how}: {words.text().strip()[-1000:]}"

    def hint(self):
        return "environment.engine names the program; its service must run, and this user may reach its socket"

    def name(self):
        self.made += 1
        return f"plimsoll-{self.owner}-{self.made}"

    def remove(self, names):
        if names:
            self.ran(["rm", "-f", *names], ENGINE_SECONDS)

    def sweep(self):
        """Removes the containers of processes of this machine that have ended."""
        listed = self.done(["ps", "-a", "--filter", f"label={LABEL}", "--format", "{{.Names}}"])
        self.remove([name for name in listed.split() if is_orphan(name)])

    def has_image(self, image):
        return self.ran(["image", "inspect", image], ENGINE_SECONDS)[0] == 0


def engine_command(named):
    """The words that begin each command of an engine. A `podman` is asked by its socket: what the worker itself starts has
    the worker's limits, and containers have others."""
    words = shlex.split(named) if named else [next(filter(shutil.which, ("docker", "podman")), "")]
    if not words or not words[0]:
        raise ContainerFault("neither `docker` nor `podman` is in PATH\nenvironment.engine names the program that runs containers")
    if os.path.basename(words[0]) == "podman" and not {"--remote", "-r", "--url", "--connection", "-c"}.intersection(words):
        words.insert(1, "--remote")
    return words


def machine_word():
    """A word for the processes among which numbers of processes mean the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{boot}{os.stat('/proc/self/ns/pid').st_ino}".encode()).hexdigest()[:8]


def started_at(process):
    """When a process started, in ticks since the machine did; None if there is none."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def is_orphan(name):
    """True if the process that made a container of this machine has ended."""
    parts = name.split("-")
    is_ours = len(parts) == 5 and parts[0] == "plimsoll" and parts[1] == machine_word()
    return is_ours and started_at(parts[2]) != parts[3]


class Container:
    """A container that runs until it is closed."""

    def __init__(self, engine, image, flags, seconds):
        self.engine, self.name = engine, None
        until = time.monotonic() + seconds
        for left in reversed(range(START_TRIES)):
            name = engine.name()
            words = ["run", "-d", "--rm", "--pull", "never", "--name", name, "--label", f"{LABEL}=1", *flags, image, "sh", "-c", MAIN]
            code, _, errors = engine.ran(words, max((until - time.monotonic()) / (left + 1), 1))
            if code == 0:
                self.name = name
                return
            engine.remove([name])
        raise ContainerFault(f"no container starts in {START_TRIES} tries: {engine.failed('run', code, errors)}")

    def exec(self, command, seconds, most, flags=()):
        """The exit code of a command, None if it was killed for its time, and what it printed, `most` bytes of it."""
        word = secrets.token_hex(8)
        words = ["exec", *flags, self.name, "sh", "-c", SHELL, "sh", command, word]
        code, said, errors = self.engine.ran(words, seconds, max(most, 256))
        text, is_whole, number = said.text().rpartition(f"\n{word} ")
        if is_whole and number.strip().isdigit():
            return int(number), text
        if code is None:
            self.engine.ran(["exec", "-u", "root", self.name, "sh", "-c", KILL, "sh", word], max(seconds / 4, 1))
            return None, said.text()
        if self.is_running():
            # The command killed its own shell, or the container's memory ended.
            return 137, said.text()
        raise ContainerFault(f"the container has ended: {self.engine.failed('exec', code, errors)}")

    def is_running(self):
        code, said, _ = self.engine.ran(["inspect", "-f", "{{.State.Running}}", self.name], ENGINE_SECONDS)
        return code == 0 and said.text().strip() == "true"

    def check(self, command, seconds=ENGINE_SECONDS):
        """Runs a command of this program's own as root, which must work."""
        code, said = self.exec(command, seconds, WORDS_BYTES_MAX, ["-u", "root"])
        if code != 0:
            raise ContainerFault(f"`{command}` in the container ended with {code}: {said[-500:]}")

    def put(self, folder, place):
        self.engine.done(["cp", f"{folder}/.", f"{self.name}:{place}"])

    def file(self, path):
        """The bytes of a file; None if there is none. Links are not followed."""
        code, said, _ = self.engine.ran(["cp", f"{self.name}:{path}", "-"], ENGINE_SECONDS, TAR_BYTES_MAX)
        if code != 0:
            return None
        if said.left_out:
            raise ContainerFault(f"`{path}` of the container has more than {TAR_BYTES_MAX} bytes")
        try:
            with tarfile.open(fileobj=io.BytesIO(bytes(said.head + said.tail))) as archive:
                first = archive.next()
                opened = archive.extractfile(first) if first is not None and first.isreg() else None
                return opened and opened.read()
        except tarfile.TarError as error:
            raise ContainerFault(f"`{path}` of the container cannot be read: {error}") from None

    def close(self):
        name, self.name = self.name, None
        if name is not None:
            self.engine.remove([name])

    def __del__(self):
        try:
            self.close()
        except Exception:
            pass  # The interpreter ends; the next process removes what is left.


def one_at_a_time(name):
    """A lock that processes of this machine hold one after another; it ends with its process, or when it is closed."""
    path = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}.lock")
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file
