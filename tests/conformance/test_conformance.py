"""The suite under pytest: every check on every engine that is installed here, on the tests' one server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments import registry
from tests.conformance.checks import CHECKS
from tests.conformance.running import client_of, subject_of
from tests.conformance.server_config import engines_here, model_of
from tests.conformance.subject import Subject
from tests.conformance.suite import carry_out
from tests.live.fixtures import BEHIND
from tests.live.server import Server

pytestmark = pytest.mark.live

INSTALLED = engines_here()
ENGINES = [
    *INSTALLED,
    *(
        pytest.param(name, marks=pytest.mark.skip(f"{name} isn't installed; run 'enginehouse engines install {name}'"))
        for name in registry.ENGINES
        if name not in INSTALLED
    ),
]


@pytest.fixture
async def subject(server: Server, cluster: Any, engine: str) -> AsyncIterator[Subject]:
    async with client_of(server.url) as client:
        yield await subject_of(client, model_of(engine), server, BEHIND)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("engine", ENGINES)
async def test_engine(subject: Subject, name: str) -> None:
    result = await carry_out(CHECKS[name], subject)
    if result.outcome == "n/a":
        pytest.skip(result.reason)
    assert result.outcome in ("pass", "refused"), result.reason
