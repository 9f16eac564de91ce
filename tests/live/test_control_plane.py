"""Serve's controller, or the head of a Ray cluster, dies under load: clients notice nothing, and afterwards everything
is managed again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.flags import free_port
from tests.conformance.witness import joined
from tests.faults import control
from tests.faults.load import Tally
from tests.live.server import Server, serving
from tests.waiting import wait_until

REPLICAS = 2
TOKEN_S = 0.1  # so that an answer takes 2 s
AWAY_S = 15.0  # that the head stays away; many times as long as an answer takes


def config(port: int) -> dict[str, Any]:
    pool = {
        "name": "steady",
        "route_prefix": None,
        "import_path": "deployments.pool:build",
        "deployments": [{"name": "Pool", "num_replicas": REPLICAS}],
        "args": {
            "engine": "simulated",
            "model": "steady",
            "num_cpus": 0.1,
            "engine_args": {"token_interval_s": TOKEN_S, "answer_tokens": 1000},
        },
    }
    ingress = {
        "name": "ingress",
        "route_prefix": "/",
        "import_path": "app.main:build",
        # One that asks for no CPU may be put on the head, which has none to give.
        "deployments": [
            {
                "name": "Ingress",
                "ray_actor_options": {"num_cpus": 0.1},
                "user_config": {"models": {"steady": {"pools": ["steady"]}}},
            }
        ],
    }
    http = {"host": "127.0.0.1", "port": port}
    return {"proxy_location": "EveryNode", "http_options": http, "applications": [ingress, pool]}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return config(free_port())


@pytest.fixture
def server(document: dict[str, Any], tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    port = document["http_options"]["port"]
    with serving(path, port, environ={"PYTHONPATH": str(control.ROOT)}) as server:
        yield server


@pytest.fixture
def dashboard(server: Server) -> str:
    with joined(server) as context:
        return f"http://{context.address_info['webui_url']}"


@pytest.fixture(params=control.STORES)
def cluster(request: pytest.FixtureRequest, document: dict[str, Any]) -> Iterator[control.Cluster]:
    if lack := control.missing(request.param):
        pytest.skip(lack)
    with control.clustered(document, request.param) as cluster:
        yield cluster


def all_answered(*tallies: Tally) -> None:
    for tally in tallies:
        assert (tally.told, tally.cut, tally.wrong) == ({}, {}, {})
        assert tally.answered["steady"] == tally.all > 0


async def begun_since(tally: Tally, clients: int, seconds: float) -> None:
    """Return once answers have come that were asked for now: clients are answered, not only kept waiting."""
    enough = tally.answered.total() + 2 * clients
    await asyncio.to_thread(wait_until, lambda: tally.answered.total() >= enough, "new requests are answered", seconds)


async def test_the_controller_is_killed(server: Server, dashboard: str, document: dict[str, Any]) -> None:
    processes = {process.pid for process in server.replicas("steady") + server.replicas("ingress")}
    assert len(processes) == REPLICAS + 1
    async with control.asking(server.url, "steady", 6) as short, control.asking(server.url, "steady", 2, 100) as long:
        await begun_since(short, 6, 30)
        await control.kill_controller(server)
        await begun_since(short, 6, 30)
    all_answered(short, long)
    assert {process.pid for process in server.replicas("steady") + server.replicas("ingress")} == processes
    assert await control.is_managed(server, dashboard, document, "steady")


async def test_the_head_is_killed_and_comes_back(cluster: control.Cluster) -> None:
    server = cluster.server
    heads = {process.pid for process in cluster.processes("head")}
    processes = {process.pid for process in server.replicas("steady") + server.replicas("ingress")}
    assert len(processes) == REPLICAS + 1 and not processes & heads
    async with control.asking(server.url, "steady", 6) as short, control.asking(server.url, "steady", 2, 200) as long:
        await begun_since(short, 6, 30)
        await control.kill_head(cluster)
        assert not await asyncio.to_thread(cluster.processes, "head")
        await asyncio.sleep(AWAY_S)
        await begun_since(short, 6, 30)
        await control.restart_head(cluster)
        await begun_since(short, 6, 30)
    all_answered(short, long)
    assert {process.pid for process in server.replicas("steady") + server.replicas("ingress")} == processes
    assert await control.is_managed(server, cluster.dashboard, cluster.config, "steady")
