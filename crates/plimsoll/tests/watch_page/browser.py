"""Chromium without a window, driven by its own protocol over a websocket. The standard library is enough."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

# A machine that runs other tests may need this long for what usually takes a second.
PATIENCE_S = 120


def find():
    """Where a Chromium is, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


class Socket:
    """A websocket as a client has it: text messages, masked, no extensions."""

    def __init__(self, url):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.link = socket.create_connection((name, int(port)), timeout=PATIENCE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.link.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.link.recv(4096)
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x81, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        self.link.sendall(head + mask + masked)

    def take(self, count):
        while len(self.rest) < count:
            more = self.link.recv(1 << 16)
            if not more:
                raise EOFError("the browser closed the connection")
            self.rest += more
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def receive(self):
        text = b""
        while True:
            first, size = self.take(2)
            size &= 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self.take(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self.take(8))
            part = self.take(size)
            if first & 0x0F in (0, 1):
                text += part
                if first & 0x80:
                    return text.decode()


class Browser:
    """One page. `complaints` holds whatever it wrote to its console, and every error."""

    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="plimsoll-chromium-")
        flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.profile}", "--no-first-run"]
        flags += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([path, *flags, "about:blank"], stdout=quiet, stderr=quiet)
        port_file = os.path.join(self.profile, "DevToolsActivePort")
        until = time.monotonic() + PATIENCE_S
        while not (os.path.exists(port_file) and open(port_file).read().count("\n")):
            assert self.process.poll() is None, "chromium ended as it began"
            assert time.monotonic() < until, "chromium does not begin"
            time.sleep(0.05)
        port = open(port_file).read().split("\n")[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE_S))
        page = next(page for page in pages if page["type"] == "page")
        self.socket = Socket(page["webSocketDebuggerUrl"])
        self.count, self.complaints, self.requests = 0, [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        # A page without a window has no focus, and hears of none.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.count:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.note(message)

    def note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append("dialog: " + params["message"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, expression):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, expression, what):
        """Waits until it is true in the page."""
        end = time.monotonic() + PATIENCE_S
        while not self.run(expression):
            assert time.monotonic() < end, f"{what}: {expression} is not true; the page says {self.complaints}"
            time.sleep(0.1)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'", "loading")

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 700)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path, whole=False, clip=None, kind="png"):
        params = {"format": kind, "captureBeyondViewport": bool(whole or clip)}
        if kind != "png":
            params["quality"] = 80
        if whole:
            height = self.run("document.documentElement.scrollHeight")
            width = self.run("document.documentElement.clientWidth")
            params["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        if clip:
            params["clip"] = clip
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", **params)["data"]))
