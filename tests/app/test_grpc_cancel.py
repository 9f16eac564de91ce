"""What a unary gRPC call that is cancelled leaves behind, in real calls on loopback."""

import asyncio
import ctypes
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc.aio import _call

from app import grpc_cancel

CALLS = 1000
LOST = 970  # bytes a call, as seen with grpcio 1.85.3


class _Mallinfo2(ctypes.Structure):
    _fields_ = [  # ctypes has it so
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def used_bytes() -> int:
    """That C's allocator has given out."""
    gc.collect()
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _Mallinfo2
    return int(libc.mallinfo2().used)


class Server:
    """Calls that go on until they are cancelled."""

    def __init__(self) -> None:
        self.running = 0

    async def wait(self, request: bytes, context: Any) -> bytes:
        self.running += 1
        try:
            await asyncio.sleep(60)  # longer than anybody waits
        finally:
            self.running -= 1
        return b""


@pytest.fixture
async def called() -> AsyncIterator[tuple[Server, Any]]:
    state, server = Server(), grpc.aio.server()
    handlers = {"wait": grpc.unary_unary_rpc_method_handler(state.wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield state, channel.unary_unary("/test/wait")
    await server.stop(None)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test installs is taken away after it."""
    for name in ("cancel", "wait_for_connection"):
        monkeypatch.setattr(_call.UnaryUnaryCall, name, getattr(_call.UnaryUnaryCall, name))


async def _cancelled(server: Server, ask: Any, calls: int) -> None:
    for _ in range(calls // 20):
        batch = [ask(b"") for _ in range(20)]
        while server.running < 20:  # noqa: ASYNC110  # that long, it takes a moment
            await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(call.wait_for_connection()) for call in batch]
        await asyncio.sleep(0)
        for call, waits in zip(batch, waiting, strict=True):
            waits.cancel()  # as Serve's router does, and then:
            call.cancel()
        for call in batch:
            with pytest.raises(asyncio.CancelledError):
                await call
        while server.running:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _lost_bytes(server: Server, ask: Any) -> float:
    """For each call; by the client and the server together."""
    await _cancelled(server, ask, 200)
    before = used_bytes()
    await _cancelled(server, ask, CALLS)
    return (used_bytes() - before) / CALLS


async def test_a_cancelled_call_loses_nothing(called: tuple[Server, Any]) -> None:
    grpc_cancel.install()
    assert await _lost_bytes(*called) < LOST / 2


async def test_without_that_it_does(called: tuple[Server, Any]) -> None:
    """Once this fails, gRPC has mended it, and app/grpc_cancel.py may go."""
    assert await _lost_bytes(*called) > LOST / 2
