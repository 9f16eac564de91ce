"""What every answer has to be, whatever was asked: pure functions of both."""

import json
import re
from collections.abc import Iterator
from typing import Any

from app.endpoints import ANTHROPIC_PATHS
from tests.fuzz.client import Answer
from tests.fuzz.inputs import Input

SLOW_S = 5.0
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HEAD_BYTES = 8 * 1024  # HAProxy gives up an answer with much more


def faults(asked: Input, answer: Answer) -> Iterator[str]:
    """What is wrong with an answer."""
    if answer.seconds > SLOW_S:
        yield f"it took {answer.seconds:.1f} s"
    if answer.disorder:
        yield f"out of order: {answer.disorder}"
    if answer.error is not None:
        yield f"the application raised {answer.error!r}"
    elif answer.status is None or not answer.whole:
        if asked.leaves == "never":
            yield "no whole answer"
    else:
        yield from _of_whole(asked, answer)


def _of_whole(asked: Input, answer: Answer) -> Iterator[str]:
    assert answer.status is not None
    if answer.status >= 500:
        yield f"status {answer.status}: {answer.body[:300]!r}"
    if bad := [header for header in answer.headers if any(map(_CONTROL.search, header))]:
        yield f"a header would break the answer's head: {bad}"
    if sum(len(name) + len(value) for name, value in answer.headers) > _HEAD_BYTES:
        yield f"its head is larger than {_HEAD_BYTES} bytes"
    length = answer.header(b"content-length")
    if length and asked.method != "HEAD" and int(length) != len(answer.body):
        yield f"content-length says {length} of {len(answer.body)} bytes"
    if answer.status >= 400 and asked.method != "HEAD":
        yield from _of_error(asked, answer)
    elif answer.header(b"content-type").startswith("text/event-stream"):
        yield from _of_stream(answer.body)


def _of_error(asked: Input, answer: Answer) -> Iterator[str]:
    if answer.header(b"content-type") != "application/json":
        yield f"an error of type {answer.header(b'content-type')!r}"
    elif (shape := _shape(answer.body)) not in ("openai", "anthropic"):
        yield f"an error without its envelope: {answer.body[:300]!r}"
    elif (shape == "anthropic") != (asked.target.partition("?")[0] in ANTHROPIC_PATHS):
        yield f"an error in the envelope of {shape}"


def _shape(body: bytes) -> str | None:
    """Whose envelope an error has."""
    try:
        document: Any = json.loads(body)
        error = document["error"]
        fields = {name: type(error[name]) for name in ("message", "type", "param", "code")}
    except (ValueError, KeyError, TypeError):
        return None
    if fields["message"] is not str or fields["type"] is not str or len(error) != len(fields):
        return None
    if not {fields["param"], fields["code"]} <= {str, type(None)}:
        return None
    return {frozenset({"error"}): "openai", frozenset({"type", "error"}): "anthropic"}.get(frozenset(document))


def _of_stream(body: bytes) -> Iterator[str]:
    done, broken = body.endswith(b"data: [DONE]\n\n"), _last_event_is_error(body)
    if b"data: [DONE]" in body and broken:
        yield "an error and [DONE]"
    elif not (done or broken):
        yield f"a stream that ends with {body[-200:]!r}"


def _last_event_is_error(body: bytes) -> bool:
    last = body.rstrip(b"\n").rpartition(b"\n")[2].removeprefix(b"data: ")
    try:
        return "error" in json.loads(last)
    except (ValueError, TypeError):
        return False
