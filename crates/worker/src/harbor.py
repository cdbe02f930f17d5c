"""Tasks in harbor's format: a folder with `task.toml`, `instruction.md`, `environment/` with a Dockerfile, and `tests/` with
`test.sh`, which writes a reward. An episode is a container in which the model runs commands; then the tests are copied in.

The format is that of harbor 0.26 (`schema_version` 1.0 to 1.4). What a task asks for and this file has not is refused by name before a
run, since without it the reward would mean something else.
"""
import math
import re

TASKS_MAX = 1 << 14
TASK_BYTES_MAX = 1 << 20
# Longest time that a task may give to its agent, its tests or its build, in seconds.
TASK_SECONDS_MAX = 24 * 3600
# Most bytes of a command, which is one argument of a program.
COMMAND_BYTES_MAX = 100_000
# Share of the times of a step and of a reset that commands of a turn and the start of a container may take.
SHARE = 0.75
# Lines of `test-stdout.txt` for messages.
TEST_WORDS = 400
REWARDS = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"


class TaskRefused(Exception):
    """A task that cannot be read, or that asks for what there is not."""


class HarborTask:
    """A task as its files say it."""

    def __init__(self, folder, limits):
        self.folder, self.name = folder, os.path.basename(os.path.abspath(folder))
        config = self.read_toml()
        of, agent, verifier = (self.section(config, name) for name in ("environment", "agent", "verifier"))
        self.check_built(config, of, agent, verifier, limits)
        self.agent_seconds = self.seconds(agent, "timeout_sec", TASK_SECONDS_MAX)
        self.verifier_seconds = self.seconds(verifier, "timeout_sec", 600.0)
        self.build_seconds = self.seconds(of, "build_timeout_sec", 600.0)
        self.image = of.get("docker_image")
        self.agent_flags = self.exec_flags(agent, {})
        self.verifier_flags = self.exec_flags(verifier, verifier.get("env", {}))
        self.health = of.get("healthcheck")
        if not self.image and not os.path.isfile(self.path("environment", "Dockerfile")):
            self.refuse("there is neither `environment.docker_image` in task.toml nor environment/Dockerfile")
        if not os.path.isfile(self.path("tests", "test.sh")):
            self.refuse("there is no tests/test.sh")
        memory = memory_mb(of, limits["memory_mb"], self.refuse)
        self.flags = ["--memory", f"{memory}m", "--pids-limit", str(PIDS_MAX), *self.run_flags(of)]
        self.instruction = self.text("instruction.md")
        if not self.instruction.strip():
            self.refuse("instruction.md is empty")

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def refuse(self, what):
        raise TaskRefused(f"task `{self.name}`: {what}")

    def text(self, name):
        try:
            with open(self.path(name), "rb") as file:
                data = file.read(TASK_BYTES_MAX + 1)
            if len(data) > TASK_BYTES_MAX:
                self.refuse(f"{name} has more than {TASK_BYTES_MAX} bytes")
            return data.decode()
        except (OSError, UnicodeDecodeError) as error:
            return self.refuse(f"{name} cannot be read: {error}")

    def read_toml(self):
        text = self.text("task.toml")
        try:
            return toml_reader().loads(text)
        except ValueError as error:
            return self.refuse(f"task.toml is no TOML: {error}")

    def section(self, config, name):
        found = config.get(name, {})
        return found if isinstance(found, dict) else self.refuse(f"`{name}` in task.toml is no table")

    def seconds(self, section, key, default):
        found = section.get(key)
        found = default if found is None else found
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found <= TASK_SECONDS_MAX:
            self.refuse(f"`{key} = {found!r}`; it takes seconds above 0, up to {TASK_SECONDS_MAX}")
        return float(found)

    def check_built(self, config, of, agent, verifier, limits):
        """Refuses what is not built."""
        asks = [
            ("steps", config.get("steps")),
            ("environment.os", str(of.get("os", "linux")).lower() != "linux"),
            ("environment.gpus", of.get("gpus")),
            ("environment.tpu", of.get("tpu")),
            ("environment.mcp_servers", of.get("mcp_servers")),
            ("verifier.environment", verifier.get("environment")),
            ("verifier.environment_mode", verifier.get("environment_mode", "shared") != "shared"),
            ("verifier.collect", verifier.get("collect")),
            ("trajectory.json", os.path.exists(self.path("trajectory.json"))),
        ]
        compose = [name for name in ("docker-compose.yaml", "docker-compose.yml") if os.path.exists(self.path("environment", name))]
        asks += [(f"environment/{name}", True) for name in compose]
        for name, is_asked in asks:
            if is_asked:
                self.refuse(f"`{name}` is not built here; harbor itself runs such a task")
        mode = network_of(of)
        if mode not in ("public", "no-network"):
            self.refuse(f"`network_mode = \"{mode}\"` is not built here; it takes \"public\" and \"no-network\"")
        for name, section in (("agent", agent), ("verifier", verifier)):
            if section.get("network_mode", mode) != mode:
                self.refuse(f"`{name}.network_mode` differs from that of the environment, which is not built here")
        if mode == "public" and not limits["network"]:
            self.refuse(
                "it may use the network, as harbor's tasks may by default, and environment.network is \"deny\"\n"
                "set environment.network = \"allow\" in the run file, or network_mode = \"no-network\" in task.toml"
            )

    def variables(self, env):
        """Variables as flags; those that name a variable of this process have its value."""
        flags = []
        for name, value in env.items():
            def of_process(match):
                found = os.environ.get(match[1], match[3])
                return self.refuse(f"the variable {match[1]} is not set, and `{name}` needs it") if found is None else found

            flags += ["-e", f"{name}={re.sub(r'[$][{]([A-Za-z_][A-Za-z_0-9]*)(:-([^}]*))?[}]', of_process, str(value))}"]
        return flags

    def exec_flags(self, section, env):
        user = section.get("user")
        return [*([] if user is None else ["-u", str(user)]), *self.variables(env)]

    def run_flags(self, of):
        flags = ["--network", "none"] if network_of(of) == "no-network" else []
        if of.get("cpus"):
            flags += ["--cpus", str(of["cpus"])]
        if of.get("workdir"):
            flags += ["-w", str(of["workdir"])]
        return flags + self.variables(of.get("env", {}))

    def make_image(self, engine):
        """Pulls the image of the task or builds it, where it is not there."""
        pulls = self.image is not None
        image = self.image or f"plimsoll-harbor:{digest_of(self.path('environment'))}"
        if not engine.has_image(image):
            words = ["pull", image] if pulls else ["build", "-t", image, self.path("environment")]
            code, _, errors = engine.ran(words, self.build_seconds)
            if code != 0:
                raise ContainerFault(f"task `{self.name}`: {engine.failed(words[0], code, errors)}")
        self.image = image

    def start(self, engine, seconds):
        """A container of the task, ready for its first command."""
        container = Container(engine, self.image, self.flags, seconds)
        container.check("mkdir -p /tests /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs /logs/*")
        if self.health is not None:
            wait_healthy(container, self.health)
        return container

    def reward(self, container):
        """Runs the tests and reads what they wrote. Tests that write no reward are a fault, and so are those that take too
        long."""
        container.check(f"rm -f {' '.join(REWARDS)}")
        container.put(self.path("tests"), "/tests")
        container.check("chmod +x /tests/test.sh")
        command = "/tests/test.sh > /logs/verifier/test-stdout.txt 2>&1"
        code, said = container.exec(command, self.verifier_seconds, TEST_WORDS, self.verifier_flags)
        if code is None:
            raise ContainerFault(f"task `{self.name}`: its tests took longer than {self.verifier_seconds:g} s")
        for path in REWARDS:
            data = container.file(path)
            if data is not None:
                return reward_of(self.name, path, data)
        words = (container.file("/logs/verifier/test-stdout.txt") or b"")[-TEST_WORDS:].decode(errors="replace")
        raise ContainerFault(f"task `{self.name}`: its tests ended with status {code} and wrote no reward: {words.strip() or said.strip()}")


