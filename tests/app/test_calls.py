"""How the ingress asks pools: over real sockets, with a pool of this process and a stand-in for its handle."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from ray.exceptions import RayActorError

from app import calls
from app.calls import Caller, PoolStream
from deployments.errors import ApiError
from deployments.plane.hub import Hub, StreamLostError
from deployments.plane.line import Lines
from deployments.pool import Pool
from deployments.wire import WireRequest
from tests.deployments.test_pool import REQUEST, FakeEngine
from tests.waiting import until


class Call:
    """What `handle.relay.remote(...)` gives."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.task = asyncio.ensure_future(work)

    def __await__(self) -> Any:
        return asyncio.shield(self.task).__await__()

    def cancel(self) -> None:
        self.task.cancel()


class Chunks:
    """What `handle.options(stream=True).stream.remote(...)` gives."""

    def __init__(self, work: AsyncIterator[Any]) -> None:
        self._work = work
        self.cancelled = False

    async def __anext__(self) -> Any:
        return await anext(self._work)

    def cancel(self) -> None:
        self.cancelled = True


class Method:
    def __init__(self, start: Any) -> None:
        self.remote = start


class Handle:
    """A handle to a pool of this process."""

    def __init__(self, pool: Pool) -> None:
        self.asked: list[Call | Chunks] = []
        self.relay = Method(lambda *args: self._keep(Call(pool.relay(*args))))
        self.stream = Method(lambda *args: self._keep(Chunks(pool.stream(*args))))

    def options(self, *, stream: bool) -> "Handle":
        assert stream
        return self

    def _keep(self, call: Any) -> Any:
        self.asked.append(call)
        return call


class HangingEngine(FakeEngine):
    """After its chunks it hangs, until its stream is closed."""

    async def _stream(self) -> Any:
        self.streaming = True
        try:
            for chunk in self.chunks:
                yield chunk
            await asyncio.Event().wait()
        finally:
            self.streaming = False


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    caller = Caller()
    caller.hub = Hub()
    await caller.hub.start("node", "127.0.0.1")
    yield caller
    await caller.hub.stop()


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    lines = Lines("node")
    yield lines
    lines.stop()


def pool_of(engine: FakeEngine, lines: Lines | None) -> Handle:
    pool = Pool(engine, "fake")
    pool._lines = lines
    return Handle(pool)


async def ask(caller: Caller, handle: Handle, wire: WireRequest = REQUEST, **options: bool) -> PoolStream:
    async with asyncio.timeout(60):
        return await caller.stream("a", handle, wire, **options)


async def whole(stream: PoolStream) -> bytes:
    read = bytearray()
    async with asyncio.timeout(60):
        while data := await stream.read():
            read += data
    stream.leave()
    return bytes(read)


@pytest.mark.parametrize("plane", [True, False])
async def test_a_stream(caller: Caller, lines: Lines, plane: bool) -> None:
    engine = FakeEngine(chunks=(b"one", b"", b"two", b"three"))
    handle = pool_of(engine, lines)
    stream = await ask(caller, handle, plane=plane)
    assert stream.head == {
        "status": 200,
        "media_type": "text/event-stream",
        "headers": {"x-enginehouse-engine": "fake"},
    }
    assert await whole(stream) == b"onetwothree"
    assert isinstance(handle.asked[0], Call if plane else Chunks)
    assert len(handle.asked) == 1


@pytest.mark.parametrize("plane", [True, False])
@pytest.mark.parametrize("chunks", [(), (b"",)])
async def test_an_empty_stream(caller: Caller, lines: Lines, plane: bool, chunks: tuple[bytes, ...]) -> None:
    stream = await ask(caller, pool_of(FakeEngine(chunks=chunks), lines), plane=plane)
    assert (stream.head["status"], await whole(stream)) == (200, b"")


@pytest.mark.parametrize("plane", [True, False])
async def test_what_is_not_streamed_comes_whole(caller: Caller, lines: Lines, plane: bool) -> None:
    refusal = FakeEngine(failure=ApiError(422, "No.", param="n"), fails_at_once=True)
    stream = await ask(caller, pool_of(refusal, lines), plane=plane)
    assert (stream.head["status"], stream.head["media_type"]) == (422, "application/json")
    assert b'"No."' in await whole(stream)
    stream = await ask(caller, pool_of(FakeEngine(answer=b"{}"), lines), plane=plane)
    assert (stream.head["status"], await whole(stream)) == (200, b"{}")


