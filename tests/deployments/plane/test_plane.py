"""Both ends of the token plane, over real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from deployments.plane import greeting, hub, line
from deployments.plane.address import Address
from deployments.plane.frames import WINDOW, Kind, frame
from deployments.plane.hub import Hub, Stream, StreamLostError
from deployments.plane.line import Line, Lines, ReaderGoneError
from deployments.wire import Head
from tests.deployments.plane.conftest import HOST, NODE, soon

HEAD: Head = {"status": 200, "media_type": "text/event-stream", "headers": {"x-it": "é"}}
ELSEWHERE = "node-b"


@pytest.fixture(params=[NODE, ELSEWHERE], ids=["unix", "tcp"])
async def lines(request: pytest.FixtureRequest) -> AsyncIterator[Lines]:
    """A replica's, on the hub's node and on another."""
    opened = Lines(request.param)
    yield opened
    opened.stop()


@pytest.fixture
async def wire(door: Hub, lines: Lines) -> Line:
    return await connected(lines, door)


async def connected(lines: Lines, door: Hub) -> Line:
    found = await lines.to(door.address)
    assert found is not None
    return found


async def whole(stream: Stream) -> bytes:
    read = bytearray()
    while data := await soon(stream.read()):
        read += data
    return bytes(read)


def begin(wire: Line, stream: Stream) -> line.Outlet:
    outlet = wire.outlet(stream.reply_to["ticket"])
    outlet.head(HEAD)
    return outlet


async def test_an_answer_arrives_as_it_was_sent(door: Hub, wire: Line) -> None:
    stream = door.open()
    outlet = begin(wire, stream)
    for chunk in (b"data: caf\xc3", b"\xa9\n\n", b"", b"data: [DONE]\n\n"):
        await outlet.write(chunk)
    outlet.end()
    assert await soon(stream.start()) == HEAD
    assert await whole(stream) == b"data: caf\xc3\xa9\n\ndata: [DONE]\n\n"
    assert stream.ended


async def test_one_connection_serves_all_streams_of_a_pair(door: Hub, lines: Lines) -> None:
    found = await asyncio.gather(*(connected(lines, door) for _ in range(20)))
    assert len(set(found)) == 1 and len(door._peers) == 1
    streams = [door.open() for _ in range(200)]
    for number, stream in enumerate(streams):
        outlet = begin(found[0], stream)
        for part in range(5):
            await outlet.write(f"{number}.{part} ".encode())
        outlet.end()
    for number, stream in enumerate(streams):
        assert await whole(stream) == b"".join(f"{number}.{part} ".encode() for part in range(5))


async def test_chunks_that_are_made_together_are_read_together(door: Hub, wire: Line) -> None:
    stream = door.open()
    outlet = begin(wire, stream)
    for _ in range(50):
        await outlet.write(b"x")
    await soon(stream.start())
    assert await soon(stream.read()) == b"x" * 50


async def test_the_first_chunk_is_not_held_back(door: Hub, wire: Line) -> None:
    stream = door.open()
    await begin(wire, stream).write(b"first")
    await soon(stream.start())
    assert await soon(stream.read()) == b"first"


async def test_a_slow_reader_slows_only_itself_and_holds_no_more_than_a_window(door: Hub, wire: Line) -> None:
    big = bytes(range(256)) * 2**14  # 4 MiB
    slow, quick = door.open(), door.open()
    outlet = begin(wire, slow)
    writing = asyncio.create_task(outlet.write(big))
    await soon(slow.start())
    other = begin(wire, quick)
    await soon(other.write(big[: WINDOW // 2]))
    other.end()
    assert await whole(quick) == big[: WINDOW // 2]
    assert not writing.done() and slow._size <= WINDOW
    read = bytearray()
    while len(read) < len(big):
        assert slow._size <= WINDOW
        read += await soon(slow.read())
    assert read == big
    await soon(writing)


async def test_a_stream_whose_engine_fails_breaks_after_what_it_sent(door: Hub, wire: Line) -> None:
    stream = door.open()
    outlet = begin(wire, stream)
    await outlet.write(b"some")
    outlet.broken()
    await soon(stream.start())
    assert await soon(stream.read()) == b"some"
    with pytest.raises(StreamLostError, match="the engine failed while it answered"):
        await soon(stream.read())


async def test_a_replica_that_dies_ends_its_streams_at_once(door: Hub, wire: Line) -> None:
    streams = [door.open() for _ in range(3)]
    for stream in streams:
        await begin(wire, stream).write(b"some")
        await soon(stream.start())
    wire.abort()
    for stream in streams:
        assert await soon(stream.read()) == b"some"
        with pytest.raises(StreamLostError):
            await soon(stream.read())


async def test_an_ingress_that_dies_ends_what_is_written(door: Hub, wire: Line) -> None:
    stream = door.open()
    outlet = begin(wire, stream)
    await outlet.write(b"some")
    await soon(stream.start())
    await door.stop()
    with pytest.raises(ReaderGoneError):
        await soon(outlet.write(b"x" * (WINDOW + 1)))


async def test_a_reader_that_leaves_stops_the_writer(door: Hub, wire: Line) -> None:
    stream = door.open()
    outlet = begin(wire, stream)
    await outlet.write(b"some")
    await soon(stream.start())
    stream.close()
    stream.close()
    with pytest.raises(ReaderGoneError):
        async with asyncio.timeout(60):
            while True:
                await outlet.write(b"more")
                await asyncio.sleep(0)
    outlet.end()  # which nobody waits for: ignored
    await begin(wire, other := door.open()).write(b"another")
    await soon(other.start())
    assert await soon(other.read()) == b"another"


async def test_a_call_that_fails_before_its_stream_begins(door: Hub) -> None:
    stream = door.open()
    starting = asyncio.create_task(stream.start())
    await asyncio.sleep(0)
    stream.fail(ValueError("the replica is gone"))
    with pytest.raises(ValueError, match="the replica is gone"):
        await soon(starting)


async def test_a_call_that_returns_without_a_stream(door: Hub) -> None:
    stream = door.open()
    stream.returned()
    assert await soon(stream.start()) is None


async def test_a_stream_whose_end_does_not_come_is_lost(door: Hub, wire: Line) -> None:
    stream = door.open()
    await begin(wire, stream).write(b"some")
    await soon(stream.start())
    stream.sent(0.05)
    assert await soon(stream.read()) == b"some"
    with pytest.raises(StreamLostError, match=r"its end didn't come within 0\.05 s"):
        await soon(stream.read())


def test_on_uvloop_as_in_replicas_the_socket_of_the_node_is_used(caplog: pytest.LogCaptureFixture) -> None:
    async def pass_one() -> tuple[Head | None, bytes]:
        door, lines = Hub(), Lines(NODE)
        await door.start(NODE, HOST)
        stream = door.open()
        outlet = begin(await connected(lines, door), stream)
        await outlet.write(b"some")
        outlet.end()
        try:
            return await soon(stream.start()), await whole(stream)
        finally:
            lines.stop()
            await door.stop()

    caplog.set_level(logging.WARNING)
    assert uvloop.run(pass_one()) == (HEAD, b"some")
    assert caplog.messages == []


# Strangers


def with_key(address: Address, key: bytes) -> Address:
    return {**address, "key": key}


async def test_a_replica_with_another_key_is_refused(door: Hub, lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    assert await soon(lines.to(with_key(door.address, b"x" * 32))) is None
    assert "a connection to the token plane was refused: it doesn't know this ingress's key" in caplog.messages
    assert not door._peers


async def test_an_ingress_that_does_not_know_the_key_is_sent_nothing(caplog: pytest.LogCaptureFixture) -> None:
    received = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting.nonce())
        received.extend(await reader.read(1024))
        writer.write(bytes(greeting.PROOF_SIZE))
        received.extend(await reader.read(1024))
        writer.close()

    server = await asyncio.start_server(pretend, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    lines = Lines(ELSEWHERE)
    address: Address = {"hub": "h", "node": NODE, "local": "-", "host": HOST, "port": port, "key": b"k" * 32}
    assert await soon(lines.to(address)) is None
    server.close()
    await server.wait_closed()
    assert len(received) == greeting.ANSWER_SIZE
    assert any("doesn't know the key" in message for message in caplog.messages)


async def greeted(door: Hub) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has proved itself, to write on it what a replica wouldn't."""
    address = door.address
    reader, writer = await asyncio.open_connection(HOST, address["port"])
    theirs = await soon(reader.readexactly(greeting.NONCE_SIZE))
    writer.write(greeting.answer(address["key"], theirs, greeting.nonce()))
    await soon(reader.readexactly(greeting.PROOF_SIZE))
    return reader, writer


