"""Tools of servers that speak the Model Context Protocol: programs that are started here, over their pipes, or servers at an
address, over HTTP. Each episode has a session of its own with every server, so that none sees what another did.

What the server refuses of a call is a result, which the model reads. A server that ends, that answers with no message of the
protocol, or that fails itself is a fault of the episode: `ServerFault` passes through `called`. Time is bounded by the pool.
"""
import shlex
import subprocess
import urllib.error
import urllib.request

MCP_VERSION = "2025-06-18"
# Most bytes of a message of a server: an image of an answer has 2.7 MiB as text.
MCP_MESSAGE_BYTES_MAX = 8 << 20
# Most tools of a server, and most lists that they come in.
MCP_TOOLS_MAX = 64
MCP_PAGES_MAX = 16
# Errors with which a server refuses a call: no such tool, wrong arguments.
MCP_REFUSED = (-32601, -32602)


class ServerFault(Exception):
    """A server that is gone, or that does not speak the protocol."""


class Pipes:
    """A program, which gets messages by its standard input and gives some by its standard output, a line each."""

    def __init__(self, command):
        try:
            self.program = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except (OSError, ValueError) as error:
            raise ServerFault(f"`{command}` cannot be started: {error}") from None

    def send(self, message):
        try:
            self.program.stdin.write(json.dumps(message).encode() + b"\n")
            self.program.stdin.flush()
        except OSError:
            raise self.ended() from None

    def receive(self):
        line = self.program.stdout.readline(MCP_MESSAGE_BYTES_MAX)
        if not line:
            raise self.ended()
        if not line.endswith(b"\n") and len(line) == MCP_MESSAGE_BYTES_MAX:
            raise ServerFault(f"it wrote a line of more than {MCP_MESSAGE_BYTES_MAX} bytes")
        return line

    def ended(self):
        self.program.kill()
        return ServerFault(f"it has ended, with status {self.program.wait()}")

    def close(self):
        try:
            self.program.stdin.close()
        except OSError:
            pass  # What it had not read.
        self.program.kill()
        self.program.wait()
        self.program.stdout.close()


class Posts:
    """A server at an address: a message is posted, and what it answers is one message or a stream of events."""

    def __init__(self, url):
        self.url, self.session, self.version, self.answer, self.is_stream = url, None, None, None, False

    def request(self, method, body=None):
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.session is not None:
            headers["Mcp-Session-Id"] = self.session
        if self.version is not None:
            headers["MCP-Protocol-Version"] = self.version
        asked = urllib.request.Request(self.url, data=body, headers=headers, method=method)
        try:
            return urllib.request.urlopen(asked)
        except urllib.error.HTTPError as error:
            raise ServerFault(f"it answers with status {error.code}: {error.read(200)!r}") from None
        except OSError as error:
            raise ServerFault(f"it is not reached: {error}") from None

    def send(self, message):
        answer = self.request("POST", json.dumps(message).encode())
        self.session = answer.headers.get("Mcp-Session-Id", self.session)
        if "id" not in message or "method" not in message:
            answer.close()
            return
        self.answer = answer
        self.is_stream = answer.headers.get("Content-Type", "").startswith("text/event-stream")

    def receive(self):
        try:
            return self.event() if self.is_stream else self.read(self.answer.read)
        except (OSError, ValueError) as error:
            raise ServerFault(f"its answer broke off: {error}") from None

    def read(self, read):
        data = read(MCP_MESSAGE_BYTES_MAX)
        if len(data) == MCP_MESSAGE_BYTES_MAX:
            raise ServerFault(f"it answered with more than {MCP_MESSAGE_BYTES_MAX} bytes")
        return data

    def event(self):
        data = b""
        while True:
            line = self.read(self.answer.readline)
            if not line:
                raise ServerFault("its answer ended before the result")
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            if name == b"data":
                data += value.removeprefix(b" ") + b"\n"
                if len(data) > MCP_MESSAGE_BYTES_MAX:
                    raise ServerFault(f"it sent an event of more than {MCP_MESSAGE_BYTES_MAX} bytes")
            elif not line.strip() and data.strip():
                return data

    def close(self):
        if self.session is not None:
            try:
                self.request("DELETE").close()
            except ServerFault:
                pass  # It need not be able to end a session.


