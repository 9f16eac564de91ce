"""A client that leaves stops generation, with the engine's own count of running requests as witness."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import psutil
import pytest

from tests.live.server import Server

Stats = Callable[[], Awaitable[dict[str, int]]]
STORY = [{"role": "user", "content": "Write a very long story about a lighthouse keeper."}]
# Long enough that no engine here ends it by itself while a test looks.
LONG = {"messages": STORY, "max_tokens": 3000, "temperature": 0, "seed": 1}
STOPPED_WITHIN_S = 10.0  # one forward pass of a prefill isn't broken off, and takes seconds on a busy machine

SILENT_WITHIN_S = 20.0  # a whole prefill, on a busy machine; the answers that are left would take minutes


async def until(stats: Stats, wanted: Callable[[dict[str, int]], bool], timeout_s: float) -> dict[str, int]:
    async with asyncio.timeout(timeout_s):
        while not wanted(counts := await stats()):  # noqa: ASYNC110 (the engine is in another process)
            await asyncio.sleep(0.02)
    return counts


def total(counts: dict[str, int]) -> int:
    return counts["running"] + counts["waiting"]


def busy(counts: dict[str, int]) -> bool:
    return total(counts) > 0


def idle(counts: dict[str, int]) -> bool:
    return total(counts) == 0


@pytest.fixture(autouse=True)
async def starts_and_ends_idle(server: Server, stats: Stats) -> Any:
    """And not by its own word alone: the processes that compute fall silent, long before the answers would end."""
    await until(stats, idle, 30)
    yield
    await until(stats, idle, 30)
    names = ("VLLM::", "ServeReplica:transformers", "ServeReplica:vllm")
    computing = [p for p in server.processes() if any(name in " ".join(p.cmdline()) for name in names)]
    assert computing
    async with asyncio.timeout(SILENT_WITHIN_S):
        while await cpu_used(computing) > 0.2:
            pass


async def cpu_used(processes: list[psutil.Process]) -> float:
    """Cores that they use together, over half a second."""
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    await asyncio.sleep(0.5)
    return 2 * (sum(sum(process.cpu_times()[:2]) for process in processes) - before)


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
    body = {"model": model, "stream": True, **LONG, "messages": prompt, "max_tokens": 1500}
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
        assert total(await stats()) == 4
    await until(stats, idle, STOPPED_WITHIN_S)


async def test_leaving_while_waiting_for_a_place(client: httpx.AsyncClient, model: str, stats: Stats) -> None:
    """More requests than the engine runs at once: the waiting ones must leave its queue."""
    bodies = [{"model": model, **LONG, "max_tokens": 1000, "n": 8, "temperature": 1.0, "seed": i} for i in range(6)]
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
    await until(stats, lambda counts: total(counts) == 2, 20)
    leaving.cancel()
    answer = (await staying).json()
    assert answer["choices"][0]["message"] == alone["choices"][0]["message"]