@pytest.mark.parametrize(
    "frames",
    [
        lambda ticket: [frame(Kind.DATA, ticket, b"no head")],
        lambda ticket: [frame(Kind.HEAD, ticket, b"{}")],
        lambda ticket: [frame(Kind.HEAD, ticket, b"[")],
        lambda ticket: [frame(Kind.CREDIT, ticket, b"1234")],
        lambda ticket: [b"GET / HTTP/1.1\r\nhost: there\r\n\r\n"],
        lambda ticket: [
            frame(Kind.HEAD, ticket, b'{"status": 200, "media_type": "a/b", "headers": {}}'),
            *[frame(Kind.DATA, ticket, bytes(WINDOW // 2))] * 3,
        ],
    ],
    ids=["data first", "no head", "no JSON", "a replica's", "HTTP", "more than a window"],
)
async def test_what_is_against_the_protocol_closes_the_connection(
    door: Hub, frames: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream = door.open()
    reader, writer = await greeted(door)
    writer.write(b"".join(frames(stream.reply_to["ticket"])))
    assert await closed(reader)
    assert any("a replica's connection to this ingress is closed: " in message for message in caplog.messages)
    writer.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await soon(reader.read()) == b""
    except ConnectionResetError:
        return True


async def test_a_stream_is_of_the_connection_that_began_it(door: Hub, wire: Line) -> None:
    stream = door.open()
    await begin(wire, stream).write(b"some")
    await soon(stream.start())
    reader, writer = await greeted(door)
    writer.write(frame(Kind.DATA, stream.reply_to["ticket"], b"forged"))
    assert await closed(reader)
    writer.close()
    assert await soon(stream.read()) == b"some"


async def test_who_does_not_prove_itself_in_time_is_closed(door: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "GREETING_S", 0.1)
    reader, writer = await asyncio.open_connection(HOST, door.address["port"])
    await soon(reader.readexactly(greeting.NONCE_SIZE))
    assert await closed(reader)
    writer.close()


async def test_no_more_connections_than_a_server_can_have(door: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_CONNECTIONS", 1)
    _, first = await greeted(door)
    reader, second = await asyncio.open_connection(HOST, door.address["port"])
    assert await closed(reader)
    for writer in (first, second):
        writer.close()


async def test_it_listens_on_the_node_s_address_alone(door: Hub) -> None:
    [distant] = [server for server in door._servers if len(server.sockets[0].getsockname()) == 2]
    assert [socket.getsockname()[0] for socket in distant.sockets] == [HOST]


# A hub that can't be reached


async def test_a_hub_that_cannot_be_reached_is_not_tried_again_at_once(
    door: Hub, lines: Lines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = door.address
    await door.stop()
    assert await soon(lines.to(address)) is None
    told = [message for message in caplog.messages if "connection to the ingress" in message]
    assert await soon(lines.to(address)) is None
    assert told == [message for message in caplog.messages if "connection to the ingress" in message] != []
    monkeypatch.setattr(line, "RETRY_S", 0.0)
    lines._unreachable.clear()
    assert await soon(lines.to(address)) is None
    assert len(caplog.messages) > len(told)


async def test_where_the_socket_of_the_node_is_missing_its_port_serves(
    door: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    lines = Lines(NODE)
    address: Address = {**door.address, "local": "gone"}
    assert await soon(lines.to(address)) is not None
    assert any(message.startswith("no local connection to the ingress: ") for message in caplog.messages)
    lines.stop()
