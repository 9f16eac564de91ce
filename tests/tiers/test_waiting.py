"""What tests wait by."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.waiting import until


async def test_a_wait_takes_no_time(virtual_time: None) -> None:
    loop, began_s, really_s = asyncio.get_running_loop(), asyncio.get_running_loop().time(), time.monotonic()
    order: list[str] = []

    async def note(after_s: float, name: str) -> None:
        await asyncio.sleep(after_s)
        order.append(name)

    await asyncio.gather(note(3600, "last"), note(1800, "second"), note(1, "first"))
    assert order == ["first", "second", "last"]
    assert loop.time() - began_s == pytest.approx(3600, abs=1)
    assert time.monotonic() - really_s < 600


async def test_a_limit_is_never_passed_by_what_only_computes(virtual_time: None) -> None:
    async with asyncio.timeout(0.001):
        time.sleep(0.01)  # noqa: ASYNC251 (as a busy machine does)
        await asyncio.sleep(0)


async def test_what_doesn_t_come_is_told(virtual_time: None) -> None:
    with pytest.raises(AssertionError, match="the end: not within 60 s"):
        await until(lambda: False, "the end")


async def test_what_has_to_be_asked_is_awaited() -> None:
    answers: Iterator[bool] = iter([False, False, True])

    async def ask() -> bool:
        return next(answers)

    await until(ask)
    assert next(answers, None) is None
