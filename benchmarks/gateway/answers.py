"""Whether an answer is the one that was asked for, to the letter. Pure functions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gateway import engine
from benchmarks.gateway.engine import Pace

EXCERPT = 160  # characters of an answer that a fault quotes


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, as far as its answer depends on it."""

    pace: Pace
    prompt_chars: int
    stream: bool

    @property
    def prompt(self) -> str:
        filler = 'Words, "quotes" and \\ of no meaning to an engine that reads but the beginning. '
        times = self.prompt_chars // len(filler) + 1
        return f"{self.pace} {filler * times}"[: self.prompt_chars]

    def body(self) -> bytes:
        document: dict[str, Any] = {
            "model": engine.MODEL,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": 512,
            "temperature": 0.7,
            "stream": self.stream,
        }
        if self.stream:
            document["stream_options"] = {"include_usage": True}
        return json.dumps(document).encode()


def fault(ask: Ask, status: int, body: bytes) -> str | None:
    """What is wrong with an answer, in a few words; None if nothing is."""
    if status != 200:
        return f"status {status}: {_excerpt(body)}"
    try:
        return _stream_fault(ask, body) if ask.stream else _document_fault(ask, body)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return f"unreadable, {type(error).__name__}: {_excerpt(body)}"


def _document_fault(ask: Ask, body: bytes) -> str | None:
    answer = json.loads(body)
    choice = answer["choices"][0]
    if choice["message"]["content"] != "".join(engine.pieces(ask.pace.chunks)):
        return "the text differs"
    if choice["finish_reason"] != "stop":
        return f"finish_reason is {choice['finish_reason']!r}"
    return _usage_fault(ask, [answer.get("usage")])


def _stream_fault(ask: Ask, body: bytes) -> str | None:
    *events, last = list(_events(body))
    if last != "[DONE]":
        return f"the last event isn't [DONE]: {last[:EXCERPT]}"
    if "[DONE]" in events:
        return "events after [DONE]"
    chunks = [json.loads(event) for event in events]
    if failed := next((chunk for chunk in chunks if "error" in chunk), None):
        return f"an error event: {failed['error']}"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return (
        _deltas_fault(ask, [choice["delta"].get("content") for choice in choices])
        or _finish_fault([choice.get("finish_reason") for choice in choices])
        or _usage_fault(ask, [chunk.get("usage") for chunk in chunks])
    )


def _events(body: bytes) -> Iterator[str]:
    """The data of each event of a stream.

    Raises:
        ValueError: it is no stream of events, each of one line of data.
    """
    *blocks, rest = body.decode().split("\n\n")
    if rest:
        raise ValueError("the last event doesn't end")
    for block in blocks:
        if block.startswith(":"):
            continue  # a comment, which keeps a connection alive
        if not block.startswith("data: ") or "\n" in block:
            raise ValueError("not an event")
        yield block.removeprefix("data: ")


def _deltas_fault(ask: Ask, contents: Sequence[str | None]) -> str | None:
    got, wanted = [content for content in contents if content], engine.pieces(ask.pace.chunks)
    if "".join(got) != "".join(wanted):
        return "the text differs"
    return None if len(got) == len(wanted) else f"{len(got)} deltas instead of {len(wanted)}"


def _finish_fault(reasons: Sequence[str | None]) -> str | None:
    given = [reason for reason in reasons if reason]
    return None if given == ["stop"] else f"finish reasons are {given}"


def _usage_fault(ask: Ask, told: Sequence[dict[str, int] | None]) -> str | None:
    """Other fields may be there: gateways add details, all of them zero."""
    given = [usage for usage in told if usage]
    wanted = engine.usage(ask.pace.chunks, ask.prompt_chars)
    if len(given) == 1 and wanted.items() <= {**given[0]}.items():
        return None
    return f"usage is {given or 'missing'} instead of {wanted}"


def _excerpt(body: bytes) -> str:
    return body[:EXCERPT].decode(errors="replace")