def toml_reader():
    try:
        import tomllib

        return tomllib
    except ImportError:
        pass
    try:
        import tomli

        return tomli
    except ImportError:
        raise TaskRefused("task.toml needs Python 3.11, or the package `tomli`: environment.python names another interpreter") from None


def network_of(of):
    """The network of a task; `allow_internet` is what it was called before."""
    if "network_mode" in of or of.get("allow_internet") is None:
        return of.get("network_mode", "public")
    return "public" if of["allow_internet"] else "no-network"


def memory_mb(of, most, refuse):
    """The limit on the memory of a task in MiB: that of its file, else the largest."""
    found = of.get("memory_mb")
    if found is None and of.get("memory") is not None:
        size = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)([GMK])", str(of["memory"]).strip().upper())
        found = int(float(size[1]) * {"G": 1024, "M": 1, "K": 1 / 1024}[size[2]]) if size else of["memory"]
    if found is None:
        return most
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        refuse(f"`memory_mb = {found!r}`; it takes whole MiB above 0")
    if found > most:
        refuse(f"it asks for {found} MiB of memory, and environment.container_memory allows {most} MiB\nraise environment.container_memory")
    return found


def wait_healthy(container, health):
    """Waits until a container's own check succeeds."""
    until = time.monotonic() + float(health.get("start_period_sec", 0.0))
    left = int(health.get("retries", 3))
    while container.exec(health["command"], float(health.get("timeout_sec", 30.0)), 1024)[0] != 0:
        is_starting = time.monotonic() < until
        left -= not is_starting
        if left < 1:
            raise ContainerFault(f"the container is not healthy: `{health['command']}` fails")
        time.sleep(float(health.get("start_interval_sec" if is_starting else "interval_sec", 5.0)))


