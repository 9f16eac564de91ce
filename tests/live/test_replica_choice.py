"""Which replicas requests go to on a real server: a pool of three that chooses by prefix, and one that doesn't."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.configs import pool_application
from tests.live.fixtures import changed
from tests.live.server import Server
from tests.waiting import wait_until

REPLICAS = 3
LONG = 4000  # tokens of an answer that goes on until its client leaves
CHOICES = ("prefix", "least_outstanding")
WORDS = "The quick brown fox jumps over the lazy dog while the band plays on and on. " * 30


POOLS = [
    pool_application(
        choice,
        {"num_replicas": REPLICAS},
        {
            "engine": "simulated",
            "model": choice,
            "num_cpus": 0.1,
            "replica_choice": choice,
            "engine_args": {"token_interval_s": 0.02, "answer_tokens": LONG},
        },
    )
    for choice in CHOICES
]


@pytest.fixture(scope="module")
def pools(server: Server, cluster: Any, config: Path) -> Iterator[Server]:
    with changed(server, config, {}, *POOLS):
        wait_until(lambda: described(server), "the ingress knows what both pools are")
        wait_until(all_run, "every replica")  # a pool is ready as soon as it has one
        time.sleep(1)  # until the ingress's router has heard of them, which nothing shows
        yield server


def all_run() -> bool:
    from ray import serve
    from ray.serve._private.common import ReplicaState

    states = [serve.status().applications[choice].deployments["Pool"].replica_states for choice in CHOICES]
    return all(each.get(ReplicaState.RUNNING) == REPLICAS for each in states)


def described(server: Server) -> bool:
    return all(model["engines"] for model in httpx.get(f"{server.url}/v1/models").json()["data"])


async def ask(client: httpx.AsyncClient, pool: str, conversation: str, turns: int = 0, **fields: Any) -> None:
    messages = [{"role": "system", "content": f"{conversation}. {WORDS}"}, {"role": "user", "content": "Hello"}]
    messages += [{"role": ("assistant", "user")[turn % 2], "content": WORDS} for turn in range(2 * turns)]
    body = {"model": pool, "messages": messages, "max_tokens": 4, **fields}
    answer = await client.post("/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


async def prompt_tokens(pool: str) -> list[int]:
    """What each replica was sent, in the order of their names."""
    return [each["prompt_tokens"] for each in await stats(pool)]


async def stats(pool: str) -> list[dict[str, Any]]:
    from ray import serve

    handle: Any = serve.get_deployment_handle("Pool", app_name=pool)
    found = await handle.broadcast("stats").results_async(timeout_s=30)
    assert len(found) == REPLICAS
    return list(found)


async def leave(asks: list[asyncio.Task[None]], pool: str) -> None:
    """Have the clients leave, and return once the pool has noticed."""
    for task in asks:
        task.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    async with asyncio.timeout(60):
        while any(each["running"] + each["waiting"] for each in await stats(pool)):
            pass


def gained(before: list[int], after: list[int]) -> list[int]:
    """How many tokens more, of those replicas that had any."""
    return [more for more in (now - then for then, now in zip(before, after, strict=True)) if more]


async def test_turns_of_a_conversation_go_to_one_replica_and_conversations_to_all(pools: Server) -> None:
    async with httpx.AsyncClient(base_url=pools.url) as client:
        before, used = await prompt_tokens("prefix"), set[int]()
        for conversation in "ABCDEFGH":
            for turns in range(3):
                await ask(client, "prefix", conversation, turns)
            after = await prompt_tokens("prefix")
            changed = [index for index, count in enumerate(after) if count != before[index]]
            assert len(changed) == 1, f"conversation {conversation} went to several replicas"
            used.update(changed)
            before = after
        assert len(used) == REPLICAS
    found = await stats("prefix")
    # Of three turns, each twice a question longer than the one before, 4 parts of 9 were there before.
    assert all(each["prefix_hit_rate"] > 0.4 for each in found), found


async def test_without_it_the_same_turns_go_to_all(pools: Server) -> None:
    async with httpx.AsyncClient(base_url=pools.url) as client:
        before = await prompt_tokens("least_outstanding")
        for turns in range(3):
            await ask(client, "least_outstanding", "A", turns)
        assert len(gained(before, await prompt_tokens("least_outstanding"))) == REPLICAS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("pool", CHOICES)
async def test_one_prefix_of_many_at_once_is_spread(pools: Server, pool: str, stream: bool) -> None:
    """Their answers last until all have been seen together."""
    async with httpx.AsyncClient(base_url=pools.url) as client:
        body = {"max_tokens": LONG, "stream": stream}
        asks = [asyncio.create_task(ask(client, pool, "the same", **body)) for _ in range(24)]
        async with asyncio.timeout(60):
            while sum(running := [each["running"] + each["waiting"] for each in await stats(pool)]) < 24:
                assert not any(task.done() for task in asks), running
        await leave(asks, pool)
    assert sum(running) == 24, running
    assert max(running) <= (8 if pool == "least_outstanding" else 10), running


async def test_clients_that_leave_leave_no_load(pools: Server) -> None:
    """What they leave behind would keep requests away from their replica."""
    async with httpx.AsyncClient(base_url=pools.url) as client:
        asks = [asyncio.create_task(ask(client, "prefix", "left", max_tokens=LONG, stream=True)) for _ in range(12)]
        async with asyncio.timeout(60):
            while sum(each["running"] for each in await stats("prefix")) < 12:
                assert not any(task.done() for task in asks)
        await leave(asks, "prefix")
        before = await prompt_tokens("prefix")
        for turns in range(4):
            await ask(client, "prefix", "after", turns)
        assert len(gained(before, await prompt_tokens("prefix"))) == 1
