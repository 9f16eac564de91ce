"""The engines' own word of what they do, and that of the operating system: what no client can read."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from tests.live.server import Server

Counts = dict[str, int]

STOPPED_WITHIN_S = 10.0  # one forward pass of a prefill isn't broken off, and takes seconds on a busy machine
SILENT_WITHIN_S = 20.0  # a whole prefill, on a busy machine; the answers that are left would take minutes
SILENT_CORES = 0.2


@dataclass(frozen=True, slots=True)
class Witness:
    """Of one engine, and of the one that computes for it where that is another."""

    server: Server
    pools: tuple[str, ...]

    async def counts(self) -> Counts:
        """Requests that run and wait, as the engine itself counts; of the one that computes, where there are two."""
        return await self._counts_of(self.pools[-1])

    async def _counts_of(self, pool: str) -> Counts:
        from ray import serve

        handle: Any = serve.get_deployment_handle("Pool", app_name=pool)
        counts: Counts = await handle.stats.remote()
        return counts

    async def until(self, wanted: Callable[[Counts], bool], timeout_s: float, pool: str | None = None) -> None:
        """Return once the counts are as wanted.

        Raises:
            AssertionError: they weren't in time.
        """
        pool = pool or self.pools[-1]
        counts: Counts = {}
        try:
            async with asyncio.timeout(timeout_s):
                while not wanted(counts := await self._counts_of(pool)):  # noqa: ASYNC110 (in another process)
                    await asyncio.sleep(0.02)  # until the next look
        except TimeoutError:
            raise AssertionError(f"after {timeout_s:.0f} s the counts of {pool} are {counts}") from None

    async def until_idle(self, timeout_s: float = STOPPED_WITHIN_S) -> None:
        """Return once nothing runs and nothing waits, in any of the pools."""
        for pool in self.pools:
            await self.until(lambda counts: total(counts) == 0, timeout_s, pool)

    async def until_silent(self) -> None:
        """Return once the processes that compute fall silent, long before an answer of many tokens would end."""
        processes = self._processes()
        assert processes, "no process of the pool is found"
        used = 0.0
        try:
            async with asyncio.timeout(SILENT_WITHIN_S):
                while (used := await _cores_used(processes)) > SILENT_CORES:
                    pass
        except TimeoutError:
            raise AssertionError(f"the engine's processes still use {used:.1f} cores") from None

    def _processes(self) -> list[psutil.Process]:
        replicas = self.server.replicas(self.pools[-1])
        return [process for replica in replicas for process in (replica, *replica.children(recursive=True))]


def total(counts: Counts) -> int:
    return counts["running"] + counts["waiting"]


async def _cores_used(processes: list[psutil.Process]) -> float:
    """Cores that they use together, over half a second."""
    before = _cpu_s(processes)
    await asyncio.sleep(0.5)  # over which it is measured
    return 2 * (_cpu_s(processes) - before)


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def dashboard_of(context: Any) -> str:
    """Where `serve deploy` goes; `context` is what `joined` gives."""
    return f"http://{context.address_info['webui_url']}"


@contextmanager
def joined(server: Server) -> Iterator[Any]:
    """This process as a driver of the server's Ray, to ask pools what clients can't."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    # Drivers of a Ray that `enginehouse serve` started have to be on loopback too; read when Ray is imported. Ray's own
    # patience with an address that it can't reach is a quarter of an hour.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER is False, "Ray was imported before this was asked for"
    address = server.gcs_address()
    try:
        yield ray.init(address=address, namespace="serve", log_to_driver=False, logging_level=logging.ERROR)
    finally:
        from ray import serve

        # Serve keeps its controller's handle for as long as the job's id is the same, and another Ray's first job has
        # the same.
        serve.context._disconnect()  # type: ignore[no-untyped-call]
        ray.shutdown()
