"""The suite under pytest: every check on every engine that is installed here, or on those of `--engine`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments import registry
from tests.conformance.checks import CHECKS
from tests.conformance.judging import judge
from tests.conformance.running import client_of, run_engines, subject_of, waits
from tests.conformance.server_config import model_of
from tests.conformance.subject import Subject
from tests.conformance.suite import Check, Result, carry_out
from tests.live.fixtures import BEHIND, engine_params
from tests.live.server import Server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Engines that wait most of the time are tested by one function, those that compute by the other."""
    waiting = metafunc.function is test_waiting_engine
    names = [name for name in registry.ENGINES if waits(name, BEHIND) is waiting]
    engines = engine_params(metafunc.config, names)
    pairs = [pytest.param(*each.values, name, marks=each.marks) for each in engines for name in CHECKS]
    metafunc.parametrize(("engine", "name"), pairs)


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, server: Server, cluster: Any) -> dict[str, dict[str, Result]]:
    """What comes of the checks that were chosen, on the engines that wait most of the time: these run at once."""
    wanted: dict[str, dict[str, Check]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.function is test_waiting_engine:
            params: dict[str, Any] = dict(item.callspec.params)
            wanted.setdefault(params["engine"], {})[params["name"]] = CHECKS[params["name"]]
    return asyncio.run(run_engines(server, wanted, lambda *_: None, BEHIND))


@pytest.fixture
async def subject(server: Server, cluster: Any, engine: str) -> AsyncIterator[Subject]:
    async with client_of(server.url) as client:
        yield await subject_of(client, model_of(engine), server, BEHIND)


async def test_computing_engine(subject: Subject, name: str) -> None:
    judge(await carry_out(CHECKS[name], subject))


def test_waiting_engine(results: dict[str, dict[str, Result]], engine: str, name: str) -> None:
    judge(results[engine][name])
