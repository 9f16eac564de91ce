"""What engines have in common whose servers run elsewhere."""

import json
from typing import Any

from deployments.engine import Engine, EngineDeadError, EngineStats
from deployments.upstream import Upstream
from deployments.upstream_errors import excerpt
from deployments.upstream_server import bad_gateway
from deployments.upstream_stats import UpstreamStats


class RemoteEngine(Engine):
    """Servers that run elsewhere. While they are down, requests get a 503; this replica stays."""

    def __init__(self, upstream: Upstream, stats: UpstreamStats) -> None:
        self._upstream = upstream
        self._stats = stats

    async def health(self) -> None:
        """Servers that are down are no reason to replace this replica: that wouldn't mend them."""
        try:
            self._upstream.raise_if_unwatched()
        except Exception as error:
            raise EngineDeadError(f"the remote servers are no longer watched: {error!r}") from error

    async def stats(self) -> EngineStats:
        return await self._stats.read()

    async def stop(self) -> None:
        await self._upstream.stop()


def document_of(data: bytes) -> dict[str, Any]:
    """The JSON object of an event.

    Raises:
        ApiError: 502, it is none.
    """
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise bad_gateway(f"The remote server's stream has an event that is no JSON object: {excerpt(data)}")
    return document
