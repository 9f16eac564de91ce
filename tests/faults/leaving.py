"""Clients that leave before their answer is whole, and how long an engine goes on after that."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from tests.faults.rig import Rig
from tests.faults.suite import Seen

STOPS_WITHIN_MS = 20  # the engine, after its client has left; in the median
LONG = "Tell me of the sea and of the moon. " * 60
TOKENS = 3000

Body = dict[str, object]
Leave = Callable[[Rig, aiohttp.ClientSession, Body], Awaitable[None]]


async def leave(
    rig: Rig, model: str, rounds: int, seen: Seen, fields: Mapping[str, object] | None = None, noise_ms: float = 0
) -> None:
    """Ask a model whose pool has its name for long answers, and leave; in three ways, so many times each."""
    ways = {"in mid-stream": _in_mid_stream, "before a token": _before, "whole": _whole}
    body: Body = {"model": model, "max_tokens": TOKENS, **(fields or {})}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        for when, way in ways.items():
            took_ms = [await _stops(rig, session, way, body) for _ in range(rounds)]
            median = seen.counts[f"ms {when}"] = round(statistics.median(took_ms), 1)
            seen.must(median <= STOPS_WITHIN_MS + noise_ms, f"{when}: the engine stops after {median} ms")
    seen.counts["left"] = len(ways) * rounds


async def token_interval_ms(rig: Rig, model: str, fields: Mapping[str, object]) -> float:
    """How long an engine takes for a token at present, on this machine; the mean of a stream, for tokens may come
    several at a time."""
    body = {"model": model, "max_tokens": 100, **fields, **_asking("Hi.", stream=True)}
    loop = asyncio.get_running_loop()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{rig.url}/v1/chat/completions", json=body) as answer,
    ):
        came_s = [loop.time() async for line in answer.content if line.startswith(b"data: ")]
    return (came_s[-1] - came_s[0]) / (len(came_s) - 1) * 1000


async def _stops(rig: Rig, session: aiohttp.ClientSession, way: Leave, body: Body) -> float:
    """How long an engine goes on after a client has left, in ms, as far as its own counts show."""
    await way(rig, session, body)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(10):
        while await rig.busy(str(body["model"])):
            pass
    return (loop.time() - began_s) * 1000


def _asking(prompt: str, *, stream: bool) -> Body:
    return {"messages": [{"role": "user", "content": prompt}], "stream": stream}


async def _in_mid_stream(rig: Rig, session: aiohttp.ClientSession, body: Body) -> None:
    answer = await session.post(f"{rig.url}/v1/chat/completions", json=body | _asking("Hi.", stream=True))
    for _ in range(5):
        await answer.content.readline()
    answer.close()


async def _before(rig: Rig, session: aiohttp.ClientSession, body: Body) -> None:
    await _leave_unanswered(rig, session, body | _asking(LONG, stream=True))


async def _whole(rig: Rig, session: aiohttp.ClientSession, body: Body) -> None:
    await _leave_unanswered(rig, session, body | _asking("Hi.", stream=False))


async def _leave_unanswered(rig: Rig, session: aiohttp.ClientSession, body: Body) -> None:
    asked = asyncio.ensure_future(session.post(f"{rig.url}/v1/chat/completions", json=body))
    async with asyncio.timeout(10):
        while not await rig.busy(str(body["model"])):
            assert not asked.done()
    asked.cancel()
