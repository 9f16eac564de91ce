import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

import pytest

from deployments.openai_layer.merge import merge


class Source:
    """Streams that count themselves."""

    def __init__(self) -> None:
        self.open = 0
        self.given = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def numbers(self, count: int) -> AsyncGenerator[int]:
        with self.counted():
            for number in range(count):
                await asyncio.sleep(0)
                self.given += 1
                yield number

    async def failing(self) -> AsyncGenerator[int]:
        with self.counted():
            yield 0
            yield 1
            raise RuntimeError("broken")

    async def stuck(self) -> AsyncGenerator[int]:
        with self.counted():
            yield 0
            await asyncio.Event().wait()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.mark.parametrize("counts", [[], [0], [3], [3, 0], [1, 5, 2], [40] * 16])
async def test_every_item_comes_once_and_in_its_stream_s_order(source: Source, counts: list[int]) -> None:
    got: list[list[int]] = [[] for _ in counts]
    async for index, value in merge([source.numbers(count) for count in counts]):
        got[index].append(value)
    assert got == [list(range(count)) for count in counts]
    assert source.open == 0


async def test_streams_take_turns(source: Source) -> None:
    order = [index async for index, _ in merge([source.numbers(20), source.numbers(20)])]
    assert order != sorted(order)


async def test_a_stuck_stream_doesn_t_hold_up_the_others(source: Source) -> None:
    async with asyncio.timeout(60), aclosing(merge([source.stuck(), source.numbers(3)])) as merged:
        seen = [await anext(merged) for _ in range(4)]
    assert sorted(seen) == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert source.open == 0


@pytest.mark.parametrize("others", [0, 1, 3])
async def test_an_error_in_one_stream_comes_through_and_closes_all(source: Source, others: int) -> None:
    streams = [source.failing(), *(source.stuck() for _ in range(others))]
    seen = []
    with pytest.raises(RuntimeError, match="broken"):
        async for item in merge(streams):
            seen.append(item)
    assert {(0, 0), (0, 1)} <= set(seen)
    assert source.open == 0


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_all(source: Source, count: int) -> None:
    streams = [source.numbers(1000) for _ in range(count)]  # held here, so that no garbage collector closes them
    async with aclosing(merge(streams)) as merged:
        await anext(merged)
        for _ in range(20):
            await asyncio.sleep(0)
        assert source.open == count
    assert source.open == 0
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("count", [1, 3])
async def test_cancelling_the_reader_closes_all(source: Source, count: int) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async with aclosing(merge([source.stuck() for _ in range(count)])) as merged:
            async for _ in merged:
                started.set()

    reader = asyncio.create_task(read())
    await started.wait()
    assert source.open > 0
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert source.open == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_merge_that_nobody_reads_starts_nothing(source: Source) -> None:
    async with aclosing(merge([source.numbers(1), source.numbers(1)])):
        pass
    assert source.given == 0


async def test_a_slow_reader_holds_the_streams_back(source: Source) -> None:
    async with aclosing(merge([source.numbers(1000) for _ in range(3)])) as merged:
        await anext(merged)
        for _ in range(200):
            await asyncio.sleep(0)
        assert source.given < 20


async def test_the_reader_s_own_cancellation_is_left_alone(source: Source) -> None:
    """A task group inside a generator would take the reader's timeout for its own (PEP 789)."""
    merged = merge([source.stuck(), source.stuck()])
    async with aclosing(merged):
        await anext(merged)
        await anext(merged)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(merged)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert source.open == 0
