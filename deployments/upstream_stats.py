"""The counts of servers that run elsewhere: their own, where their metrics can be read, else this pool's requests."""

import asyncio
import logging
from urllib.parse import urlsplit

import aiohttp

from deployments import metric_names
from deployments.engine import EngineStats
from deployments.upstream import DOCUMENT_LIMIT, Upstream
from deployments.upstream_server import Server

logger = logging.getLogger("ray.serve")


class UpstreamStats:
    """Reads the metrics of one pool's servers, which are those of `program`; None: nobody knows what runs there."""

    def __init__(self, upstream: Upstream, program: str | None, port: int | None = None) -> None:
        """`port`: where the metrics are, if not where the servers are asked."""
        self._upstream = upstream
        self._program = program
        self._port = port
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
            url = at_port(server.root, self._port) + path
            text = (await self._upstream.get(url, DOCUMENT_LIMIT)).decode("utf-8", "replace")
            stats = metric_names.read_stats(text, program)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            if server not in self._without_metrics:
                self._without_metrics.add(server)
                logger.warning("remote server %s gives no metrics: %s", server.url, error)
            return None
        self._without_metrics.discard(server)
        return stats


def at_port(root: str, port: int | None) -> str:
    """A server's root on another of its ports."""
    if port is None:
        return root
    parts = urlsplit(root)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
