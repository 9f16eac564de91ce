"""Telling Triton servers that nobody waits for an answer any more."""

import asyncio
import logging
from collections.abc import Iterable

import aiohttp

from deployments.triton_dialects import ID_HEADER, Document
from deployments.upstream import Upstream

logger = logging.getLogger("ray.serve")

# 200: the compiled engine's answer; 400: that the request was cancelled, which the PyTorch backend calls an error.
_TAKEN = frozenset({200, 400})


class Cancels:
    """Requests that stop others, sent beside what is done now: each bounded in time, and none left behind."""

    def __init__(self, upstream: Upstream, path: str, stop: Document, timeout_s: float) -> None:
        """`path`: of the model that generates, under a server's root; `stop`: what stops a request there."""
        self._upstream = upstream
        self._path = path
        self._stop = stop
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, roots: Iterable[str], request_id: str) -> None:
        """Stop the request of that id on each of the servers; to one that hasn't it, the id says nothing."""
        for root in roots:
            task = asyncio.create_task(self._send(root, request_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, root: str, request_id: str) -> None:
        body, headers = {"id": request_id, **self._stop}, {ID_HEADER: request_id}
        url = root + self._path
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._upstream.client.post(url, json=body, headers=headers) as response:
                    wrong = None if response.status in _TAKEN else f"status {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            wrong = repr(error)
        if wrong:
            logger.warning("Triton server %s may still work on a request whose client has left: %s", root, wrong)

    async def wait(self) -> None:
        """Return once all that were sent have been answered, or given up."""
        await asyncio.gather(*self._tasks)
