"""A replica's end of the token plane: connections to the ingress processes that ask it, one each."""

import asyncio
import json
import logging
import socket
from typing import Any

from deployments.plane import greeting
from deployments.plane.address import Address
from deployments.plane.frames import HEADER, MAX_PAYLOAD, WINDOW, Decoder, FrameError, Kind, credit_of
from deployments.wire import Head

logger = logging.getLogger("ray.serve")

CONNECT_S = 2.0  # for a connection, greeting included
RETRY_S = 30.0  # before an ingress that couldn't be reached is tried again
PIECE = min(MAX_PAYLOAD, WINDOW)


class ReaderGoneError(ConnectionError):
    """Nobody reads this stream any more."""


class Lines:
    """The connections of this process."""

    def __init__(self, node: str) -> None:
        """`node`: Ray's id of the node that this process is on."""
        self._node = node
        self._lines: dict[str, Line] = {}
        self._connecting: dict[str, asyncio.Task[Line | None]] = {}
        self._unreachable: dict[str, float] = {}  # until when, by the loop's clock

    async def to(self, address: Address) -> "Line | None":
        """The connection to an ingress process; None where there can't be one."""
        hub = address["hub"]
        line = self._lines.get(hub)
        if line is not None and line.open:
            return line
        if self._unreachable.get(hub, 0) > asyncio.get_running_loop().time():
            return None
        if hub not in self._connecting:
            task = self._connecting[hub] = asyncio.create_task(self._connect(address))
            task.add_done_callback(lambda _: self._connecting.pop(hub, None))
        return await asyncio.shield(self._connecting[hub])

    async def _connect(self, address: Address) -> "Line | None":
        loop = asyncio.get_running_loop()
        hub = address["hub"]
        ways = ["local", "distant"] if address["node"] == self._node else ["distant"]
        for way in ways:
            line = Line(address["key"])
            try:
                async with asyncio.timeout(CONNECT_S):
                    if way == "local":
                        sock = await _abstract(loop, address["local"])
                        await loop.create_unix_connection(lambda line=line: line, sock=sock)  # type: ignore[misc]
                    else:
                        await loop.create_connection(lambda line=line: line, address["host"], address["port"])  # type: ignore[misc]
                    await line.greeted
            except (OSError, TimeoutError) as error:
                line.abort()
                logger.warning("no %s connection to the ingress: %r", way, error)
                continue
            self._lines = {name: one for name, one in self._lines.items() if one.open} | {hub: line}
            self._unreachable.pop(hub, None)
            return line
        self._unreachable[hub] = loop.time() + RETRY_S
        return None

    def stop(self) -> None:
        for line in self._lines.values():
            line.abort()


async def _abstract(loop: asyncio.AbstractEventLoop, name: str) -> socket.socket:
    """A connection to an abstract Unix socket, which uvloop doesn't make by its name."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, f"\0{name}")
    except BaseException:
        sock.close()
        raise
    return sock


class Line(asyncio.Protocol):
    """One connection. Frames that are made in one turn of the event loop leave in one write."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self._nonce = greeting.nonce()
        self._theirs = b""
        self._received = b""  # of the greeting
        self._decoder: Decoder | None = None
        self._transport: Any = None
        self._outgoing: list[bytes] = []
        self._outlets: dict[bytes, Outlet] = {}
        self.open = False
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._decoder is None:
            data = self._greet(data)
        if not data or self._decoder is None:
            return
        try:
            for kind, ticket, payload in self._decoder.feed(data):
                outlet = self._outlets.get(ticket)
                if outlet is not None:
                    outlet.told(kind, payload)
        except FrameError as error:
            logger.error("the connection to an ingress is closed: %s", error)
            self.abort()

    def _greet(self, data: bytes) -> bytes:
        """What comes after the greeting."""
        self._received += data
        if not self._theirs and len(self._received) >= greeting.NONCE_SIZE:
            self._theirs = self._received[: greeting.NONCE_SIZE]
            self._received = self._received[greeting.NONCE_SIZE :]
            self._transport.write(greeting.answer(self._key, self._theirs, self._nonce))
        if not self._theirs or len(self._received) < greeting.PROOF_SIZE:
            return b""
        confirmed, rest = self._received[: greeting.PROOF_SIZE], self._received[greeting.PROOF_SIZE :]
        if not greeting.is_confirmation(self._key, self._theirs, self._nonce, confirmed):
            self._fail(ConnectionRefusedError("it doesn't know the key"))
            self.abort()
            return b""
        self._decoder = Decoder()
        self.open = True
        if not self.greeted.done():
            self.greeted.set_result(None)
        return rest

    def _fail(self, error: OSError) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()  # nobody may be waiting any more

    def outlet(self, ticket: bytes) -> "Outlet":
        """The way for one answer; `close` it in the end."""
        outlet = self._outlets[ticket] = Outlet(self, ticket)
        return outlet

    def forget(self, ticket: bytes) -> None:
        self._outlets.pop(ticket, None)

    def send(self, kind: Kind, ticket: bytes, payload: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(HEADER.pack(len(payload), kind, ticket))
        if payload:
            self._outgoing.append(payload)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self.open:
            self._transport.write(b"".join(outgoing))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        for outlet in self._outlets.values():
            outlet.wake()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._fail(ConnectionResetError("closed while it was greeted"))
        for outlet in self._outlets.values():
            outlet.gone()


class Outlet:
    """One answer's way to its reader."""

    def __init__(self, line: Line, ticket: bytes) -> None:
        self._line = line
        self._ticket = ticket
        self._credit = WINDOW  # bytes that may still be sent
        self._gone = not line.open
        self._waiter: asyncio.Future[None] | None = None

    def head(self, head: Head) -> None:
        self._line.send(Kind.HEAD, self._ticket, json.dumps(head).encode())

    @property
    def full(self) -> bool:
        """Whether the reader, or the connection, is so far behind that nothing more may be sent now."""
        return self._credit <= 0 or self._line.paused or self._gone

    async def write(self, data: bytes) -> None:
        """Send a chunk, once there is room for it.

        Raises:
            ReaderGoneError: nobody reads it.
        """
        if len(data) <= self._credit and len(data) <= PIECE and not self.full:
            self._credit -= len(data)
            self._line.send(Kind.DATA, self._ticket, data)
            return
        view = memoryview(data)
        while view:
            while self.full:
                await self._wait()
            size = min(len(view), self._credit, PIECE)
            self._credit -= size
            self._line.send(Kind.DATA, self._ticket, bytes(view[:size]))
            view = view[size:]

    async def _wait(self) -> None:
        if self._gone:
            raise ReaderGoneError("nobody reads this stream any more")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def end(self) -> None:
        self._line.send(Kind.END, self._ticket, b"")

    def broken(self) -> None:
        """The engine failed; what was sent is not the whole answer."""
        self._line.send(Kind.BROKEN, self._ticket, b"")

    def told(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.CREDIT:
                self._credit += credit_of(payload)
                self.wake()
            case Kind.CLOSE:
                self.gone()
            case _:
                raise FrameError(f"an unexpected {kind.name}")

    def gone(self) -> None:
        self._gone = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._line.forget(self._ticket)
