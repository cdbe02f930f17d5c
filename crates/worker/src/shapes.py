"""The forms that an environment may have, made into one.

An object of each class here plays one episode at a time: `reset(seed, prompt, row)` returns messages, `step(response, calls)`
returns (messages, reward, done), and where `scores_at_end`, `end()` returns the reward of the whole episode. `tools` are the
functions that the model may call, as JSON schemas. `prompt` and `row` are what the row of an episode has for it, or None.
"""
import asyncio
import inspect
import json
import types
import typing

REPLY_BYTES_MAX = 1 << 20
# Characters of one tool's result. Tokens between two turns have their own, lower limit.
RESULT_CHARS_MAX = 1 << 16


class Plain:
    """A class with `reset(seed)` and `step(response)`."""

    tools, scores_at_end = [], False

    def __init__(self, environment):
        self.environment = environment

    def reset(self, seed, prompt, row):
        return self.environment.reset(seed)

    def step(self, response, calls):
        return self.environment.step(response)


class Gymnasium:
    """A `gymnasium.Env` whose observations and actions are text."""

    tools, scores_at_end = [], False

    def __init__(self, environment):
        self.environment = environment
        for name in ("observation_space", "action_space"):
            space = getattr(environment, name)
            if type(space).__name__ != "Text":
                raise TypeError(f"`{name}` is {space!r:.80}: only Text spaces are played in words")

    def reset(self, seed, prompt, row):
        observation, _ = self.environment.reset(seed=seed)
        return observation

    def step(self, response, calls):
        observation, reward, terminated, truncated, _ = self.environment.step(response)
        done = bool(terminated or truncated)
        return (None if done else observation), reward, done


class Tools:
    """A class whose public methods are tools, as TRL's environments are: `reset(**row)`, `get_reward()`."""

    scores_at_end = True

    def __init__(self, environment, name, functions, servers):
        self.environment, self.servers = environment, servers
        functions = with_servers(functions, servers)
        # Alphabetical, as TRL lists them in the prompt, after functions of no class.
        members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
        methods = {
            name: getattr(environment, name)
            for name, _ in members
            if name not in ("reset", "get_reward") and not name.startswith("_")
        }
        for taken in sorted(methods.keys() & functions.keys()):
            raise LookupError(f"two tools are called `{taken}`: a method of `{name}`, and a function of environment.tools")
        self.functions = {**functions, **methods}
        self.tools = schemas_of(self.functions, servers)
        self.takes = keywords_of(environment.reset)

    def reset(self, seed, prompt, row):
        self.servers.begin()
        row = {"seed": seed} if row is None else row
        said = messages_of(prompt)
        if self.takes is not None:
            row = {name: value for name, value in row.items() if name in self.takes}
        observation = settled(self.environment.reset(**row))
        if observation is None:
            return said
        if not isinstance(observation, str):
            raise TypeError(f"reset returns a string or None, not {observation!r:.80}")
        if said and said[-1].get("role") == "user":
            said[-1]["content"] += observation
        else:
            said.append({"role": "user", "content": observation})
        return said

    def step(self, response, calls):
        return [called(self.functions, **call) for call in calls], 0.0, not calls

    def end(self):
        get_reward = getattr(self.environment, "get_reward", None)
        return settled(get_reward()) if get_reward else self.environment.reward


class Functions:
    """Functions of no class as tools, as TRL's `tools` are: a row's `prompt` begins an episode, rewards of the run grade it."""

    scores_at_end = False

    def __init__(self, functions, servers):
        self.functions, self.servers = with_servers(functions, servers), servers
        self.tools = schemas_of(self.functions, servers)

    def reset(self, seed, prompt, row):
        self.servers.begin()
        return messages_of(prompt)

    def step(self, response, calls):
        return [called(self.functions, **call) for call in calls], 0.0, not calls


