"""The suite where streams come by Ray's handle, which is what a pool falls back to; switched while the server runs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.checks import CHECKS
from tests.conformance.judging import judge
from tests.conformance.running import run_engines
from tests.conformance.server_config import model_of
from tests.conformance.suite import Result
from tests.live.fixtures import BEHIND, changed
from tests.live.server import Server
from tests.waiting import until

ENGINE = "simulated"


@pytest.fixture(scope="module")
def results(server: Server, cluster: Any, config: Path) -> Iterator[dict[str, Result]]:
    with changed(server, config, {"token_plane": False}):
        yield asyncio.run(_run(server))


async def _run(server: Server) -> dict[str, Result]:
    async def is_off() -> bool:
        return not await streams(server)

    await until(is_off, "streams come by the handle")
    found = await run_engines(server, {ENGINE: CHECKS}, lambda *_: None, BEHIND)
    assert await is_off()
    return found[ENGINE]


async def streams(server: Server) -> int:
    """How many the ingress has by the token plane, while a client reads one."""
    from ray import serve

    handle: Any = serve.get_deployment_handle("Ingress", app_name="ingress")
    messages = [{"role": "user", "content": "Hi."}]
    body = {"model": model_of(ENGINE), "stream": True, "max_tokens": 500, "messages": messages}
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        await anext(answer.aiter_lines())
        stats: dict[str, int] = await handle.stats.remote()
        return stats["streams"]


@pytest.mark.parametrize("name", CHECKS)
def test_check(results: dict[str, Result], name: str) -> None:
    judge(results[name])
