import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from deployments.engine import Endpoint
from deployments.errors import ApiError
from deployments.event_stream import BROKEN, Lines, Relay
from deployments.model_name import answer_renamer
from deployments.upstream_server import bad_gateway

CHAT = (
    b': ready\n\ndata: {"model":"old","choices":[{"delta":{"text":"\xe6\x97\xa5 \\"model\\":\\"old\\" [DONE]"}}]}\n\n'
    b'data: {"id":1, "model": "old"}\r\n\r\ndata: {"model":"older"}\n\ndata: [DONE]\n\n'
)
CHAT_RENAMED = CHAT.replace(b'{"model":"old"', b'{"model":"new"').replace(b', "model": "old"', b', "model": "new"')
ERROR = b'data: {"error": {"message": "No room.", "type": "x", "param": "messages", "code": 400}}\n\n'


class FakeReply:
    """Gives these chunks, and then fails, where it is to."""

    def __init__(self, *chunks: bytes, failure: Exception | None = None) -> None:
        self._chunks = chunks
        self._failure = failure
        self.closed = 0

    async def chunks(self) -> AsyncGenerator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        self.closed += 1


def relay(reply: FakeReply, endpoint: Endpoint = "chat/completions", limit: int = 1000) -> Relay:
    fake: Any = reply
    return Relay(fake, endpoint, answer_renamer("old", "new"), limit)


async def all_of(reply: FakeReply, endpoint: Endpoint = "chat/completions") -> list[bytes]:
    async with aclosing(relay(reply, endpoint)) as stream:
        return [block async for block in stream]


def test_lines_wait_for_their_end() -> None:
    lines = Lines(100)
    assert [lines.feed(data) for data in (b"a", b"b", b"c\nd", b"\n", b"", b"e\r", b"\nf\n\ng")] == [
        b"",
        b"",
        b"abc\n",
        b"d\n",
        b"",
        b"e\r",
        b"\nf\n\n",
    ]
    assert lines.flush() == b"g"
    assert lines.flush() == b""


def test_a_line_has_a_largest_size() -> None:
    lines = Lines(4)
    assert lines.feed(b"a long line that is whole\nabcd") == b"a long line that is whole\n"
    with pytest.raises(ApiError, match="larger than 4 bytes"):
        lines.feed(b"e")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 1000])
async def test_however_it_is_cut_the_bytes_are_the_same(size: int) -> None:
    reply = FakeReply(*(CHAT[at : at + size] for at in range(0, len(CHAT), size)))
    assert b"".join(await all_of(reply)) == CHAT_RENAMED
    assert reply.closed


@pytest.mark.parametrize("seed", range(50))
async def test_random_cuts(seed: int) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(CHAT)), k=rng.randrange(20)))
    pieces = [CHAT[start:end] for start, end in zip([0, *cuts], [*cuts, len(CHAT)], strict=True)]
    assert b"".join(await all_of(FakeReply(*pieces))) == CHAT_RENAMED


async def test_each_line_is_sent_when_it_is_whole() -> None:
    assert await all_of(FakeReply(b"data: 1\n", b"\nda", b"ta: 2\n\n", b"data: [DONE]\n\n")) == [
        b"data: 1\n",
        b"\n",
        b"data: 2\n\n",
        b"data: [DONE]\n\n",
    ]


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n", b"data: [DONE]", b"data: [DONE]\r\r"])
async def test_good_ends(end: bytes) -> None:
    assert b"".join(await all_of(FakeReply(b"data: 1\n\n", end))) == b"data: 1\n\n" + end


