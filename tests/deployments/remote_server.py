"""A server on loopback that answers, hangs and breaks as a test tells it: for engines whose servers run elsewhere."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "org/remote"
SSE = "text/event-stream"


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]  # by names in lower case
    body: bytes


class Peer:
    """The connection that a request came on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(
        self, body: bytes, status: int = 200, media_type: str = "application/json", headers: str = ""
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {media_type}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        await self.raw(head.encode() + body)

    async def begin(self, media_type: str = SSE) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.raw(head.encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def stream(self, *chunks: bytes) -> None:
        await self.begin()
        for chunk in chunks:
            await self.chunk(chunk)
            await asyncio.sleep(0)
        await self.end()

    def cut(self) -> None:
        self._writer.transport.abort()

    async def left(self) -> None:
        """Returns when the client has closed the connection."""
        with suppress(ConnectionError):
            assert await self._reader.read() == b""


Answer = Callable[[Received, Peer], Awaitable[None]]


async def ok(_: Received, peer: Peer) -> None:
    await peer.answer(b'{"model":"%s"}' % MODEL.encode())


@dataclass
class Remote:
    answer: Answer = ok  # to POST
    health: int = 200
    silent: bool = False  # takes every request and answers none
    models: tuple[int, Any] = (200, {"object": "list", "data": [{"id": MODEL}]})
    metrics: bytes | None = None
    received: list[Received] = field(default_factory=list)
    checks: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**20, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Nothing listens, and every connection is cut."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._connections):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        peer = Peer(reader, writer)
        try:
            while (received := await _receive(reader)) is not None:
                await self._respond(received, peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _respond(self, received: Received, peer: Peer) -> None:
        if self.silent:
            await peer.left()
        elif received.method == "POST":
            self.received.append(received)
            await self.answer(received, peer)
        elif received.path == "/health":
            self.checks += 1
            await peer.answer(b"", self.health)
        elif received.path == "/v1/models":
            status, document = self.models
            await peer.answer(json.dumps(document).encode(), status)
        elif received.path.endswith("metrics") and self.metrics is not None:
            await peer.answer(self.metrics, media_type="text/plain")
        else:
            await peer.answer(b'{"detail":"Not Found"}', 404)


async def _receive(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, body)


@asynccontextmanager
async def remotes(*answers: Answer) -> AsyncGenerator[list[Remote]]:
    """A server for each answer."""
    there = [Remote(answer) for answer in answers]
    for remote in there:
        await remote.start()
    try:
        yield there
    finally:
        for remote in there:
            await remote.stop()
