"""What is done to a real server on purpose, under load, and what its clients see of it."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.load import Clients
from tests.live.server import Server, serving
from tests.waiting import free_port, wait_until

REPLICAS = 3
BREAKER = {"window": 4, "min_failures": 2, "open_s": 2}
TIMEOUTS = {"first_token_s": 2, "total_s": 4}


def pool(name: str, engine: str = "simulated", replicas: int = 1, **engine_args: Any) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": None,
        "import_path": "deployments.pool:build",
        "deployments": [{"name": "Pool", "num_replicas": replicas}],
        "args": {"engine": engine, "model": name, "served_name": "m", "num_cpus": 0.1, "engine_args": engine_args},
    }


def config(port: int) -> dict[str, Any]:
    paced: dict[str, Any] = {"token_interval_s": 0.01, "answer_tokens": 1000}
    pools = [
        pool("steady", replicas=REPLICAS, **paced),
        pool("spare", **paced),
        pool("stuck", faults={"hang_rate": 1}),
        pool("down", "openai", urls=[f"http://127.0.0.1:{free_port()}/v1"]),
    ]
    models = {first: {"pools": [first, "spare"]} for first in ("steady", "stuck", "down")}
    settings = {
        "models": {**models, "alone": {"pools": ["steady"]}},
        "resilience": {"breaker": BREAKER},
        "admission": {"timeouts": TIMEOUTS},
    }
    ingress = {
        "name": "ingress",
        "route_prefix": "/",
        "import_path": "app.main:build",
        "deployments": [{"name": "Ingress", "user_config": settings}],
    }
    return {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [ingress, *pools]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    path = tmp_path_factory.mktemp("faults") / "config.yaml"
    path.write_text(yaml.safe_dump(config(port)))
    with serving(path, port, environ={"PYTHONPATH": str(Path(__file__).parents[2])}) as server:
        yield server


@pytest.mark.parametrize("model", ["steady", "alone"])
async def test_a_replica_is_killed_under_load(server: Server, model: str) -> None:
    clients, victims = Clients(server.url, model, clients=30), server.replicas("steady")
    assert len(victims) == REPLICAS
    tally = await clients.run(1200, partial(os.kill, victims[0].pid, signal.SIGKILL))
    assert (tally.wrong, tally.cut, tally.all) == ({}, {}, 1200)
    # Only streams that had begun were lost: a third of those that were under way, at most.
    assert set(tally.told) <= {"engine_lost"} and tally.told.total() <= 15
    assert tally.answered["steady"] > 600
    wait_until(lambda: len(server.replicas("steady")) == REPLICAS and server.is_ready(), "the pool is whole again", 120)
    whole = await Clients(server.url, model, clients=10).run(100)
    assert (whole.answered["steady"], whole.told) == (100, {})


async def test_servers_that_are_down_are_passed_over(server: Server) -> None:
    tally = await Clients(server.url, "down", clients=1).run(30)
    assert (tally.answered, tally.wrong, tally.cut, tally.told) == ({"spare": 30}, {}, {}, {})
    assert tally.attempts[2] >= 2 and tally.attempts[1] >= 20  # tried, then left alone


async def test_an_engine_that_hangs_is_left_alone_and_the_others_go_on(server: Server) -> None:
    tally = await Clients(server.url, "stuck", clients=4).run(200)
    assert (tally.wrong, tally.cut) == ({}, {})
    assert set(tally.told) == {"first_token_timeout", "total_timeout"} and tally.told.total() <= 16
    assert set(tally.answered) == {"spare"}
