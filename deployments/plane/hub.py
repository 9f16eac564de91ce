"""The ingress's end of the token plane: it listens, and gives each stream to the request that waits for it."""

import asyncio
import json
import logging
import os
import re
import secrets
import socket
import struct
from collections import deque
from contextlib import ExitStack
from typing import Any

from deployments.plane import greeting
from deployments.plane.address import Address, ReplyTo
from deployments.plane.frames import TICKET_SIZE, WINDOW, Decoder, FrameError, Kind, credit, frame
from deployments.wire import Head

logger = logging.getLogger("ray.serve")

GREETING_S = 5.0  # for a connection to prove itself
MAX_CONNECTIONS = 4096
BACKLOG = 512
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")  # no header of HTTP has any of these


class StreamLostError(ConnectionError):
    """A stream ended before its end: the replica or its connection is gone, or its engine failed."""


class Stream:
    """One answer, as its request reads it. At most `WINDOW` bytes wait here."""

    def __init__(self, hub: "Hub", ticket: bytes) -> None:
        self._hub = hub
        self._ticket = ticket
        self.head: Head | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._taken = 0  # bytes since the last credit
        self._peer: _Peer | None = None  # which sends it
        self.ended = False
        self._last = False  # whether its last frame has come
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._late: asyncio.TimerHandle | None = None

    @property
    def reply_to(self) -> ReplyTo:
        return {"address": self._hub.address, "ticket": self._ticket}

    async def start(self) -> Head | None:
        """The head, which comes with the first bytes; None if the call came back without a stream.

        Raises:
            Exception: what `fail` was told.
        """
        while self.head is None:
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            await self._wait()
        return self.head

    async def read(self) -> bytes:
        """All that has come since the last read, once there is any; nothing at the end.

        Raises:
            StreamLostError: the stream broke.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            await self._wait()
        chunks = self._chunks
        data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._size = 0
        self._taken += len(data)
        if self._taken >= WINDOW // 2 and self._peer is not None and not self.ended:
            self._peer.send(credit(self._ticket, self._taken))
            self._taken = 0
        return data

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self, peer: "_Peer", kind: Kind, payload: bytes) -> None:
        """A frame has come.

        Raises:
            FrameError: it isn't what may come now.
        """
        if self._peer is None:
            self._peer = peer
            peer.streams.add(self)
        elif self._peer is not peer:
            raise FrameError("another connection's ticket")
        if self._last:
            raise FrameError(f"a {kind.name} after the last frame")
        match kind:
            case Kind.DATA if self.head is not None:
                self._size += len(payload)
                if self._size > WINDOW:
                    raise FrameError("more than may be on the way")
                if payload:
                    self._chunks.append(payload)
            case Kind.HEAD if self.head is None:
                self.head = _head(payload)
                return  # the first bytes come with it
            case Kind.END:
                self.ended = self._last = True
            case Kind.BROKEN:
                self._last = True
                self._error = StreamLostError("the engine failed while it answered")
            case _:
                raise FrameError(f"an unexpected {kind.name}")
        self._wake()

    def returned(self) -> None:
        """The call came back with its answer, and no stream."""
        self.ended = True
        self._wake()

    def sent(self, slack_s: float) -> None:
        """All of it was sent, says the call; what is still on its way has so long."""
        if not self.ended and self._error is None:
            lost = StreamLostError(f"its end didn't come within {slack_s:g} s")
            self._late = asyncio.get_running_loop().call_later(slack_s, self.fail, lost)

    def fail(self, error: Exception) -> None:
        """The stream won't end by itself; what has come can still be read."""
        if not self.ended and self._error is None:
            self._error = error
            self._wake()

    def close(self) -> None:
        """Nobody reads any more. Safe to call twice."""
        if self._late is not None:
            self._late.cancel()
        if self._hub.forget(self._ticket) and self._peer is not None:
            self._peer.streams.discard(self)
            if not self.ended:
                self._peer.send(frame(Kind.CLOSE, self._ticket))


