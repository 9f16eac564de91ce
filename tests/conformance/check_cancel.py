"""A client that leaves stops generation, in every phase, with the engine's own counts and its CPU time as witnesses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.conformance.reading import text_of
from tests.conformance.subject import Subject
from tests.conformance.suite import NotApplicableError, check
from tests.conformance.witness import Witness, total

CHAT = "/v1/chat/completions"
STORY = [{"role": "user", "content": "Write a very long story about a lighthouse keeper."}]
# Long enough that no engine here ends it by itself while a check looks.
LONG: dict[str, Any] = {"messages": STORY, "max_tokens": 3000, "temperature": 0}
BUSY_WITHIN_S = 30.0


@asynccontextmanager
async def idle_before_and_after(subject: Subject) -> AsyncIterator[Witness]:
    """The engine starts idle, and ends so, not by its own word alone.

    Raises:
        NotApplicableError: nobody can read its counts.
    """
    witness = subject.witness
    if witness is None:
        raise NotApplicableError("the engine's own counts can't be read through a server's door")
    await witness.until_idle(30)
    yield witness
    await witness.until_idle()
    await witness.until_silent()


async def busy(witness: Witness) -> None:
    await witness.until(lambda counts: total(counts) > 0, BUSY_WITHIN_S)


@check("leaving in mid-stream")
async def mid_stream(subject: Subject) -> None:
    """A client that leaves while an answer streams stops it."""
    async with idle_before_and_after(subject) as witness, subject.lines(CHAT, LONG) as lines:
        for _ in range(8):
            await anext(lines)
        assert total(await witness.counts()) == 1


@check("leaving before the first token")
async def prefill(subject: Subject) -> None:
    """A client that leaves while its prompt, long on purpose, is still being read stops that."""
    async with idle_before_and_after(subject) as witness:
        prompt = [{"role": "user", "content": "one two three four five " * 400}]
        body = {**LONG, "messages": prompt, "max_tokens": 1500, "stream": True}
        request = asyncio.create_task(subject.post(CHAT, body))
        await busy(witness)
        assert not request.done()
        request.cancel()


@check("leaving a request that isn't streamed")
async def whole(subject: Subject) -> None:
    """A client that leaves while it waits for a whole answer stops it."""
    async with idle_before_and_after(subject) as witness:
        request = asyncio.create_task(subject.post(CHAT, LONG))
        await busy(witness)
        await asyncio.sleep(0.5)  # so that it is in the middle of its answer
        assert not request.done()
        request.cancel()


@check("leaving a completion", needs=["completions"])
async def completion(subject: Subject) -> None:
    """A client that leaves while a completion of two prompts streams stops both."""
    body = {"prompt": ["Once upon a time", "One, two, three,"], "max_tokens": 2000, "temperature": 1}
    async with idle_before_and_after(subject) as witness, subject.lines("/v1/completions", body) as lines:
        for _ in range(6):
            await anext(lines)
        assert total(await witness.counts()) > 0


@check("leaving all choices", needs=["n"])
async def choices(subject: Subject) -> None:
    """A client that leaves stops every one of n choices."""
    body = {**LONG, "temperature": 1.0, "n": 4}
    async with idle_before_and_after(subject) as witness, subject.lines(CHAT, body) as lines:
        for _ in range(8):
            await anext(lines)
        assert total(await witness.counts()) > 0


@check("leaving while waiting for a place", timeout_s=240)
async def queued(subject: Subject) -> None:
    """Of more requests than the engine runs at once, those that wait leave its queue with their clients."""
    async with idle_before_and_after(subject) as witness:
        bodies = [{**LONG, "max_tokens": 1000, "temperature": 1.0} for _ in range(48)]
        requests = [asyncio.create_task(subject.post(CHAT, body)) for body in bodies]
        await witness.until(lambda counts: counts["waiting"] > 0 and total(counts) == len(bodies), 60)
        for request in requests:
            request.cancel()


@check("others go on when one leaves")
async def others(subject: Subject) -> None:
    """When one client leaves, the answer of another that runs beside it is what it is alone."""
    async with idle_before_and_after(subject) as witness:
        alone = text_of(await subject.chat("Count to ten.", max_tokens=32))
        staying = asyncio.create_task(subject.chat("Count to ten.", max_tokens=32))
        leaving = asyncio.create_task(subject.post(CHAT, LONG))
        await witness.until(lambda counts: total(counts) == 2, BUSY_WITHIN_S)
        leaving.cancel()
        assert text_of(await staying) == alone


@check("leaving again and again")
async def again(subject: Subject) -> None:
    """Twenty clients that come and leave at different moments leave nothing behind."""
    async with idle_before_and_after(subject):
        for number in range(20):
            request = asyncio.create_task(subject.post(CHAT, {**LONG, "stream": number % 2 == 0}))
            await asyncio.sleep(0.02 * (number % 8))  # each leaves at another moment
            request.cancel()
