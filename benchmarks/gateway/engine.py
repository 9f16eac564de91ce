"""The engine that every contestant has: what it says, and when. Its settings come with each request.

The standard library only: it runs in every contestant's environment.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MODEL = "benchmark"
MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"

# Characters that are several bytes, that JSON escapes, or that look like the stream's own syntax.
_ODD = (" é漢字", ' "q\\', "\n\n", " data: x", " ", " \U0001f680", "</s>", "a\u2028b")
_SETTINGS = re.compile(r"chunks=(\d+) interval_ms=([\d.]+) ttft_ms=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an answer is, and how fast it comes. As text, it is the beginning of a prompt."""

    chunks: int = 64
    interval_ms: float = 0.0  # between two chunks
    ttft_ms: float = 0.0  # before the first event

    def __str__(self) -> str:
        return f"chunks={self.chunks} interval_ms={self.interval_ms:g} ttft_ms={self.ttft_ms:g}"

    @property
    def whole_s(self) -> float:
        """How long an answer that isn't streamed takes, in seconds."""
        return (self.ttft_ms + self.interval_ms * (self.chunks - 1)) / 1e3


@dataclass(frozen=True, slots=True)
class Work:
    """One request, as the engine understands it."""

    pace: Pace
    prompt_chars: int
    stream: bool
    usage: bool  # of a stream: whether its usage is told


def work(prompt: str, *, stream: bool, usage: bool) -> Work:
    """What `prompt` asks for.

    Raises:
        ValueError: it doesn't begin with the settings.
    """
    found = _SETTINGS.match(prompt)
    if found is None:
        raise ValueError(f"a prompt begins with '{Pace()}' or the like, not with {prompt[:40]!r}")
    pace = Pace(int(found[1]), float(found[2]), float(found[3]))
    return Work(pace, len(prompt), stream, usage)


def work_of(body: Mapping[str, Any]) -> Work:
    """As `work`, from the document of a chat request."""
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return work(body["messages"][-1]["content"], stream=bool(body.get("stream")), usage=usage)


async def events(asked: Work) -> AsyncGenerator[bytes]:
    """The events of a streamed answer, each at its own time: one that is late doesn't delay the next."""
    pace, ready = asked.pace, _serialised(asked.pace.chunks, asked.prompt_chars, asked.usage)
    begin_s = time.monotonic() + pace.ttft_ms / 1e3
    await asyncio.sleep(max(0.0, begin_s - time.monotonic()))
    yield ready[0]
    for index in range(pace.chunks):
        due_s = begin_s + index * pace.interval_ms / 1e3
        # Also where it is due already, so that streams take turns.
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        yield ready[index + 1]
    for event in ready[pace.chunks + 1 :]:
        yield event


async def document(asked: Work) -> bytes:
    """A whole answer, as JSON."""
    await asyncio.sleep(asked.pace.whole_s)
    return _document(asked.pace.chunks, asked.prompt_chars)


def pieces(chunks: int) -> list[str]:
    """The content of each chunk."""
    return [_ODD[index // 4 % len(_ODD)] if index % 4 == 3 else f" tok{index:04d}" for index in range(chunks)]


def usage(chunks: int, prompt_chars: int) -> dict[str, int]:
    """A character of the prompt counts as a token, so that a prompt which loses one is found out."""
    return {
        "prompt_tokens": prompt_chars,
        "completion_tokens": chunks,
        "total_tokens": prompt_chars + chunks,
    }


@lru_cache(maxsize=64)
def _serialised(chunks: int, prompt_chars: int, with_usage: bool) -> tuple[bytes, ...]:
    deltas = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces(chunks))]
    told = [_event([], usage(chunks, prompt_chars))] if with_usage else []
    return (*(_event([_choice(delta=delta)]) for delta in deltas), _event([_choice("stop", delta={})]), *told, DONE)


@lru_cache(maxsize=64)
def _document(chunks: int, prompt_chars: int) -> bytes:
    choice = _choice("stop", message={"role": "assistant", "content": "".join(pieces(chunks))})
    return _json(_answer("chat.completion", [choice], usage(chunks, prompt_chars)))


def _event(choices: list[dict[str, Any]], told: dict[str, int] | None = None) -> bytes:
    return b"data: " + _json(_answer("chat.completion.chunk", choices, told)) + b"\n\n"


def _choice(finish_reason: str | None = None, **content: Any) -> dict[str, Any]:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


def _answer(kind: str, choices: list[dict[str, Any]], told: dict[str, int] | None) -> dict[str, Any]:
    head = {"id": f"chatcmpl-{'0' * 32}", "object": kind, "created": 1_700_000_000, "model": MODEL}
    return {**head, "choices": choices, **({"usage": told} if told else {})}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
