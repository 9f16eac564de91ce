"""The load client against servers that do as they are told, byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from app.flags import free_port
from benchmarks.gateway import client
from benchmarks.gateway.cases import Case
from tests.benchmarks.gateway_samples import STREAM, right

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PAUSE_S = 0.02  # so that each write is a read of its own


@asynccontextmanager
async def serving(writes: Sequence[bytes], close: bool = False) -> AsyncIterator[int]:
    """A server that answers each request with these writes; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"content-length" in (head := await reader.read(1 << 16)):
            assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
            for data in writes:
                writer.write(data)
                await asyncio.sleep(PAUSE_S)  # the gap that is to be seen
            if close:
                break

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError):  # the client has left
            await answer(reader, writer)
        writer.close()

    tasks: list[Any] = []
    server = await asyncio.start_server(connected, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)  # each ends when its client has left
    await asyncio.sleep(0)  # for what they closed to be closed


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def test_events_are_counted_as_they_end_and_by_the_read_that_ended_them() -> None:
    body = await right(STREAM)
    first, rest = body.index(b"\n\n") + 1, body[body.index(b"\n\n") + 1 :]  # the blank line is torn
    writes = [CHUNKED, chunk(body[:first]), chunk(rest[:1]), chunk(rest[1:]), b"0\r\n\r\n"]
    async with serving(writes) as port:
        answer = await client.once(port, STREAM)
    assert answer.fault(STREAM) is None
    assert [events for _, events in answer.arrivals] == [1, 12 + 3]
    assert answer.sent_s < answer.first_s < answer.arrivals[1][0] <= answer.ended_s


async def test_a_connection_is_kept() -> None:
    async with serving([CHUNKED + chunk(await right(STREAM)) + b"0\r\n\r\n"]) as port:
        answers = await client.load(port, Case("case", STREAM, concurrency=3, requests=7))
    assert [answer.fault(STREAM) for answer in answers] == [None] * 7


async def test_a_server_may_close_after_each_answer() -> None:
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with serving([head + chunk(await right(STREAM)) + b"0\r\n\r\n"], close=True) as port:
        pairs = await client.in_turn((port, port), STREAM, rounds=3, limit_s=5)
    assert [answer.fault(STREAM) for pair in pairs for answer in pair] == [None] * 6


@pytest.mark.parametrize(
    ("writes", "failure"),
    [
        ([], "the connection ended before the answer did"),
        ([CHUNKED], "the connection ended before the answer did"),
        ([CHUNKED + chunk(b"data: [DONE]\n\n")], "the connection ended before the answer did"),
        ([b"It works!\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"], "status 503: busy"),
    ],
)
async def test_what_is_no_answer_is_a_fault(writes: Sequence[bytes], failure: str) -> None:
    async with serving(writes, close=True) as port:
        answer = await client.once(port, STREAM)
    assert (answer.fault(STREAM) or "").startswith(failure)


async def test_nobody_there_is_a_fault() -> None:
    answers = await client.load(free_port(), Case("case", STREAM, concurrency=1, requests=2))
    assert [(answer.fault(STREAM) or "")[:14] for answer in answers] == ["no connection:"] * 2


async def test_an_answer_that_never_comes_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.05)
    async with serving([CHUNKED, *[b""] * 20]) as port:
        answer = await client.once(port, STREAM)
    assert (answer.fault(STREAM) or "").startswith("no answer within")


async def test_a_load_is_bounded_in_time() -> None:
    async with serving([CHUNKED + chunk(await right(STREAM)) + b"0\r\n\r\n"]) as port:
        answers = await client.load(port, Case("case", STREAM, concurrency=1, requests=1000, limit_s=0.1))
    assert 2 <= len(answers) <= 10
