"""Several streams as one, in the order in which their items come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    index: int
    value: T


async def merge(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Items of all streams with their stream's index. Closing it, or an error in one stream, closes all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for value in only:
                yield 0, value
        return
    # Bounded, so that a slow reader holds the streams back instead of filling memory.
    queue: asyncio.Queue[_Item[T] | _End] = asyncio.Queue(maxsize=2 * len(streams))
    # No TaskGroup: it would cancel whatever task reads this generator, wherever that task is (PEP 789).
    tasks = [asyncio.create_task(_feed(queue, index, stream)) for index, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, _Item):
                yield item.index, item.value
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(queue: "asyncio.Queue[_Item[T] | _End]", index: int, stream: AsyncGenerator[T]) -> None:
    try:
        async with aclosing(stream):
            async for value in stream:
                await queue.put(_Item(index, value))
    except Exception as error:
        await queue.put(_End(error))
    else:
        await queue.put(_End())