def with_servers(functions, servers):
    """Functions of files and of servers, by their names."""
    for taken in sorted(functions.keys() & servers.functions.keys()):
        raise LookupError(f"two tools are called `{taken}`: a function of environment.tools, and one of a server there")
    return {**functions, **servers.functions}


def schemas_of(functions, servers):
    """The schemas of functions; a server describes its own."""
    of_servers = {tool["function"]["name"]: tool for tool in servers.tools}
    return [of_servers.get(name) or schema(function) for name, function in functions.items()]


def messages_of(prompt):
    """The messages that a row begins with."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt or []]


def called(functions, name, arguments):
    """The message with the result of a call; an error is a result too."""
    try:
        if name not in functions:
            raise ValueError(f"Tool {name} not found.")
        result = settled(functions[name](**arguments))
    except (MemoryError, ServerFault):
        raise
    except Exception as error:
        result = {"error": str(error)}
    if holds_image(result):
        text, files = told(f"the tool `{name}`", result)
        return {"role": "tool", "content": text, "files": files}
    return {"role": "tool", "content": str(result)[:RESULT_CHARS_MAX]}


def light_threads():
    """Makes the threads of many sessions fit a worker's limit, which counts addresses: a client starts two for each session,
    by default of 8 MiB each, and the C library gives them heaps of their own."""
    import ctypes
    import threading

    threading.stack_size(1 << 19)
    try:
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
    except (OSError, AttributeError):
        pass  # Another C library, with one heap.


class Session:
    """A session with a server of OpenEnv, over its WebSocket."""

    def __init__(self, url, timeout):
        light_threads()
        from websockets.sync.client import connect

        for web, socket in (("http://", "ws://"), ("https://", "wss://")):
            if url.startswith(web):
                url = socket + url[len(web):]
        url = url.rstrip("/")
        self.timeout = timeout
        address = url if url.endswith("/ws") else url + "/ws"
        self.opened = connect(address, max_size=REPLY_BYTES_MAX, open_timeout=timeout)
        self.socket = self.opened.__enter__()

    def ask(self, kind, data):
        """The server's (observation, reward, done)."""
        self.socket.send(json.dumps({"type": kind, "data": data}))
        reply = json.loads(self.socket.recv(timeout=self.timeout))
        data = reply.get("data", {})
        if reply.get("type") == "error":
            raise RuntimeError(f"the server refused `{kind}`: {data.get('message', data)} ({data.get('code', 'no code')})")
        reward = data.get("reward")
        return data.get("observation", {}), 0.0 if reward is None else reward, bool(data.get("done", False))


class OpenEnv:
    """A server of OpenEnv: its tools where it has some, else one key of its actions and observations."""

    scores_at_end = False

    def __init__(self, session, action, observation):
        self.session, self.action, self.observation = session, action, observation
        self.session.ask("reset", {})
        try:
            listed = self.session.ask("step", {"type": "list_tools"})[0].get("tools", [])
        except RuntimeError:  # It knows no such action, and has no tools.
            listed = []
        keys = ("input_schema", "inputSchema")
        self.tools = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": next((tool[key] for key in keys if key in tool), {"type": "object", "properties": {}}),
                },
            }
            for tool in listed
        ]

    def reset(self, seed, prompt, row):
        return self.words(self.session.ask("reset", {"seed": seed})[0])

    def step(self, response, calls):
        if not self.tools:
            observation, reward, done = self.session.ask("step", {self.action: response})
            return (None if done else self.words(observation)), reward, done
        said, reward, done = [], 0.0, not calls
        for call in calls:
            if not done:
                action = {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}
                observation, more, done = self.session.ask("step", action)
                refuse_image(f"the tool `{call['name']}`", observation.get("result"))
                said.append({"role": "tool", "content": result_text(observation)})
                reward += more
        return (None if done else said), reward, done

    def words(self, observation):
        if self.observation is not None:
            if self.observation not in observation:
                raise KeyError(f"no `{self.observation}` in the observation, which has {', '.join(observation)}")
            found = observation[self.observation]
            return found if isinstance(found, str) else json.dumps(found)
        shown = {key: value for key, value in observation.items() if key not in ("done", "reward", "metadata")}
        texts = [value for value in shown.values() if isinstance(value, str)]
        if len(texts) == 1:
            return texts[0]
        return json.dumps(shown) if shown else "Begin."


