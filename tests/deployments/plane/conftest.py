"""What both ends of the token plane are tested with."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import pytest

from deployments.plane import hub, line
from deployments.plane.hub import Hub

HOST, NODE = "127.0.0.1", "node-a"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve's logger, once set up by other tests, keeps its lines to itself."""
    for module in (hub, line):
        monkeypatch.setattr(module, "logger", logging.getLogger("token-plane"))


@pytest.fixture
async def door() -> AsyncIterator[Hub]:
    opened = Hub()
    await opened.start(NODE, HOST)
    yield opened
    await opened.stop()


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(60):
        return await work
