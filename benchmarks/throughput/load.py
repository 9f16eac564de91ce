"""The work that an engine gets, called in process and through the ingress. The standard library only."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

TOKENS = 64  # of each answer: `ignore_eos` has them all come
_PROMPT = "Question {number}: tell a long story about a lighthouse keeper, his cat, and a storm that lasts for a week."


@dataclass(frozen=True, slots=True)
class Round:
    """So many requests, of so many clients that ask again as soon as they are answered."""

    requests: int
    clients: int


@dataclass(frozen=True, slots=True)
class Done:
    """What a round gave."""

    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def body(model: str, number: int) -> bytes:
    """The request of that number."""
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": _PROMPT.format(number=number)}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


async def run(work: Round, ask: Callable[[int], Awaitable[bytes]]) -> Done:
    """One round; `ask` gives the whole of a stream.

    Raises:
        ValueError: an answer is wrong.
    """
    numbers = iter(range(work.requests))
    answers: list[bytes] = []

    async def keep_asking() -> None:
        for number in numbers:
            answers.append(await ask(number))

    began_s = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(work.clients)))
    seconds = time.perf_counter() - began_s
    return Done(sum(map(tokens_of, answers)), seconds)


def tokens_of(answer: bytes) -> int:
    """The tokens that a stream's usage counts.

    Raises:
        ValueError: it isn't a whole stream, or its answer was cut or went on.
    """
    events = answer.decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""]:
        raise ValueError(f"a stream ends with {events[-2:]}, not with [DONE]")
    usage = json.loads(events[-3].removeprefix("data: "))["usage"]
    if usage["completion_tokens"] != TOKENS:
        raise ValueError(f"{usage['completion_tokens']} tokens were answered, not {TOKENS}")
    return TOKENS