class Hub:
    """An ingress process's socket, and the streams that it waits for."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._streams: dict[bytes, Stream] = {}
        self._servers: list[asyncio.Server] = []
        self._peers: set[_Peer] = set()
        self._address: Address | None = None

    @property
    def address(self) -> Address:
        assert self._address is not None, "start() comes first"
        return self._address

    async def start(self, node: str, host: str) -> None:
        """Listen on the node's own address, and on a socket for the replicas that are on the node.

        Raises:
            OSError: it can't.
        """
        name = f"enginehouse-{secrets.token_hex(16)}"
        with ExitStack() as opened:
            local = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            local.bind(f"\0{name}")  # Linux's abstract names: no file is left, however this process ends
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            distant = opened.enter_context(socket.create_server((host, 0), family=family))
            port = distant.getsockname()[1]
            loop = asyncio.get_running_loop()
            try:
                for make, sock in ((loop.create_unix_server, local), (loop.create_server, distant)):
                    self._servers.append(await make(lambda: _Peer(self), sock=sock, backlog=BACKLOG))
            except BaseException:
                await self.stop()
                raise
            opened.pop_all()  # they are the servers' now
        hub = secrets.token_hex(8)
        self._address = {"hub": hub, "node": node, "local": name, "host": host, "port": port, "key": self._key}

    def open(self) -> Stream:
        """A stream that an answer may come by; `close` it in the end."""
        ticket = secrets.token_bytes(TICKET_SIZE)
        stream = self._streams[ticket] = Stream(self, ticket)
        return stream

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def forget(self, ticket: bytes) -> bool:
        return self._streams.pop(ticket, None) is not None

    def stream_of(self, ticket: bytes) -> Stream | None:
        return self._streams.get(ticket)

    def is_answer(self, nonce: bytes, answered: bytes) -> bool:
        return greeting.is_answer(self._key, nonce, answered)

    def confirmation(self, nonce: bytes, answered: bytes) -> bytes:
        return greeting.confirmation(self._key, nonce, answered)

    def join(self, peer: "_Peer") -> bool:
        if len(self._peers) >= MAX_CONNECTIONS:
            return False
        self._peers.add(peer)
        return True

    def leave(self, peer: "_Peer") -> None:
        self._peers.discard(peer)

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for peer in list(self._peers):
            peer.abort()


class _Peer(asyncio.Protocol):
    """A connection from a replica."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.streams: set[Stream] = set()
        self._transport: asyncio.Transport | None = None
        self._nonce = greeting.nonce()
        self._decoder: Decoder | None = None  # once it has proved itself
        self._greeted = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if not self._hub.join(self) or not _is_ours(transport.get_extra_info("socket")):
            transport.abort()
            return
        self._late = asyncio.get_running_loop().call_later(GREETING_S, transport.abort)
        transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        if self._decoder is None:
            data = self._greet(data)
        if not data:
            return
        assert self._decoder is not None
        find = self._hub.stream_of
        try:
            for kind, ticket, payload in self._decoder.feed(data):
                stream = find(ticket)
                if stream is not None:  # else its reader has left
                    stream.take(self, kind, payload)
        except FrameError as error:
            logger.error("a replica's connection to this ingress is closed: %s", error)
            self.abort()

    def _greet(self, data: bytes) -> bytes:
        """What comes after the greeting."""
        self._greeted += data
        if len(self._greeted) < greeting.ANSWER_SIZE:
            return b""
        answered, rest = self._greeted[: greeting.ANSWER_SIZE], self._greeted[greeting.ANSWER_SIZE :]
        if not self._hub.is_answer(self._nonce, answered):
            logger.warning("a connection to the token plane was refused: it doesn't know this ingress's key")
            self.abort()
            return b""
        if self._late is not None:
            self._late.cancel()
        self._decoder = Decoder()
        self.send(self._hub.confirmation(self._nonce, answered))
        return rest

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._hub.leave(self)
        for stream in self.streams:
            stream.fail(StreamLostError("the replica's connection was lost"))
        self.streams.clear()


def _is_ours(sock: Any) -> bool:
    """Whether a local connection comes from a process of this user; of others the key decides alone."""
    if sock.family != socket.AF_UNIX:
        return True
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def _head(payload: bytes) -> Head:
    """
    Raises:
        FrameError: it is none.
    """
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError("a head that is no JSON") from error
    match document:
        case {"status": int(status), "media_type": str(media_type), "headers": dict(headers)} if (
            200 <= status <= 599 and _are_headers({**headers, "content-type": media_type})
        ):
            return {"status": status, "media_type": media_type, "headers": headers}
    raise FrameError("a head without what belongs to it")


def _are_headers(headers: dict[Any, Any]) -> bool:
    """Whether these can be sent to a client as they are: no line ends, and nothing but strings."""
    return all(isinstance(value, str) and not _CONTROL.search(f"{name}{value}") for name, value in headers.items())
