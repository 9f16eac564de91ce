"""Strangers at the ingress's end of the token plane, and replicas that have gone wrong: whatever they send, their own
connection is closed or nothing happens, and the streams of others go on."""

import asyncio
import contextlib
import json
import os
import pickle
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.plane import greeting, hub
from deployments.plane.frames import HEADER, MAX_PAYLOAD, TICKET_SIZE, WINDOW, Decoder, FrameError, Kind, frame
from deployments.plane.hub import Hub, Stream
from deployments.plane.line import Line, Lines, Outlet
from tests.deployments.plane.conftest import HOST, NODE, soon
from tests.waiting import until

HEAD = json.dumps({"status": 200, "media_type": "text/event-stream", "headers": {}}).encode()
SILENT_S = 0.2  # in which an answer would have come


@pytest.fixture(autouse=True)
async def nothing_reaches_the_event_loop_s_handler() -> AsyncIterator[None]:
    reached: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reached.append(context))
    yield
    assert reached == []


class Victim:
    """A stream of another replica, which goes on meanwhile."""

    def __init__(self, line: Line, stream: Stream) -> None:
        self.line = line
        self.stream = stream
        self.outlet: Outlet = line.outlet(stream.reply_to["ticket"])

    async def goes_on(self) -> None:
        await self.outlet.write(b"more")
        assert await soon(self.stream.read()) == b"more"


@pytest.fixture
async def victim(door: Hub) -> AsyncIterator[Victim]:
    """Checked again once the test has done its worst."""
    lines = Lines(NODE)
    line = await lines.to(door.address)
    assert line is not None
    found = Victim(line, door.open())
    found.outlet.head({"status": 200, "media_type": "text/event-stream", "headers": {}})
    await found.goes_on()
    yield found
    await found.goes_on()
    found.outlet.end()
    assert await soon(found.stream.read()) == b""
    lines.stop()


class Stranger:
    """A connection, to write on it what a replica wouldn't."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, door: Hub) -> "Stranger":
        return cls(*await asyncio.open_connection(HOST, door.address["port"]))

    @classmethod
    async def greeted(cls, door: Hub) -> "Stranger":
        found = await cls.connect(door)
        theirs = await found.nonce()
        found.writer.write(greeting.answer(door.address["key"], theirs, greeting.nonce()))
        await soon(found.reader.readexactly(greeting.PROOF_SIZE))
        return found

    async def nonce(self) -> bytes:
        return bytes(await soon(self.reader.readexactly(greeting.NONCE_SIZE)))

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await soon(self.writer.drain())

    async def is_closed(self) -> bool:
        try:
            return bool(await soon(self.reader.read()) == b"")
        except ConnectionError:
            return True

    async def is_open(self) -> bool:
        """Nothing comes, the end neither."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                return await self.reader.read(1) != b""
        return True

    def leave(self) -> None:
        self.writer.close()


# Greetings


def recorded(door: Hub) -> bytes:
    """What another connection answered to its nonce."""
    return greeting.answer(door.address["key"], greeting.nonce(), greeting.nonce())


