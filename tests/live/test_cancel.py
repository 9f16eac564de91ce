"""A client that leaves stops generation, with the engine's own count of running requests as witness."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.live.server import Server

Stats = Callable[[], Awaitable[dict[str, int]]]
STORY = [{"role": "user", "content": "Write a very long story about a lighthouse keeper."}]
# Long enough that no engine here ends it by itself while a test looks.
LONG = {"messages": STORY, "max_tokens": 3000, "temperature": 0, "seed": 1}
STOPPED_WITHIN_S = 3.0  # one forward pass of a prefill takes a second here, and is not broken off


async def until(stats: Stats, wanted: Callable[[dict[str, int]], bool], timeout_s: float) -> dict[str, int]:
    async with asyncio.timeout(timeout_s):
        while not wanted(counts := await stats()):  # noqa: ASYNC110 (the engine is in another process)
            await asyncio.sleep(0.02)
    return counts


def busy(counts: dict[str, int]) -> bool:
    return counts["running"] > 0


def idle(counts: dict[str, int]) -> bool:
    return counts["running"] == counts["waiting"] == 0


@pytest.fixture(autouse=True)
async def starts_and_ends_idle(stats: Stats) -> Any:
    await until(stats, idle, 30)
    yield
    await until(stats, idle, 30)


async def test_leaving_in_mid_stream(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    async with client.stream("POST", "/v1/chat/completions", json={"model": model, "stream": True, **LONG}) as answer:
        lines = answer.aiter_lines()
        for _ in range(8):
            await anext(lines)
        assert busy(await stats())
    await until(stats, idle, STOPPED_WITHIN_S)


async def test_leaving_before_the_first_token(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    """While the prompt, long on purpose, is still being read."""
    prompt = [{"role": "user", "content": "one two three four five " * 500}]
    body = {"model": model, "stream": True, **LONG, "messages": prompt, "max_tokens": 500}
    request = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    await until(stats, busy, 20)
    assert not request.done()
    request.cancel()
    await until(stats, idle, STOPPED_WITHIN_S)


async def test_leaving_a_request_that_is_not_streamed(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    request = asyncio.create_task(client.post("/v1/chat/completions", json={"model": model, **LONG}))
    await until(stats, busy, 20)
    await asyncio.sleep(0.5)
    request.cancel()
    await until(stats, idle, STOPPED_WITHIN_S)


async def test_leaving_all_choices_of_a_request(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    body = {"model": model, "stream": True, **LONG, "temperature": 1.0, "n": 4}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(8):
            await anext(lines)
        assert (await stats())["running"] == 4
    await until(stats, idle, STOPPED_WITHIN_S)


async def test_leaving_while_waiting_for_a_place(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    """More requests than the engine runs at once: the waiting ones must leave its queue."""
    bodies = [{"model": model, **LONG, "max_tokens": 300, "n": 8, "temperature": 1.0, "seed": i} for i in range(6)]
    requests = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
    await until(stats, lambda counts: counts["waiting"] > 0, 30)
    for request in requests:
        request.cancel()
    await until(stats, idle, STOPPED_WITHIN_S)


async def test_others_go_on_when_one_leaves(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0}
    alone = (await client.post("/v1/chat/completions", json={**body, "max_tokens": 40})).json()
    staying = asyncio.create_task(client.post("/v1/chat/completions", json={**body, "max_tokens": 40}))
    leaving = asyncio.create_task(client.post("/v1/chat/completions", json={"model": model, **LONG}))
    await until(stats, lambda counts: counts["running"] == 2, 20)
    leaving.cancel()
    answer = (await staying).json()
    assert answer["choices"][0]["message"] == alone["choices"][0]["message"]


async def test_engine_core_falls_silent(client: httpx.AsyncClient, server: Server, model: str, stats: Stats) -> None:
    """The processes that compute use no more CPU: the counters don't only say so."""
    async with client.stream("POST", "/v1/chat/completions", json={"model": model, "stream": True, **LONG}) as answer:
        await anext(answer.aiter_lines())
    await until(stats, idle, STOPPED_WITHIN_S)
    await asyncio.sleep(0.5)
    names = ("EngineCore", "ServeReplica:transformers", "ServeReplica:vllm")
    computing = [p for p in server.processes() if any(name in " ".join(p.cmdline()) for name in names)]
    assert computing
    before = [process.cpu_times() for process in computing]
    await asyncio.sleep(2)
    after = [process.cpu_times() for process in computing]
    used = [(b.user + b.system) - (a.user + a.system) for a, b in zip(before, after, strict=True)]
    assert max(used) < 0.5, dict(zip([" ".join(p.cmdline())[:60] for p in computing], used, strict=True))
