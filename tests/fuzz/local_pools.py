"""Pools in this process, asked as by Serve's handles: in between are only what Ray does to a call's arguments."""

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import aclosing
from typing import Any

from ray.serve.handle import DeploymentHandle

from app.pools import PoolDirectory, PoolState
from deployments.adapter_store import AdapterStore, LiveAdapter
from deployments.pool import Pool

_END = object()


class Call:
    """An answer that is under way, as a handle's call gives it."""

    def __init__(self, answering: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(answering)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._task.__await__()

    def cancel(self) -> None:
        self._task.cancel()


class Stream:
    """As a `Call`, of a generator, which runs whether anybody reads or not."""

    def __init__(self, items: AsyncGenerator[Any]) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._run(items))

    async def _run(self, items: AsyncGenerator[Any]) -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    self._queue.put_nowait(item)
        except Exception as error:
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(_END)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Any:
        item = await self._queue.get()
        if item is _END:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        self._task.cancel()


class _Method:
    def __init__(self, function: Callable[..., Any], kind: Callable[[Any], Any]) -> None:
        self._function = function
        self._kind = kind

    def remote(self, *arguments: Any) -> Any:
        return self._kind(self._function(*pickle.loads(pickle.dumps(arguments))))


class _Broadcast:
    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call

    async def results_async(self, *, timeout_s: float) -> list[Any]:
        async with asyncio.timeout(timeout_s):
            return [await self._call]


class Handle:
    """Of a pool with one replica."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.respond = _Method(pool.respond, Call)
        self.describe = _Method(pool.describe, Call)
        self.stream = _Method(pool.stream, Stream)

    def options(self, *, stream: bool) -> "Handle":
        assert stream
        return self

    def broadcast(self, method: str, *arguments: str) -> _Broadcast:
        return _Broadcast(getattr(self._pool, method)(*arguments))


class Store(AdapterStore):
    """Of live adapters, in this process."""

    def __init__(self) -> None:
        self._kept: dict[bytes, bytes] = {}

    def read(self) -> Mapping[str, LiveAdapter]:
        return {name.decode(): LiveAdapter.model_validate_json(kept) for name, kept in self._kept.items()}

    def claim(self, name: str, adapter: LiveAdapter) -> bool:
        kept = adapter.model_dump_json().encode()
        return self._kept.setdefault(name.encode(), kept) is kept

    def replace(self, name: str, adapter: LiveAdapter) -> None:
        self._kept[name.encode()] = adapter.model_dump_json().encode()

    def remove(self, name: str) -> None:
        self._kept.pop(name.encode(), None)


class LocalPools(PoolDirectory):
    """A directory of pools that are all up."""

    def __init__(self, pools: Mapping[str, Pool], store: Store) -> None:
        super().__init__(store)
        self._local = {name: Handle(pool) for name, pool in pools.items()}
        self._states = dict.fromkeys(pools, PoolState(True, "running"))

    def handle(self, pool: str) -> DeploymentHandle[Any]:
        handle: Any = self._local[pool]
        return handle  # type: ignore[no-any-return]

    async def learn(self) -> None:
        """Have every pool describe itself."""
        self._ask_new_pools()
        await asyncio.gather(*self._asking.values())
        assert self._can.keys() == self._local.keys()
