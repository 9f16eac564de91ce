"""A clock for tests of what waits: it goes on at once where nothing else is left to do, and stands while code runs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture
async def virtual_time() -> AsyncIterator[None]:
    """The test's event loop has such a clock: waits take no time, and no machine is too slow for a time limit.

    For tests in one process without sockets and threads: nothing tells the clock that it has to wait for those.
    """
    loop: Any = asyncio.get_running_loop()
    selector, now = loop._selector, loop.time()
    select = selector.select

    def pass_over(timeout: float | None) -> Any:
        nonlocal now
        if timeout is None:  # nothing that waits for a time
            return select(None)
        ready = select(0)
        now += 0 if ready else timeout
        return ready

    selector.select, loop.time = pass_over, lambda: now
    yield
    del selector.select, loop.time