def reward_of(task, path, data):
    """The reward in a file of tests: a number, or an object whose `reward` is one."""
    try:
        found = json.loads(data) if path.endswith(".json") else float(data.decode())
    except ValueError:
        raise ContainerFault(f"task `{task}`: {path} has no number: {data[:80]!r}") from None
    if isinstance(found, dict):
        if "reward" not in found and len(found) != 1:
            raise ContainerFault(f"task `{task}`: {path} has no `reward`, but {', '.join(map(str, found))}")
        found = found["reward"] if "reward" in found else next(iter(found.values()))
    if not isinstance(found, (int, float)) or not math.isfinite(found):
        raise ContainerFault(f"task `{task}`: {path} has {found!r:.80}, which is no finite number")
    return float(found)


def digest_of(folder):
    """A word for the contents of a folder."""
    digest = hashlib.sha256()
    for place, folders, names in sorted(os.walk(folder)):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            digest.update(f"{os.path.relpath(path, folder)}\0{os.lstat(path).st_mode:o}\0".encode(errors="surrogateescape"))
            if os.path.islink(path):
                digest.update(os.readlink(path).encode(errors="surrogateescape"))
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            digest.update(b"\0")
    return digest.hexdigest()[:32]


class HarborTasks:
    """The tasks of folders and the engine that runs them."""

    def __init__(self, what):
        self.step_seconds, self.reset_seconds = SHARE * what["step_seconds"], SHARE * what["reset_seconds"]
        self.output_bytes = what["output_bytes"]
        self.of = {folder: [HarborTask(task, what) for task in task_folders(folder)] for folder in what["folders"]}
        self.engine = Engine(what["engine"])
        tasks = [task for tasks in self.of.values() for task in tasks]
        if tasks:
            # One process makes the images, and the others find them.
            with one_at_a_time("plimsoll-harbor"):
                for task in tasks:
                    task.make_image(self.engine)


def task_folders(folder):
    """The tasks in a folder, which may be one itself."""
    if os.path.isfile(os.path.join(folder, "task.toml")):
        return [folder]
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise TaskRefused(f"`{folder}` cannot be read: {error}") from None
    found = [os.path.join(folder, name) for name in names if os.path.isfile(os.path.join(folder, name, "task.toml"))]
    if not found or len(found) > TASKS_MAX:
        raise TaskRefused(f"`{folder}` has {len(found)} folders with a task.toml; it takes 1 to {TASKS_MAX}")
    return found


class Harbor:
    """An episode: the container of a task, with a shell for the model."""

    scores_at_end = True

    def __init__(self, tasks):
        self.tasks_of, self.task, self.container, self.left = tasks, None, None, 0.0
        self.tools = [{"type": "function", "function": {
            "name": "bash",
            "description": (
                "Runs a command in the container of the task. Each call is a new shell in the working directory: files stay, variables "
                "and the folder of `cd` do not. Returns what the command prints, and its exit code if that is not 0. A command may take "
                f"{tasks.step_seconds:g} seconds; what goes on for longer is started in the background with its output in a file."
            ),
            "parameters": {"type": "object", "properties": {
                "command": {"type": "string", "description": "The command, as bash reads it."},
            }, "required": ["command"]},
        }}]

    def reset(self, seed, prompt, row):
        self.close()
        tasks = self.tasks_of.of[row["tasks"]]
        self.task = tasks[seed % len(tasks)]
        self.container = self.task.start(self.tasks_of.engine, self.tasks_of.reset_seconds)
        self.left = self.task.agent_seconds
        return self.task.instruction

    def step(self, response, calls):
        until = time.monotonic() + self.tasks_of.step_seconds
        said = [{"role": "tool", "content": self.call(call["name"], call["arguments"], until)} for call in calls]
        # What the tests find of an agent whose time is over is its reward, as harbor has it.
        return said, 0.0, not calls or self.left <= 0

    def call(self, name, arguments, until):
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if name != "bash":
            return str({"error": f"Tool {name} not found."})
        if not isinstance(command, str) or "\0" in command or len(command.encode(errors="replace")) > COMMAND_BYTES_MAX:
            return str({"error": f"`command` is a text of up to {COMMAND_BYTES_MAX} bytes"})
        began = time.monotonic()
        seconds = min(until - began, self.left)
        if seconds <= 0:
            return "(not run: no time is left)"
        command = command.encode(errors="replace").decode()
        code, text = self.container.exec(command, seconds, self.tasks_of.output_bytes, self.task.agent_flags)
        self.left -= time.monotonic() - began
        if code is None:
            return f"(killed after {seconds:.0f} s)\n{text}"
        return text if code == 0 and text else f"(exit code {code})\n{text}".rstrip("\n")

    def end(self):
        try:
            return self.task.reward(self.container)
        finally:
            self.close()

    def close(self):
        container, self.container = self.container, None
        if container is not None:
            container.close()


def open_shape(what):
    """A function that makes episodes, and the first of them; `what` is what the run file says."""
    tasks = HarborTasks(what["harbor"])
    return (lambda: Harbor(tasks)), Harbor(tasks)
