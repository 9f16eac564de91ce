"""Each way in which an answer can be wrong is found."""

import json
from collections.abc import Callable

import pytest

from benchmarks.gateway.answers import Ask, fault
from benchmarks.gateway.engine import Pace
from tests.benchmarks.gateway_samples import STREAM, WHOLE, right

Spoil = Callable[[bytes], bytes]


def replaced(old: bytes, new: bytes) -> Spoil:
    def spoil(body: bytes) -> bytes:
        assert old in body
        return body.replace(old, new, 1)

    return spoil


def without(marker: bytes) -> Spoil:
    """Without the first event that has `marker` in it."""

    def spoil(body: bytes) -> bytes:
        events = body.split(b"\n\n")
        events.remove(next(event for event in events if marker in event))
        return b"\n\n".join(events)

    return spoil


def merged(body: bytes) -> bytes:
    """Two deltas as one: the text stays."""
    return without(b'" tok0001"')(replaced(b" tok0000", b" tok0000 tok0001")(body))


def twice(marker: bytes) -> Spoil:
    def spoil(body: bytes) -> bytes:
        event = next(event for event in body.split(b"\n\n") if marker in event)
        return body.replace(event, event + b"\n\n" + event, 1)

    return spoil


WRONG_STREAMS: dict[str, tuple[Spoil, str]] = {
    "a delta is lost": (without(b" tok0004"), "the text differs"),
    "a delta comes twice": (twice(b" tok0004"), "the text differs"),
    "a character is broken": (replaced("漢".encode(), b"?"), "the text differs"),
    "a character isn't UTF-8": (replaced("漢".encode(), b"\xe6\xbc"), "unreadable, UnicodeDecodeError"),
    "deltas are merged": (merged, "11 deltas instead of 12"),
    "no finish": (without(b'"finish_reason":"stop"'), "finish reasons are []"),
    "two finishes": (twice(b'"finish_reason":"stop"'), "finish reasons are ['stop', 'stop']"),
    "another finish": (replaced(b'"finish_reason":"stop"', b'"finish_reason":"length"'), "finish reasons are ['length"),
    "no usage": (without(b'"usage"'), "usage is missing"),
    "the usage comes twice": (twice(b'"usage"'), "usage is [{"),
    "another usage": (replaced(b'"prompt_tokens":200', b'"prompt_tokens":199'), "usage is [{'prompt_tokens': 199"),
    "no [DONE]": (without(b"[DONE]"), "the last event isn't [DONE]"),
    "[DONE] twice": (twice(b"[DONE]"), "events after [DONE]"),
    "an event after [DONE]": (lambda body: body + body.split(b"\n\n")[0] + b"\n\n", "the last event isn't [DONE]"),
    "an error event": (replaced(b"data: [DONE]", b'data: {"error":"gone"}\n\ndata: [DONE]'), "an error event: gone"),
    "cut in an event": (lambda body: body[:-5], "unreadable, ValueError"),
    "cut between events": (lambda body: body[: body.index(b"\n\n") + 2], "the last event isn't [DONE]"),
    "nothing": (lambda body: b"", "unreadable"),
    "no event": (replaced(b"data: {", b"date: {"), "unreadable, ValueError"),
    "no JSON": (replaced(b"data: {", b"data: ("), "unreadable, JSONDecodeError"),
    "other JSON": (replaced(b"data: {", b"data: 7\n\ndata: {"), "unreadable, TypeError"),
}

WRONG_DOCUMENTS: dict[str, tuple[Spoil, str]] = {
    "a word is lost": (replaced(b" tok0004", b""), "the text differs"),
    "another finish": (replaced(b'"stop"', b'"length"'), "finish_reason is 'length'"),
    "another usage": (replaced(b'"total_tokens":212', b'"total_tokens":12'), "usage is [{'prompt_tokens': 200"),
    "no usage": (replaced(b'"usage"', b'"usages"'), "usage is missing"),
    "no choices": (replaced(b'"choices"', b'"choice"'), "unreadable, KeyError"),
    "cut": (lambda body: body[:-1], "unreadable, JSONDecodeError"),
}


@pytest.mark.parametrize("ask", [STREAM, WHOLE, Ask(Pace(64), 8192, stream=True), Ask(Pace(1), 60, stream=False)])
async def test_a_right_answer_has_no_fault(ask: Ask) -> None:
    assert fault(ask, 200, await right(ask)) is None


@pytest.mark.parametrize(("spoil", "found"), WRONG_STREAMS.values(), ids=WRONG_STREAMS)
async def test_a_wrong_stream_is_found(spoil: Spoil, found: str) -> None:
    assert (fault(STREAM, 200, spoil(await right(STREAM))) or "").startswith(found)


@pytest.mark.parametrize(("spoil", "found"), WRONG_DOCUMENTS.values(), ids=WRONG_DOCUMENTS)
async def test_a_wrong_document_is_found(spoil: Spoil, found: str) -> None:
    assert (fault(WHOLE, 200, spoil(await right(WHOLE))) or "").startswith(found)


async def test_another_status_is_a_fault_whatever_the_body() -> None:
    assert fault(STREAM, 503, b"busy" * 100) == "status 503: " + ("busy" * 100)[:160]
    assert (fault(WHOLE, 500, await right(WHOLE)) or "").startswith("status 500")


async def test_the_answer_to_another_request_is_found() -> None:
    other = Ask(Pace(12), prompt_chars=201, stream=True)
    assert (fault(other, 200, await right(STREAM)) or "").startswith("usage is")


async def test_what_gateways_add_is_no_fault() -> None:
    body = await right(STREAM)
    with_comment = b": keep-alive\n\n" + body
    with_fields = body.replace(b'"usage":{', b'"cost":0,"usage":{"details":null,')
    assert fault(STREAM, 200, with_comment) is None
    assert fault(STREAM, 200, with_fields) is None


@pytest.mark.parametrize("chars", [60, 400, 8192])
def test_a_prompt_is_as_long_as_was_asked(chars: int) -> None:
    body = json.loads(Ask(Pace(64, 10), chars, stream=True).body())
    assert len(body["messages"][0]["content"]) == chars
    assert body["stream_options"] == {"include_usage": True}
    assert "stream_options" not in json.loads(Ask(Pace(), chars, stream=False).body())
