"""How long a request may take."""

import asyncio
from typing import Any

import pytest

from app.admission.settings import TimeoutsConfig
from app.calls import PoolStream
from app.patience import Patience, StreamWatch, TooSlowError
from deployments.errors import ApiError

pytestmark = pytest.mark.usefixtures("virtual_time")


class Stream(PoolStream):
    """Gives what is put into it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def read(self) -> bytes:
        item = await self.queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    def fail(self, error: Exception) -> None:
        self.queue.put_nowait(error)

    def leave(self) -> None: ...


def patience(**seconds: Any) -> Patience:
    off: dict[str, Any] = {"first_token_s": None, "between_tokens_s": None, "unread_s": None, "total_s": None}
    return Patience(TimeoutsConfig.model_validate(off | seconds))


@pytest.mark.parametrize(
    ("seconds", "code", "name"),
    [
        ({"first_token_s": 0.01}, "first_token_timeout", "0.01 s (timeouts.first_token_s)"),
        ({"total_s": 0.01}, "total_timeout", "0.01 s (timeouts.total_s)"),
        ({"first_token_s": 0.01, "total_s": 9}, "first_token_timeout", "timeouts.first_token_s"),
        ({"first_token_s": 9, "total_s": 0.01}, "total_timeout", "timeouts.total_s"),
    ],
)
async def test_an_answer_that_does_not_begin(seconds: dict[str, float], code: str, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        async with patience(**seconds).begins(stream=True):
            await asyncio.sleep(60)
    assert (caught.value.status, caught.value.code) == (504, code)
    assert name in caught.value.message


async def test_an_answer_that_is_not_streamed_has_but_the_total_time() -> None:
    async with patience(first_token_s=0.01, total_s=60).begins(stream=False):
        await asyncio.sleep(0.03)
    with pytest.raises(ApiError, match="timeouts.total_s"):
        async with patience(first_token_s=60, total_s=0.01).begins(stream=False):
            await asyncio.sleep(60)


async def test_a_timeout_of_somebody_else_is_not_ours() -> None:
    with pytest.raises(TimeoutError):
        async with patience(first_token_s=60).begins(stream=True):
            raise TimeoutError


async def test_without_timeouts_there_is_no_timer() -> None:
    watch = StreamWatch(Stream(), patience())
    assert watch._timer is None
    watch.stop()


async def test_a_stream_that_stalls() -> None:
    stream = Stream()
    watch = StreamWatch(stream, patience(between_tokens_s=0.05))
    for token in (b"1", b"2"):
        stream.queue.put_nowait(token)
        assert await watch.read() == token
    with pytest.raises(TooSlowError, match=r"0.05 s \(timeouts.between_tokens_s\)") as caught:
        async with asyncio.timeout(60):
            await watch.read()
    assert caught.value.code == "between_tokens_timeout"
    watch.stop()


async def test_a_slow_client_is_not_the_stream_s_fault() -> None:
    stream = Stream()
    watch = StreamWatch(stream, patience(between_tokens_s=0.02))
    stream.queue.put_nowait(b"1")
    await watch.read()
    await asyncio.sleep(0.07)  # which it takes to send
    stream.queue.put_nowait(b"2")
    assert await watch.read() == b"2"
    assert stream.queue.empty()
    watch.stop()


async def test_a_stream_that_goes_on_for_too_long() -> None:
    stream = Stream()
    watch = StreamWatch(stream, patience(between_tokens_s=5, total_s=0.05))

    async def feed() -> None:
        while True:
            stream.queue.put_nowait(b"1")
            await asyncio.sleep(0.005)

    feeding = asyncio.create_task(feed())
    with pytest.raises(TooSlowError, match=r"0.05 s \(timeouts.total_s\)") as caught:
        async with asyncio.timeout(60):
            while True:
                await watch.read()
    assert caught.value.code == "total_timeout"
    watch.stop()
    feeding.cancel()


async def test_a_watch_that_was_stopped_does_nothing() -> None:
    stream = Stream()
    watch = StreamWatch(stream, patience(between_tokens_s=0.01))
    watch.stop()
    await asyncio.sleep(0.03)
    assert stream.queue.empty()


async def test_a_stream_whose_client_does_not_read() -> None:
    """It's left at once, whatever still comes of it."""
    stream, said = Stream(), list[str]()
    watch = StreamWatch(stream, patience(unread_s=0.2), lambda: said.append("left"), said.append)
    for token in (b"1", b"2"):
        stream.queue.put_nowait(token)
        assert await watch.read() == token
        await asyncio.sleep(0.12)  # which it takes to send
    assert said == []
    stream.queue.put_nowait(b"3")
    await watch.read()
    await asyncio.sleep(0.4)
    assert said == ["client_too_slow", "left"]
    stream.queue.put_nowait(b"4")
    with pytest.raises(TooSlowError, match=r"0.2 s \(timeouts.unread_s\)") as caught:
        await watch.read()
    assert caught.value.code == "client_too_slow"
    watch.stop()
    assert said == ["client_too_slow", "left"]


async def test_a_slow_stream_is_not_its_client_s_fault() -> None:
    stream = Stream()
    watch = StreamWatch(stream, patience(unread_s=0.02))
    asyncio.get_running_loop().call_later(0.07, stream.queue.put_nowait, b"1")
    assert await watch.read() == b"1"
    watch.stop()
