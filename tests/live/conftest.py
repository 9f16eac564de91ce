"""One real server, with every engine that this machine has, for all tests that don't break it."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments import environments
from tests.live.server import Server, serving

ROOT = Path(__file__).parents[2]
CONFIGS = {True: ROOT / "cluster" / "cpu-engines.yaml", False: ROOT / "tests" / "live" / "transformers.yaml"}

HAS_VLLM = environments.environment("vllm").installed
NO_VLLM = "vLLM's environment isn't installed; run 'enginehouse engines install vllm'"

# Each engine, as (model, pool).
TRANSFORMERS = pytest.param(("smollm2-transformers", "transformers"), id="transformers")
VLLM = pytest.param(("smollm2-vllm", "vllm"), id="vllm", marks=pytest.mark.skipif(not HAS_VLLM, reason=NO_VLLM))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session")
def config() -> Path:
    return CONFIGS[HAS_VLLM]


@pytest.fixture(scope="session")
def server(config: Path) -> Iterator[Server]:
    with serving(config) as running:
        yield running


@pytest.fixture(params=[TRANSFORMERS, VLLM])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def model(engine: tuple[str, str]) -> str:
    return engine[0]


@pytest.fixture
def pool(engine: tuple[str, str]) -> str:
    return engine[1]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=server.url, timeout=180, limits=limits) as open_client:
        yield open_client


@pytest.fixture(scope="session")
def cluster(server: Server) -> Iterator[Any]:
    """This process as a driver of the server's Ray, to ask pools what clients can't."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray

    # Ray's own patience with an address that it can't reach is a quarter of an hour.
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER is False, "tests/conftest.py must be read before ray is"
    context = ray.init(
        address=server.gcs_address(), namespace="serve", log_to_driver=False, logging_level=logging.ERROR
    )
    yield context
    ray.shutdown()


@pytest.fixture
def stats(cluster: Any, pool: str) -> Callable[[], Any]:
    """The engine's own counts: an awaitable of {"running", "waiting"}."""
    from ray import serve

    handle: Any = serve.get_deployment_handle("Pool", app_name=pool)

    async def read() -> dict[str, int]:
        counts: dict[str, int] = await handle.stats.remote()
        return counts

    return read
