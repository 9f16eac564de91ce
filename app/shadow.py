"""Copies of requests for pools that are being tried: nobody waits for their answers, nobody sees them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ray.util.metrics import Counter

logger = logging.getLogger("ray.serve")

MOST = 64  # at once, of this process: a slow pool mustn't pile up copies


class Shadows:
    """The copies that are under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = Counter(
            "enginehouse_shadow_requests_total",
            description="Copies of requests for a shadow pool: answered, failed, or dropped for too many under way.",
            tag_keys=("pool", "outcome"),
        )

    def send(self, pool: str, asking: Coroutine[Any, Any, None]) -> None:
        """Have a copy answered; `asking` reads the whole answer."""
        if len(self._tasks) >= MOST:
            asking.close()
            self._count.inc(tags={"pool": pool, "outcome": "dropped"})
            return
        task = asyncio.create_task(self._run(pool, asking))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, pool: str, asking: Coroutine[Any, Any, None]) -> None:
        try:
            await asking
        except Exception as error:
            logger.info("shadow pool %s failed: %r", pool, error)
            self._count.inc(tags={"pool": pool, "outcome": "failed"})
        else:
            self._count.inc(tags={"pool": pool, "outcome": "answered"})