def result_text(observation):
    """The text of a tool's result: what it returned, or its error."""
    if observation.get("error"):
        return json.dumps({"error": observation["error"]})
    result = observation.get("result", observation)
    if isinstance(result, dict) and "data" in result:
        result = result["data"]
    return result if isinstance(result, str) else json.dumps(result)


def settled(result):
    """The value of a call, which may be a coroutine."""
    if not inspect.isawaitable(result):
        return result

    async def wait():
        return await result

    return asyncio.run(wait())


def keywords_of(function):
    """The keywords that a function names, or None if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def type_schema(hint):
    """The JSON schema of a type hint, in the form that transformers gives it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [type_schema(kind) for kind in inner if kind is not type(None)]
        if len(kinds) == 1:
            found = kinds[0]
        elif all(set(kind) == {"type"} and isinstance(kind["type"], str) for kind in kinds):
            found = {"type": sorted(kind["type"] for kind in kinds)}
        else:
            found = {"anyOf": kinds}
        return {**found, "nullable": True} if type(None) in inner else found
    if origin is typing.Literal:
        kinds = sorted({NAMES[type(value)] for value in inner})
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(inner)}
    if origin is list or hint is list:
        return {"type": "array", **({"items": type_schema(inner[0])} if inner else {})}
    if origin is dict or hint is dict:
        of_values = {"additionalProperties": type_schema(inner[1])} if len(inner) == 2 else {}
        return {"type": "object", **of_values}
    return {"type": NAMES[hint]} if hint in NAMES else {}


def docs_of(function):
    """What the docstring says of a function, of its arguments by name, and of what it returns."""
    words, of_arguments, of_result, part, name = [], {}, [], None, None
    for line in (inspect.getdoc(function) or "").splitlines():
        bare = line.strip()
        if bare in ("Args:", "Arguments:", "Parameters:", "Returns:", "Raises:", "Example:", "Examples:", "Yields:", "Note:"):
            part, name = bare[:-1], None
        elif part is None:
            words.append(line)
        elif part in ("Args", "Arguments", "Parameters") and bare:
            before, colon, after = bare.partition(":")
            first = before.split(" ")[0].split("(")[0]
            if colon and first.isidentifier() and (before == first or before[len(first):].lstrip().startswith("(")):
                name = first
                of_arguments[name] = after.strip()
            elif name:
                of_arguments[name] += " " + bare
        elif part == "Returns" and bare:
            of_result.append(bare)
    return "\n".join(words).strip(), of_arguments, " ".join(of_result)


def schema(function):
    """A function as a tool: its name, docstring and type hints."""
    about, of_arguments, of_result = docs_of(function)
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        found = type_schema(hints.get(name))
        if name in of_arguments:
            found["description"] = of_arguments[name]
        properties[name] = found
        if parameter.default is parameter.empty:
            required.append(name)
    parameters = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    made = {"name": function.__name__, "description": about, "parameters": parameters}
    if "return" in hints:
        result = type_schema(hints["return"])
        made["return"] = {**result, "description": of_result} if of_result else result
    return {"type": "function", "function": made}


MODULES = {}


def module_of(file):
    """The module in a file, which is loaded once."""
    if file not in MODULES:
        MODULES[file] = load_file(file)
    return MODULES[file]


