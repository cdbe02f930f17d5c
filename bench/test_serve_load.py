"""Tests of serve_load.py against a server that answers as `plimsoll serve` does, and as it must not."""

import argparse
import asyncio
import unittest

import serve_load

EVENT = b'data: {"choices":[{"index":0,"text":"1"}]}\n\n'


async def answer(reader, writer, body):
    """Reads a request, and sends a head and this body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(line for line in head.splitlines() if line.startswith("content-length:"))
    await reader.readexactly(int(length.split(":")[1]))
    writer.write(body)
    await writer.drain()
    writer.close()


async def one(body, hang_up=0.0):
    server = await asyncio.start_server(lambda r, w: answer(r, w, body), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    args, counts = argparse.Namespace(tokens=4, hang_up=hang_up), serve_load.Counts()
    async with server:
        await serve_load.one_stream("127.0.0.1", port, args, serve_load.random.Random(1), counts)
    return counts


class ServeLoad(unittest.TestCase):
    def check(self, body, hang_up=0.0, **expect):
        counts = asyncio.run(one(b"HTTP/1.1 " + body, hang_up))
        found = {name: getattr(counts, name) for name in ("done", "refused", "hung_up", "lost")}
        self.assertEqual(found, {"done": 0, "refused": 0, "hung_up": 0, "lost": 0, **expect})

    def test_every_request_is_counted_once(self):
        self.check(b"200 OK\r\n\r\n" + EVENT + b"data: [DONE]\n\n", done=1)
        self.check(b"429 Too Many Requests\r\n\r\n{}", refused=1)
        self.check(b"200 OK\r\n\r\n" + EVENT, lost=1)
        self.check(b"200 OK\r\n\r\n" + b'data: {"error":{}}\n\n', lost=1)
        self.check(b"200 OK\r\n\r\n" + EVENT + EVENT + b"data: [DONE]\n\n", hang_up=1.0, hung_up=1)

    def test_percentiles_are_of_sorted_values(self):
        values = [3.0, 1.0, 2.0, 5.0, 4.0]
        self.assertEqual([serve_load.percentile(values, share) for share in (0, 0.5, 0.99)], [1.0, 3.0, 5.0])


if __name__ == "__main__":
    unittest.main()
