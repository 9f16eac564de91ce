"""The load client: keep-alive connections on loopback, and what came over them when."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import httptools

from benchmarks.gateway.answers import Ask, fault
from benchmarks.gateway.cases import Case

TIMEOUT_S = 30.0  # for one answer
# For gateways that ask for a key, and for one that begins so. It opens nothing.
KEY = f"sk-{'0' * 32}"


@dataclass(slots=True)
class Answer:
    """What came of one request. Times are of `time.perf_counter`, in seconds."""

    sent_s: float
    ended_s: float = 0.0
    status: int = 0
    body: bytes = b""
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # reads: when, and how many events each ended
    failure: str | None = None  # of the connection

    @property
    def first_s(self) -> float:
        """When the first event had come; of an answer that isn't streamed, all of it."""
        return self.arrivals[0][0] if self.arrivals else self.ended_s

    def fault(self, ask: Ask) -> str | None:
        """What is wrong with it as an answer to `ask`; None if nothing is."""
        return self.failure or fault(ask, self.status, self.body)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.alive = False
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None

    @classmethod
    async def open(cls, port: int) -> "Connection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, request: bytes) -> Answer:
        """The answer to a request, failed or not."""
        assert self._transport is not None
        self._exchange = exchange = _Exchange()
        self._transport.write(request)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await exchange.ended.wait()
        except TimeoutError:
            exchange.end(f"no answer within {TIMEOUT_S:.0f} s")
        if exchange.answer.failure or not exchange.keeps_alive:
            self.close()
        return exchange.answer

    def close(self) -> None:
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's, but uvloop's is of no such class
        self.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        if self._exchange is not None:
            self._exchange.end("the connection ended before the answer did")

    def data_received(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.read(data)


class _Exchange:
    """A request that was sent, and its answer as it is parsed."""

    def __init__(self) -> None:
        self.answer = Answer(time.perf_counter())
        self.ended = asyncio.Event()
        self.keeps_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._torn = b""  # the first half of the blank line that ends an event
        self._events = 0  # that ended in the read which is being parsed

    def read(self, data: bytes) -> None:
        now_s, self._events = time.perf_counter(), 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"not HTTP: {error}")
        if self._events:
            self.answer.arrivals.append((now_s, self._events))

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)
        data = self._torn + data
        self._events += data.count(b"\n\n")
        self._torn = b"\n" if data.endswith(b"\n") and not data.endswith(b"\n\n") else b""

    def on_message_complete(self) -> None:
        self.keeps_alive = self._parser.should_keep_alive()
        self.end(None)

    def end(self, failure: str | None) -> None:
        if not self.ended.is_set():
            self.answer.failure = failure
            self.answer.ended_s = time.perf_counter()
            self.answer.body = b"".join(self._pieces)
            self.ended.set()


class Asker:
    """One client, which asks a port the same again and again, over a connection that it keeps while it can."""

    def __init__(self, port: int, ask: Ask) -> None:
        self._port = port
        self._request = request(ask, port)
        self._connection: Connection | None = None

    async def ask(self) -> Answer:
        """The answer, right or wrong, or why there is none."""
        try:
            if self._connection is None or not self._connection.alive:
                self._connection = await Connection.open(self._port)
        except OSError as error:
            now_s = time.perf_counter()
            return Answer(now_s, now_s, failure=f"no connection: {error.strerror}")
        return await self._connection.ask(self._request)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def request(ask: Ask, port: int) -> bytes:
    """As it goes over the wire."""
    body = ask.body()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\naccept: */*\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def once(port: int, ask: Ask) -> Answer:
    """One answer, over a connection of its own."""
    with closing(Asker(port, ask)) as asker:
        return await asker.ask()


async def load(port: int, case: Case) -> list[Answer]:
    """Every answer of a case: `concurrency` clients that ask again as soon as they are answered."""
    left, answers = iter(range(case.requests)), list[Answer]()
    stop_s = time.perf_counter() + case.limit_s

    async def keep_asking() -> None:
        with closing(Asker(port, case.ask)) as asker:
            # Nothing new after the limit; what is under way ends.
            while time.perf_counter() < stop_s and next(left, None) is not None:
                answers.append(await asker.ask())

    await asyncio.gather(*(keep_asking() for _ in range(case.concurrency)))
    return answers


async def in_turn(ports: Sequence[int], ask: Ask, rounds: int, limit_s: float) -> list[tuple[Answer, ...]]:
    """One request to each port in turn: what disturbs one disturbs the other as much."""
    found: list[tuple[Answer, ...]] = []
    stop_s = time.perf_counter() + limit_s
    with ExitStack() as stack:
        askers = [stack.enter_context(closing(Asker(port, ask))) for port in ports]
        while len(found) < rounds and time.perf_counter() < stop_s:
            found.append(tuple([await asker.ask() for asker in askers]))
    return found