def read_functions(places):
    """The functions of `[file, name]` pairs, by the names under which a model calls them."""
    functions, found_at = {}, {}
    for file, name in places:
        module = module_of(file)
        function = getattr(module, name, None)
        if not inspect.isfunction(function):
            known = [k for k, v in vars(module).items() if inspect.isfunction(v) and not k.startswith("_")]
            what = f"`{name}` of `{file}` is a {type(function).__name__}" if function is not None else f"`{file}` has no `{name}`"
            raise LookupError(f"{what}, and a tool is a function; it has: {', '.join(known) or 'none'}")
        check_described(function, name)
        if function.__name__ in functions:
            other = found_at[function.__name__]
            raise LookupError(f"two tools are called `{function.__name__}`: `{name}` of `{file}`, and `{other[1]}` of `{other[0]}`")
        functions[function.__name__], found_at[function.__name__] = function, (file, name)
    return functions


def check_described(function, name):
    """Refuses a function that a model cannot be told about; transformers refuses the same ones."""
    if function.__name__ == "<lambda>":
        raise TypeError(f"`{name}` is a lambda, which has neither a name nor type hints: write it with `def`")
    words, of_arguments, _ = docs_of(function)
    if not words and not of_arguments:
        raise TypeError(f"the tool `{name}` has no docstring, which tells the model what it is for")
    hints = typing.get_type_hints(function)
    for argument, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the argument `{argument}` of the tool `{name}` is passed by its place, and a model passes by name")
        if argument not in hints:
            raise TypeError(f"the argument `{argument}` of the tool `{name}` has no type hint")
        if argument not in of_arguments:
            raise TypeError(f"the docstring of the tool `{name}` does not describe its argument `{argument}`, under `Args:`")


def of_class(made, name, functions, servers):
    """A function that makes episodes of a user's class, and the first of them."""
    if isinstance(made, type) and not callable(getattr(made, "reset", None)):
        raise LookupError(f"`{name}` has no method `reset`")
    first = made()
    if not callable(getattr(first, "reset", None)):
        raise LookupError(f"`{name}` has no method `reset`")
    if hasattr(first, "action_space") and hasattr(first, "observation_space"):
        shape = Gymnasium
    elif callable(getattr(first, "get_reward", None)) or not callable(getattr(first, "step", None)):
        shape = lambda environment: Tools(environment, name, functions, servers())
        if not callable(getattr(first, "get_reward", None)) and not hasattr(first, "reward"):
            raise LookupError(f"`{name}` has no method `step`, nor `get_reward` as an environment of tools has")
    else:
        shape = Plain
    return (lambda: shape(made())), shape(first)


def open_shape(what):
    """A function that makes episodes, and the first of them; `what` is what the run file says."""
    TAKEN.update(what.get("images", {}))
    functions = read_functions(what.get("tools", []))
    # Each object has sessions of its own.
    servers = lambda: McpServers(what.get("servers", []))
    if "gymnasium" in what:
        import gymnasium

        make = lambda: Gymnasium(gymnasium.make(what["gymnasium"]))
        made = make, make()
    elif "openenv" in what:
        session = lambda: Session(what["openenv"], what["timeout"])
        make = lambda: OpenEnv(session(), what["action"], what.get("observation"))
        made = make, make()
    elif "file" not in what:
        make = lambda: Functions(functions, servers())
        made = make, make()
    else:
        module = module_of(what["file"])
        found = getattr(module, what["class"], None)
        if not callable(found):
            known = [k for k, v in vars(module).items() if isinstance(v, type)]
            raise LookupError(f"`{what['file']}` has no class `{what['class']}`; it has: {', '.join(known) or 'none'}")
        made = of_class(found, what["class"], functions, servers)
    make, first = made
    if what.get("has_rows") and not isinstance(first, (Tools, Functions)):
        raise TypeError("environment.rows are for a class whose methods are tools: this one has another form")
    if (functions or what.get("servers")) and not isinstance(first, (Tools, Functions)):
        raise TypeError("environment.tools are for a class whose methods are tools: this one has another form")
    return make, first