class McpSession:
    """A session with a server."""

    def __init__(self, place):
        self.ids = 0
        self.wire = Posts(place) if place.startswith(("http://", "https://")) else Pipes(place)
        begun = self.ask("initialize", {
            "protocolVersion": MCP_VERSION, "capabilities": {}, "clientInfo": {"name": "plimsoll", "version": "1"},
        })
        self.wire.version = begun.get("protocolVersion", MCP_VERSION)
        self.wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method, params):
        """The result of a request. Raises `LookupError` where the server refuses it, `ServerFault` where it fails."""
        self.ids += 1
        self.wire.send({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params})
        while True:
            message = self.message()
            if "method" in message and "id" in message:
                self.wire.send(self.answer(message))
            elif message.get("id") == self.ids and "error" in message:
                error = message["error"] if isinstance(message["error"], dict) else {}
                words = f"{error.get('message', message['error'])}"
                if error.get("code") in MCP_REFUSED:
                    raise LookupError(words)
                raise ServerFault(f"`{method}` fails: {words:.500} (code {error.get('code')})")
            elif message.get("id") == self.ids and isinstance(message.get("result"), dict):
                return message["result"]

    def message(self):
        line = self.wire.receive()
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ServerFault(f"it wrote what is no message of the protocol: {line[:80]!r}")
        return message

    def answer(self, request):
        """The answer to what the server asks: that its client is there, and has nothing else."""
        if request["method"] == "ping":
            return {"jsonrpc": "2.0", "id": request["id"], "result": {}}
        return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "the client has no such method"}}

    def tools(self):
        tools, params = [], {}
        for _ in range(MCP_PAGES_MAX):
            listed = self.ask("tools/list", params)
            tools += listed.get("tools", [])
            if len(tools) > MCP_TOOLS_MAX:
                raise ServerFault(f"it has more than {MCP_TOOLS_MAX} tools")
            if not listed.get("nextCursor"):
                return tools
            params = {"cursor": listed["nextCursor"]}
        raise ServerFault(f"its tools come in more than {MCP_PAGES_MAX} lists")

    def close(self):
        self.wire.close()


class McpServers:
    """The servers of one episode, and their tools as functions."""

    def __init__(self, places):
        self.places, self.sessions, self.is_fresh = places, [], False
        self.functions, self.tools = {}, []
        self.begin()
        for index, session in enumerate(self.sessions):
            for tool in self.of_server(index, session.tools):
                self.add(index, tool)
        # Listing the tools is no use of them.
        self.is_fresh = True

    def add(self, index, tool):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise ServerFault(f"the server `{shown_place(self.places[index])}` lists a tool without a name")
        name = tool["name"]
        if name in self.functions:
            raise LookupError(f"two tools are called `{name}`: one of them of `{shown_place(self.places[index])}`")
        parameters = tool.get("inputSchema") or {"type": "object", "properties": {}}
        described = {"name": name, "description": tool.get("description") or "", "parameters": parameters}
        self.tools.append({"type": "function", "function": described})
        self.functions[name] = lambda **arguments: self.call(index, name, arguments)

    def begin(self):
        """Opens the sessions of an episode."""
        if self.is_fresh:
            return
        self.close()
        for index, place in enumerate(self.places):
            self.sessions.append(self.of_server(index, lambda: McpSession(place)))
        self.is_fresh = True

    def call(self, index, name, arguments):
        self.is_fresh = False
        session = self.sessions[index]
        result = self.of_server(index, lambda: session.ask("tools/call", {"name": name, "arguments": arguments}))
        parts = result.get("content")
        parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        told = [mcp_part(part) for part in parts]
        if not told and "structuredContent" in result:
            told = [json.dumps(result["structuredContent"])]
        has_images = any(isinstance(one, dict) for one in told)
        if result.get("isError"):
            raise RuntimeError("\n".join(one for one in told if isinstance(one, str)) or "the tool failed")
        return told if has_images else "\n".join(told)

    def of_server(self, index, work):
        """What `work` returns; a fault says whose it is."""
        try:
            return work()
        except ServerFault as fault:
            raise ServerFault(f"the server `{shown_place(self.places[index])}`: {fault}") from None

    def close(self):
        sessions, self.sessions = self.sessions, []
        for session in sessions:
            session.close()

    def __del__(self):
        self.close()


def mcp_part(part):
    """A part of a result: its text, or its image as `told` reads one."""
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "image":
        return {"type": "image", "image": f"data:{part.get('mimeType', 'image/png')};base64,{part.get('data', '')}"}
    resource = part.get("resource") if isinstance(part.get("resource"), dict) else part
    return str(resource.get("text") or resource.get("uri") or f"({kind})")


def shown_place(place):
    """A server for messages: of an address what is no secret, of a command its program."""
    if not place.startswith(("http://", "https://")):
        return place.split(" ")[0]
    scheme, rest = place.split("://", 1)
    return f"{scheme}://{rest.split('?')[0].split('@')[-1]}"