@pytest.mark.parametrize("plane", [True, False])
async def test_an_engine_that_fails_in_mid_stream(caller: Caller, lines: Lines, plane: bool) -> None:
    engine = FakeEngine(chunks=(b"one",), failure=ValueError("broken"))
    stream = await ask(caller, pool_of(engine, lines), plane=plane)
    assert await stream.read() == b"one"
    with pytest.raises(StreamLostError if plane else ValueError):
        await stream.read()
    stream.leave()
    assert not engine.streaming


@pytest.mark.parametrize("plane", [True, False])
async def test_the_pool_is_told_when_the_reader_leaves(caller: Caller, lines: Lines, plane: bool) -> None:
    engine = HangingEngine(chunks=(b"one",))
    handle = pool_of(engine, lines)
    stream = await ask(caller, handle, plane=plane)
    assert await stream.read() == b"one"
    assert engine.streaming
    stream.leave()
    [call] = handle.asked
    if isinstance(call, Call):
        await until(lambda: not engine.streaming)
        assert call.task.cancelled()
    else:
        assert call.cancelled  # Ray ends the generator


@pytest.mark.parametrize("plane", [True, False])
async def test_the_pool_is_told_when_nobody_waits_for_the_head(caller: Caller, lines: Lines, plane: bool) -> None:
    handle = pool_of(HangingEngine(), lines)
    asking = asyncio.create_task(ask(caller, handle, plane=plane))
    await until(lambda: handle.asked)
    await asyncio.sleep(0.05)  # until the call waits for the head
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    [call] = handle.asked
    await until(lambda: call.task.cancelled() if isinstance(call, Call) else call.cancelled)


async def test_a_call_that_fails_before_the_head_is_raised(caller: Caller, lines: Lines) -> None:
    async def die() -> None:
        raise RayActorError(error_msg="gone")

    handle = pool_of(FakeEngine(), lines)
    handle.relay = Method(lambda *args: Call(die()))
    with pytest.raises(RayActorError):
        await ask(caller, handle)
    assert caller.hub is not None and not caller.hub._streams


async def test_a_call_that_fails_in_mid_stream_breaks_it(caller: Caller, lines: Lines) -> None:
    handle = pool_of(HangingEngine(chunks=(b"one",)), lines)
    stream = await ask(caller, handle)
    assert await stream.read() == b"one"
    [call] = handle.asked
    assert isinstance(call, Call)
    lines.stop()
    with pytest.raises(StreamLostError, match="the replica's connection was lost"):
        await stream.read()
    stream.leave()


async def test_a_pool_that_cannot_reach_the_hub_is_asked_by_its_handle(
    caller: Caller, lines: Lines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(calls, "logger", logging.getLogger("calls"))
    counted: list[str] = []
    monkeypatch.setattr(caller._fallbacks, "inc", lambda tags: counted.append(tags["pool"]))
    engine = FakeEngine(chunks=(b"one", b"two"))
    handle = pool_of(engine, None)
    for _ in range(3):
        assert await whole(await ask(caller, handle)) == b"onetwo"
    # Asked once by the plane, and then no more for a while.
    assert [type(call) for call in handle.asked] == [Call, Chunks, Chunks, Chunks]
    assert counted == ["a"] * 3
    assert len(engine.requests) == 3
    assert caplog.messages == [
        "pool a can't reach this ingress by socket: its streams come by Ray, at a price",
    ]
    monkeypatch.setattr(calls, "RETRY_S", 0.0)
    caller._unreachable["a"] = 0.0
    handle = pool_of(engine, lines)
    assert await whole(await ask(caller, handle)) == b"onetwo"
    assert [type(call) for call in handle.asked] == [Call]
    assert caller._unreachable == {}


async def test_without_a_hub_every_stream_comes_by_the_handle(lines: Lines) -> None:
    handle = pool_of(FakeEngine(chunks=(b"one",)), lines)
    assert await whole(await ask(Caller(), handle)) == b"one"
    assert [type(call) for call in handle.asked] == [Chunks]
