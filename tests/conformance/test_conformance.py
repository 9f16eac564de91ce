"""The suite under pytest: every check on every engine that is installed here, on the tests' one server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments import registry
from tests.conformance.checks import CHECKS
from tests.conformance.running import client_of, run_engines, subject_of, waits
from tests.conformance.server_config import engines_here, model_of
from tests.conformance.subject import Subject
from tests.conformance.suite import Check, Result, carry_out
from tests.live.fixtures import BEHIND
from tests.live.server import Server

pytestmark = pytest.mark.live

INSTALLED = engines_here()


def chosen(waiting: bool) -> list[Any]:
    """The engines that wait most of the time, or those that compute; with a reason where one isn't here."""
    names = [name for name in dict.fromkeys([*INSTALLED, *registry.ENGINES]) if waits(name, BEHIND) is waiting]
    absent = "{0} isn't installed; run 'enginehouse engines install {0}'"
    return [
        name if name in INSTALLED else pytest.param(name, marks=pytest.mark.skip(absent.format(name))) for name in names
    ]


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


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("engine", chosen(waiting=False))
async def test_computing_engine(subject: Subject, name: str) -> None:
    judge(await carry_out(CHECKS[name], subject))


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("engine", chosen(waiting=True))
def test_waiting_engine(results: dict[str, dict[str, Result]], engine: str, name: str) -> None:
    judge(results[engine][name])


def judge(result: Result) -> None:
    if result.outcome == "n/a":
        pytest.skip(result.reason)
    assert result.outcome in ("pass", "refused"), result.reason
