"""A request and its answer as ASGI messages, with nothing between them and the server that isn't needed."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from starlette.types import Message, Receive, Send

from app.calls import PoolStream
from app.patience import Patience, StreamWatch, TooSlowError
from deployments.errors import ApiError
from deployments.wire import Head, WireResponse

logger = logging.getLogger("ray.serve")


async def read_body(receive: Receive, limit: int, timeout_s: float) -> bytes:
    """A request's body.

    Raises:
        ApiError: 413, as soon as it is longer than `limit` bytes; 408, where it isn't whole within `timeout_s`; 499,
            which nobody reads, where the client left.
    """
    try:
        async with asyncio.timeout(timeout_s) as patience:
            return await _read_body(receive, limit)
    except TimeoutError:
        if not patience.expired():
            raise
        message = f"The request body wasn't whole within {timeout_s:g} s (body_timeout_s)."
        raise ApiError(408, message, code="body_timeout", headers={"connection": "close"}) from None


async def _read_body(receive: Receive, limit: int) -> bytes:
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(499, "The client left while it sent its request.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise ApiError(413, f"The request body is larger than {limit} bytes.", code="body_too_large")
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Client:
    """A request's messages; after the last of them, the task that answers is cancelled when the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._answering = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._left = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._watching = asyncio.create_task(self._until_gone())
            self._watching.add_done_callback(self._gone)
        return message

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _gone(self, watching: asyncio.Task[None]) -> None:
        if self._answering is not None and not watching.cancelled():
            self._left = True
            self._answering.cancel()

    def took_back(self) -> bool:
        """Whether it was this that cancelled the task, and nobody else did."""
        return self._left and self._answering is not None and not self._answering.uncancel()

    def forget(self) -> None:
        self._answering = None  # what it does from here on isn't for this client
        if self._watching is not None:
            self._watching.cancel()


async def send_stream(
    send: Send,
    stream: PoolStream,
    told: Mapping[str, str],
    broken: Callable[[str, str], bytes],
    patience: Patience,
    left: Callable[[], None] | None,
    broke: Callable[[str], None],
) -> None:
    """Pass an answer on as it comes, with headers of our own; `broken` makes the event for one that breaks.

    `left` is called as soon as the pool's stream is left, which may be long before the client has read all of it;
    `broke` with the code of how it broke. To a client that won't read the event either no end is sent: on return
    without one, the server closes the connection.
    """
    watch = StreamWatch(stream, patience, left, broke)
    try:
        head = stream.head
        await send({"type": "http.response.start", "status": head["status"], "headers": _headers(head, told)})
        try:
            while data := await watch.read():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TooSlowError as error:
            data = broken(error.message, error.code)
        except Exception as error:
            logger.warning("a stream broke: %r", error)
            watch.broke("engine_lost")
            data = broken("The engine was lost while it answered.", "engine_lost")
        watch.leave()  # before its end is read: a client that is slow to do so keeps nobody out
        await send({"type": "http.response.body", "body": data})
    except asyncio.CancelledError:
        if not watch.took_back():
            raise
    finally:
        watch.stop()


async def send_whole(send: Send, answer: WireResponse, told: Mapping[str, str]) -> None:
    await _send(send, answer["status"], _headers(answer, told), answer["body"])


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError, *, anthropic: bool) -> None:
    headers = _encoded({"content-type": "application/json", **error.headers})
    await _send(send, error.status, headers, error.anthropic_body() if anthropic else error.body())


def _headers(head: Head, told: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    kind = head["media_type"]
    content = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    return _encoded({"content-type": content, **head["headers"], **told})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