@pytest.mark.parametrize(
    "answer",
    [
        recorded,
        lambda door: bytes(greeting.ANSWER_SIZE),
        lambda door: os.urandom(greeting.ANSWER_SIZE),
        lambda door: greeting.answer(b"", greeting.nonce(), greeting.nonce()),
        lambda door: b"GET /health HTTP/1.1\r\nhost: there\r\nuser-agent: somebody\r\n\r\n",
        lambda door: pickle.dumps({"a": list(range(100))}),
    ],
    ids=["recorded", "zeros", "random", "no key", "HTTP", "pickle"],
)
async def test_who_does_not_know_the_key_is_closed(
    door: Hub, victim: Victim, answer: Callable[[Hub], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    stranger = await Stranger.connect(door)
    await stranger.nonce()
    await stranger.send(answer(door) + frame(Kind.DATA, victim.stream.reply_to["ticket"], b"forged"))
    assert await stranger.is_closed()
    assert len(door._peers) == 1
    assert door.address["key"].hex() not in caplog.text and repr(door.address["key"]) not in caplog.text
    stranger.leave()


async def test_what_the_ingress_itself_says_proves_nothing(door: Hub, victim: Victim) -> None:
    """Neither its nonce sent back, nor its proof to another connection, is a replica's."""
    other = await Stranger.connect(door)
    theirs = await other.nonce()
    ours = greeting.nonce()
    other.writer.write(greeting.answer(door.address["key"], theirs, ours))
    proof = await soon(other.reader.readexactly(greeting.PROOF_SIZE))
    stranger = await Stranger.connect(door)
    await stranger.send(await stranger.nonce() + proof)
    assert await stranger.is_closed()
    for each in (other, stranger):
        each.leave()


async def test_two_connections_have_two_nonces(door: Hub) -> None:
    strangers = [await Stranger.connect(door) for _ in range(20)]
    assert len({await stranger.nonce() for stranger in strangers}) == 20
    for stranger in strangers:
        stranger.leave()


@pytest.mark.parametrize("sent", [b"", b"x", bytes(greeting.ANSWER_SIZE - 1)])
async def test_who_is_slow_to_prove_itself_is_closed(
    door: Hub, victim: Victim, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "GREETING_S", 0.1)
    stranger = await Stranger.connect(door)
    await stranger.nonce()
    await stranger.send(sent)
    assert await stranger.is_closed() and len(door._peers) == 1
    stranger.leave()


async def test_who_leaves_while_it_is_greeted_leaves_nothing(door: Hub, victim: Victim) -> None:
    for sent in (b"", b"x", bytes(greeting.ANSWER_SIZE)):
        stranger = await Stranger.connect(door)
        await stranger.send(sent)
        stranger.writer.transport.abort()
    await until(lambda: len(door._peers) == 1, "a connection that is gone is no longer counted")


async def test_a_flood_of_connections_is_bounded_and_passes(
    door: Hub, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(hub, "GREETING_S", 0.3)
    strangers = [await Stranger.connect(door) for _ in range(40)]
    await victim.goes_on()
    assert len(door._peers) <= 8
    for stranger in strangers:
        await stranger.is_closed()  # those that were let in by the time that a greeting may take
        stranger.leave()
    assert len(door._peers) == 1
    late = await Stranger.greeted(door)
    late.leave()


async def test_another_user_of_the_machine_is_closed_without_a_word(
    door: Hub, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = os.getuid() + 1
    monkeypatch.setattr(hub.os, "getuid", lambda: nobody)  # type: ignore[attr-defined]
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, f"\0{door.address['local']}")
    stranger = Stranger(*await asyncio.open_unix_connection(sock=sock))
    assert await stranger.is_closed()
    stranger.leave()


# Tickets


async def test_a_ticket_of_another_connection(door: Hub, victim: Victim) -> None:
    for kind, payload in ((Kind.DATA, b"forged"), (Kind.END, b""), (Kind.BROKEN, b""), (Kind.HEAD, HEAD)):
        stranger = await Stranger.greeted(door)
        await stranger.send(frame(kind, victim.stream.reply_to["ticket"], payload))
        assert await stranger.is_closed()
        stranger.leave()
        await victim.goes_on()


@pytest.mark.parametrize(
    "ticket", [bytes(TICKET_SIZE), b"\xff" * TICKET_SIZE, os.urandom(TICKET_SIZE)], ids=["zeros", "ones", "random"]
)
@pytest.mark.parametrize("kind", list(Kind))
async def test_a_ticket_that_nobody_gave_is_ignored(door: Hub, victim: Victim, ticket: bytes, kind: Kind) -> None:
    stranger = await Stranger.greeted(door)
    await stranger.send(frame(kind, ticket, HEAD) * 100)
    assert await stranger.is_open() and len(door._streams) == 1
    stranger.leave()


async def test_a_ticket_is_of_no_use_after_its_reader_has_left(door: Hub, victim: Victim) -> None:
    stranger, stream = await Stranger.greeted(door), door.open()
    ticket = stream.reply_to["ticket"]
    stream.close()
    await stranger.send(frame(Kind.HEAD, ticket, HEAD) + frame(Kind.DATA, ticket, b"late") + frame(Kind.END, ticket))
    assert await stranger.is_open()
    assert stream.head is None and len(door._streams) == 1
    stranger.leave()


@pytest.mark.parametrize("last", [Kind.END, Kind.BROKEN])
@pytest.mark.parametrize("more", [Kind.DATA, Kind.END, Kind.BROKEN, Kind.HEAD])
async def test_nothing_comes_after_the_last_frame(door: Hub, victim: Victim, last: Kind, more: Kind) -> None:
    stranger, stream = await Stranger.greeted(door), door.open()
    ticket = stream.reply_to["ticket"]
    await stranger.send(frame(Kind.HEAD, ticket, HEAD) + frame(Kind.DATA, ticket, b"all") + frame(last, ticket))
    await stranger.send(frame(more, ticket, b"late"))
    assert await stranger.is_closed()
    assert await soon(stream.read()) == b"all"
    if last is Kind.END:
        assert await soon(stream.read()) == b""
    else:
        with pytest.raises(ConnectionError, match="the engine failed"):
            await soon(stream.read())
    stranger.leave()


# Frames


def begun(*frames: tuple[Kind, bytes]) -> Callable[[bytes], bytes]:
    return lambda ticket: b"".join(frame(kind, ticket, payload) for kind, payload in ((Kind.HEAD, HEAD), *frames))


def head(**changed: Any) -> Callable[[bytes], bytes]:
    return lambda ticket: frame(Kind.HEAD, ticket, json.dumps({**json.loads(HEAD), **changed}).encode())


AGAINST_THE_PROTOCOL: dict[str, Callable[[bytes], bytes]] = {
    "two heads": begun((Kind.HEAD, HEAD)),
    "one to a replica": begun((Kind.CLOSE, b"")),
    "a kind that there isn't": lambda ticket: HEADER.pack(0, 9, ticket),
    "declared too long": lambda ticket: HEADER.pack(MAX_PAYLOAD + 1, Kind.DATA, ticket),
    "declared as long as can be": lambda ticket: HEADER.pack(2**32 - 1, Kind.DATA, ticket),
    "too long": lambda ticket: HEADER.pack(MAX_PAYLOAD + 1, Kind.DATA, ticket) + bytes(MAX_PAYLOAD + 1),
    "more than the window": begun((Kind.DATA, bytes(WINDOW)), (Kind.DATA, b"x")),
    "more than the window at once": begun((Kind.DATA, bytes(WINDOW + 1))),
    "a head of braces": lambda ticket: frame(Kind.HEAD, ticket, b"[" * MAX_PAYLOAD),
    "a head of objects": lambda ticket: frame(Kind.HEAD, ticket, b'{"a":' * (MAX_PAYLOAD // 5)),
    "a head of digits": lambda ticket: frame(Kind.HEAD, ticket, b"9" * 100_000),
    "a pickled head": lambda ticket: frame(Kind.HEAD, ticket, pickle.dumps(json.loads(HEAD))),
    "a head of no text": lambda ticket: frame(Kind.HEAD, ticket, b"\xff\xfe{}"),
    "a header with a line end": head(headers={"x-a": "b\r\nset-cookie: c"}),
    "a header's name with a line end": head(headers={"x-a: b\r\nset-cookie": "c"}),
    "a header with a NUL": head(headers={"x-a": "\0"}),
    "a header that HTTP can't say": head(headers={"x-a": "\U0001f600"}),
    "a header with half a character": head(headers={"x-a": "\ud800"}),
    "a header that is a number": head(headers={"x-a": 1}),
    "a type with a line end": head(media_type="text/plain\r\nx: y"),
    "a status that there isn't": head(status=99999),
    "a status of no answer": head(status=100),
}


@pytest.mark.parametrize("sent", AGAINST_THE_PROTOCOL.values(), ids=AGAINST_THE_PROTOCOL)
async def test_what_is_against_the_protocol_ends_its_own_connection(
    door: Hub, victim: Victim, sent: Callable[[bytes], bytes]
) -> None:
    stranger, stream = await Stranger.greeted(door), door.open()
    await stranger.send(sent(stream.reply_to["ticket"]))
    assert await stranger.is_closed()
    assert stream._size <= WINDOW + MAX_PAYLOAD and len(door._peers) == 1
    stranger.leave()


async def test_a_frame_that_does_not_end_holds_no_more_than_a_frame(door: Hub, victim: Victim) -> None:
    stranger, stream = await Stranger.greeted(door), door.open()
    ticket = stream.reply_to["ticket"]
    await stranger.send(frame(Kind.HEAD, ticket, HEAD) + HEADER.pack(MAX_PAYLOAD, Kind.DATA, ticket) + bytes(1000))
    assert await stranger.is_open()
    [peer] = [peer for peer in door._peers if stream in peer.streams]
    assert peer._decoder is not None and len(peer._decoder._rest) <= MAX_PAYLOAD + HEADER.size
    stranger.leave()
    with pytest.raises(ConnectionError, match="the replica's connection was lost"):
        await soon(asyncio.wait_for(_whole(stream), 60))


async def _whole(stream: Stream) -> None:
    await stream.start()
    while await stream.read():
        pass


pieces = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda length, kind, ticket, payload: HEADER.pack(length, kind, ticket) + payload,
            st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)),
            st.integers(0, 8),
            st.sampled_from([bytes(TICKET_SIZE), b"T" * TICKET_SIZE]),
            st.binary(max_size=40),
        ),
        st.builds(frame, st.sampled_from(Kind), st.just(b"T" * TICKET_SIZE), st.one_of(st.just(HEAD), st.binary())),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(pieces)
def test_garbage_is_frames_or_a_frame_error(sent: list[bytes]) -> None:
    decoder = Decoder()
    with contextlib.suppress(FrameError):
        for piece in sent:
            for kind, ticket, payload in decoder.feed(piece):
                assert isinstance(kind, Kind) and len(ticket) == TICKET_SIZE and len(payload) <= MAX_PAYLOAD


class Told:
    """A peer, as a stream knows it."""

    def __init__(self) -> None:
        self.streams: set[Stream] = set()

    def send(self, data: bytes) -> None:
        assert len(data) < 100


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.one_of(st.just(HEAD), st.binary(max_size=WINDOW // 2))), max_size=8)
)
def test_frames_in_any_order_are_taken_or_a_frame_error(sent: list[tuple[Kind, bytes]]) -> None:
    door, peer = Hub(), Told()
    stream = door.open()
    last = False
    with contextlib.suppress(FrameError):
        for kind, payload in sent:
            stream.take(peer, kind, payload)  # type: ignore[arg-type]
            assert not last, "nothing comes after the last frame"
            assert stream.head is not None or kind in (Kind.END, Kind.BROKEN)
            last = kind in (Kind.END, Kind.BROKEN)
    assert stream._size <= WINDOW + WINDOW // 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=4000), proves=st.booleans())
def test_garbage_on_a_connection_harms_nobody_else(data: bytes, proves: bool) -> None:
    async def attack() -> None:
        reached: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reached.append(context))
        door, lines = Hub(), Lines(NODE)
        await door.start(NODE, HOST)
        line = await lines.to(door.address)
        assert line is not None
        found = Victim(line, door.open())
        found.outlet.head({"status": 200, "media_type": "text/event-stream", "headers": {}})
        stranger = await (Stranger.greeted if proves else Stranger.connect)(door)
        await stranger.send(data)
        await found.goes_on()
        stranger.writer.transport.abort()
        await found.goes_on()
        lines.stop()
        await door.stop()
        await asyncio.sleep(0)
        assert reached == []

    asyncio.run(attack())


# A hub that can't start


async def test_a_hub_that_cannot_listen_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    real = socket.socket

    def socket_(*args: Any, **kwargs: Any) -> socket.socket:
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(hub.socket, "socket", socket_)  # type: ignore[attr-defined]
    opened = Hub()
    with pytest.raises(OSError):
        await opened.start(NODE, "192.0.2.1")  # an address that no machine has
    assert made and all(sock.fileno() == -1 for sock in made)


@pytest.mark.parametrize("method", ["create_unix_server", "create_server"])
async def test_a_hub_that_starts_by_half_leaves_no_socket(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = asyncio.get_running_loop(), list[socket.socket]()

    async def fails(factory: Any, *, sock: socket.socket, backlog: int) -> None:
        made.append(sock)
        raise OSError("no more")

    monkeypatch.setattr(loop, method, fails, raising=False)
    opened = Hub()
    with pytest.raises(OSError, match="no more"):
        await opened.start(NODE, HOST)
    assert [sock.fileno() for sock in made] == [-1] and opened._servers == []
