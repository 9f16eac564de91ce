"""The counts of servers that run elsewhere: their own, where their metrics can be read, else this pool's requests."""

import asyncio
import logging

import httpx

from deployments import metric_names
from deployments.engine import EngineStats
from deployments.upstream import DOCUMENT_LIMIT, Upstream
from deployments.upstream_server import Server

logger = logging.getLogger("ray.serve")


class UpstreamStats:
    """Reads the metrics of one pool's servers, which are those of `program`; None: nobody knows what runs there."""

    def __init__(self, upstream: Upstream, program: str | None) -> None:
        self._upstream = upstream
        self._program = program
        self._without_metrics: set[Server] = set()

    async def read(self) -> EngineStats:
        own = EngineStats(running=self._upstream.in_flight, waiting=0)
        if self._program is None:
            return own
        up = [server for server in self._upstream.servers if server.state == "up"]
        read = await asyncio.gather(*(self._of(server, self._program) for server in up))
        known = [stats for stats in read if stats is not None]
        return metric_names.combine(known) if known else own

    async def _of(self, server: Server, program: str) -> EngineStats | None:
        """A server's own count; None, and a word in the log once, where it can't be had."""
        try:
            path = metric_names.ENGINES[program].path
            text = (await self._upstream.get(server.root + path, DOCUMENT_LIMIT)).decode("utf-8", "replace")
            stats = metric_names.read_stats(text, program)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            if server not in self._without_metrics:
                self._without_metrics.add(server)
                logger.warning("remote server %s gives no metrics: %s", server.url, error)
            return None
        self._without_metrics.discard(server)
        return stats
