"""The pools as the ingress sees them: which are up, and a handle to each."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("ray.serve")

DEPLOYMENT = "Pool"


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool at the last look."""

    ready: bool
    reason: str  # why it isn't ready, in a few words; "running" where it is


NOT_DEPLOYED = PoolState(False, "not deployed")


class PoolDirectory:
    """Looks at the pools' state in the background, so that a request never waits for the controller."""

    def __init__(self) -> None:
        self._states: dict[str, PoolState] = {}
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._looking: asyncio.Task[None] | None = None

    def state(self, pool: str) -> PoolState:
        return self._states.get(pool, NOT_DEPLOYED)

    def first_ready(self, pools: Iterable[str]) -> str | None:
        return next((pool for pool in pools if self.state(pool).ready), None)

    def handle(self, pool: str) -> DeploymentHandle[Any]:
        """A handle to a pool that was ready at the last look."""
        if pool not in self._handles:
            self._handles[pool] = serve.get_deployment_handle(DEPLOYMENT, app_name=pool, _check_exists=False)
        return self._handles[pool]

    def watch(self, interval_s: Callable[[], float]) -> None:
        """Begin to look; the first look is at once."""
        self._looking = asyncio.create_task(self._look_forever(interval_s))

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _look_forever(self, interval_s: Callable[[], float]) -> None:
        while True:
            try:
                self._states = read_states(await asyncio.to_thread(serve.status))
            except Exception as error:
                # The controller restarts now and then; pools serve on without it, so what was seen last stands.
                logger.warning("cannot read the pools' state, keeping the last: %s", error)
            await asyncio.sleep(interval_s())


def read_states(status: Any) -> dict[str, PoolState]:
    """Each application's state as a pool, from `serve.status()`."""
    return {name: _read_state(application) for name, application in status.applications.items()}


def _read_state(application: Any) -> PoolState:
    deployment = application.deployments.get(DEPLOYMENT)
    if deployment is None:
        reason = application.status.value.lower()
        return PoolState(False, "not a pool" if reason == "running" else reason)
    running = deployment.replica_states.get("RUNNING", 0)
    return PoolState(True, "running") if running else PoolState(False, deployment.status.value.lower())
