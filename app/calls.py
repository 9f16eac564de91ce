"""How the ingress asks a pool: one call of its handle for each request. A stream's bytes come by the token plane, or,
where that can't be had, by the handle's generator."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from ray.util.metrics import Counter

from deployments.plane.hub import Hub
from deployments.wire import Head, PlaneOutcome, WireRequest, WireResponse

logger = logging.getLogger("ray.serve")

SLACK_S = 5.0  # for frames that are still on their way when the call has returned
RETRY_S = 30.0  # that a pool which couldn't reach the token plane is asked by its handle, before it is tried again


class PoolStream(ABC):
    """One answer of a pool, as its bytes come."""

    head: Head

    @abstractmethod
    async def read(self) -> bytes:
        """All that has come since the last read, once there is any; nothing at the end.

        Raises:
            Exception: the stream broke.
        """

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Have the stream break with this, unless it has ended."""

    @abstractmethod
    def leave(self) -> None:
        """Nobody reads any more; unless the answer has ended, the pool is told. Called once."""


class Caller:
    """Asks pools, and keeps in mind which of them can't reach the token plane."""

    def __init__(self) -> None:
        self.hub: Hub | None = None  # None: every stream comes by the handle
        self._unreachable: dict[str, float] = {}  # pools, and until when
        self._methods: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._fallbacks = Counter(
            "enginehouse_token_plane_fallbacks_total",
            description="Streams that came by the handle, because their pool couldn't reach the ingress by socket.",
            tag_keys=("pool",),
        )

    async def whole(self, handle: Any, wire: WireRequest) -> WireResponse:
        """An answer that isn't streamed.

        Raises:
            RayError, RayServeException: the pool gave none.
        """
        call = self._method(handle, "respond").remote(wire)
        try:
            # Cancelled itself, what awaits the call would lose memory: see app/grpc_cancel.py.
            return cast(WireResponse, await asyncio.shield(_outcome(call)))
        except asyncio.CancelledError:
            call.cancel()
            raise

    async def stream(self, pool: str, handle: Any, wire: WireRequest, *, plane: bool = True) -> PoolStream:
        """An answer from its first bytes on; `leave` it in the end. Without `plane`, it comes by the handle.

        Raises:
            RayError, RayServeException, StreamLostError: the pool gave none.
        """
        if self.hub is None or not plane:
            return await _by_handle(handle, wire)
        now = asyncio.get_running_loop().time()
        if self._unreachable.get(pool, 0) <= now:
            relayed = _Relayed(self.hub, self._method(handle, "relay"), wire)
            if await relayed.begin():
                self._unreachable.pop(pool, None)
                return relayed
            if pool not in self._unreachable:
                logger.warning("pool %s can't reach this ingress by socket: its streams come by Ray, at a price", pool)
            self._unreachable[pool] = now + RETRY_S
        self._fallbacks.inc(tags={"pool": pool})
        return await _by_handle(handle, wire)

    def _method(self, handle: Any, name: str) -> Any:
        """A handle's method. Serve makes a handle anew each time that it is asked for one."""
        key = id(handle), name  # which stays that handle's, for it is kept
        if key not in self._methods:
            self._methods[key] = handle, getattr(handle, name)
        return self._methods[key][1]


async def _outcome(call: Any) -> Any:
    return await call


class _Relayed(PoolStream):
    """By the token plane. What isn't a stream, such as an error, comes back by the call itself."""

    def __init__(self, hub: Hub, relay: Any, wire: WireRequest) -> None:
        self._stream = hub.open()
        self._call = relay.remote(wire, self._stream.reply_to)
        self._outcome: PlaneOutcome | WireResponse | None = None
        self._body = b""  # of an answer that came back whole
        self._left = False
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        try:
            self._outcome = await self._call
        except Exception as error:
            if not self._left:
                self._stream.fail(error)
            return
        if self._left:
            return
        if self._outcome == "streamed":
            self._stream.sent(SLACK_S)
        else:
            self._stream.returned()

    async def begin(self) -> bool:
        """Whether an answer began; else the pool can't reach the hub, and knows nothing of the request.

        Raises:
            RayError, RayServeException, StreamLostError: as `Caller.stream`.
        """
        try:
            head = await self._stream.start()
        except BaseException:
            self.leave()
            raise
        if head is not None:
            self.head = head
            return True
        if isinstance(self._outcome, Mapping):
            self.head, self._body = self._outcome, self._outcome["body"]
            return True
        self.leave()
        return False

    async def read(self) -> bytes:
        if self._body:
            body, self._body = self._body, b""
            return body
        return await self._stream.read()

    def fail(self, error: Exception) -> None:
        self._stream.fail(error)

    def leave(self) -> None:
        self._left = True
        if not self._stream.ended:
            self._call.cancel()  # which ends the watching: see app/grpc_cancel.py
        self._stream.close()


async def _by_handle(handle: Any, wire: WireRequest) -> PoolStream:
    generated = _Generated(handle, wire)
    await generated.begin()
    return generated


class _Generated(PoolStream):
    """By the handle's generator."""

    def __init__(self, handle: Any, wire: WireRequest) -> None:
        self._chunks = handle.options(stream=True).stream.remote(wire)
        self._ended = False
        self._error: Exception | None = None
        self._reading: asyncio.Future[Head | bytes] | None = None

    async def begin(self) -> None:
        try:
            self.head = cast(Head, await anext(self._chunks))
        except asyncio.CancelledError:
            self._chunks.cancel()
            raise

    async def read(self) -> bytes:
        while not self._ended:
            if self._error is not None:
                raise self._error
            self._reading = asyncio.ensure_future(anext(self._chunks))
            try:
                if chunk := cast(bytes, await self._reading):
                    return chunk
            except StopAsyncIteration:
                self._ended = True
            except asyncio.CancelledError:
                if self._error is None:
                    raise
        return b""

    def fail(self, error: Exception) -> None:
        if not self._ended:
            self._error = error
            if self._reading is not None:
                self._reading.cancel()

    def leave(self) -> None:
        if not self._ended:
            self._chunks.cancel()