@pytest.mark.parametrize(
    ("endpoint", "end"),
    [
        ("responses", b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
        ("responses", b"event:response.incomplete\ndata: {}\n\n"),
        ("responses", b'data: {"type": "response.failed"}\n\n'),
        ("messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        ("messages", b'event: error\ndata: {"type":"error"}\n\n'),
    ],
)
async def test_good_ends_of_other_endpoints(endpoint: Endpoint, end: bytes) -> None:
    assert b"".join(await all_of(FakeReply(b"data: 1\n\n", end), endpoint)) == b"data: 1\n\n" + end


@pytest.mark.parametrize(
    ("endpoint", "rest"),
    [
        ("chat/completions", b'data: {"x":"[DONE]"}\n\n'),
        ("chat/completions", b'data: {"x":"\\ndata: [DONE]"}\n\n'),
        ("chat/completions", b"data: [DONE"),
        ("chat/completions", b"event: message_stop\ndata: {}\n\n"),
        ("responses", b'event: response.created\ndata: {"type":"response.created"}\n\n'),
        ("responses", b'data: {"x":"response.completed"}\n\n'),
        ("messages", b'event: message_delta\ndata: {"x":"message_stop"}\n\n'),
    ],
)
async def test_a_stream_without_its_end_is_broken(endpoint: Endpoint, rest: bytes) -> None:
    reply = FakeReply(b"data: 1\n\n", rest)
    seen: list[bytes] = []
    with pytest.raises(ConnectionError, match=BROKEN):
        async for block in relay(reply, endpoint):
            seen.append(block)
    assert seen[0] == b"data: 1\n\n"
    assert b"data: [DONE" not in b"".join(seen).split(b"\n")
    assert reply.closed


async def test_what_is_half_of_a_line_is_not_sent_when_the_stream_breaks() -> None:
    reply = FakeReply(b'data: 1\n\ndata: {"x', failure=bad_gateway("Gone."))
    stream = relay(reply)
    assert await anext(stream) == b"data: 1\n\n"
    with pytest.raises(ConnectionError, match="Gone."):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("failure", [None, bad_gateway("Gone."), ApiError(504, "Slow.", code="upstream_timeout")])
async def test_before_the_first_line_it_is_an_error_with_a_status(failure: Exception | None) -> None:
    reply = FakeReply(b"data: {", failure=failure)
    with pytest.raises(ApiError) as caught:
        await all_of(reply)
    assert caught.value is failure or caught.value.status == 502
    assert reply.closed


async def test_after_the_end_mark_nothing_is_wrong_any_more() -> None:
    reply = FakeReply(b"data: [DONE]\n", b"\n", failure=bad_gateway("Gone."))
    assert b"".join(await all_of(reply)) == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("event", "status", "message", "code"),
    [
        (ERROR, 400, "No room.", None),
        (b'data:{"error":{"message":"Full.","http_status_code":422}}\n\n', 422, "Full.", None),
        (b'data: {"error": "Sick.", "error_type": "x"}\r\n', 502, "Sick.", None),
        (b'data: {"error":{"message":"Hm.","code":"odd"}}\n', 502, "Hm.", "odd"),
        (b'data: {"error":{"message":"Hm.","code":99}}\n', 502, "Hm.", None),
        (b'data: {"error":null}\n', 502, BROKEN, None),
        (b'data: {"error":{\n', 502, BROKEN, "upstream_error"),
    ],
)
async def test_an_error_as_the_first_event_has_a_status(
    event: bytes, status: int, message: str, code: str | None
) -> None:
    reply = FakeReply(event, b"data: [DONE]\n\n")
    with pytest.raises(ApiError) as caught:
        await all_of(reply)
    assert (caught.value.status, caught.value.message, caught.value.code) == (status, message, code)
    assert reply.closed


@pytest.mark.parametrize("cuts", [1, 3])
async def test_after_a_later_error_there_is_no_good_end(cuts: int) -> None:
    whole = b"data: 1\n\n" + ERROR + b"data: [DONE]\n\n"
    chunks = [whole] if cuts == 1 else [b"data: 1\n\n", ERROR, b"data: [DONE]\n\n"]
    assert b"".join(await all_of(FakeReply(*chunks))) == b"data: 1\n\n" + ERROR + b"\n"


async def test_text_about_errors_is_text() -> None:
    event = b'data: {"choices":[{"text":"{\\"error\\":1}"}],"error":null}\n\n'
    assert b"".join(await all_of(FakeReply(event, b"data: [DONE]\n\n"))) == event + b"data: [DONE]\n\n"


async def test_closing_it_closes_the_reply_started_or_not() -> None:
    for begun in (False, True):
        reply = FakeReply(b"data: 1\n\n", b"data: 2\n\n")
        stream = relay(reply)
        if begun:
            await anext(stream)
        assert not reply.closed
        await stream.aclose()
        assert reply.closed
