"""A remote server's stream of events, passed on in whole lines and held to its end mark. Bytes stay as they are."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

from deployments.engine import Endpoint
from deployments.errors import ApiError
from deployments.upstream_server import Reply, bad_gateway

MEDIA_TYPE = "text/event-stream"
BROKEN = "The remote server ended its stream before the end of the answer."

_DONE = re.compile(rb"^data: ?\[DONE\][ \t]*\r?\n?", re.MULTILINE)
_TYPED_END = re.compile(
    rb'^(?:event: ?|data: ?\{\s*"type"\s*:\s*")'
    rb"(?:response\.completed|response\.incomplete|response\.failed|message_stop|error)\b",
    re.MULTILINE,
)
# An error instead of a chunk. Inside a chunk's text there is a backslash before each quote.
_ERROR = re.compile(rb'^data: ?(\{\s*"error"\s*:.*)$', re.MULTILINE)


def data_of(block: bytes) -> Iterator[bytes]:
    """What the lines of data in some whole lines hold; comments, and names of events, aren't data."""
    for line in block.splitlines():
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").strip()


@dataclass(slots=True)
class Lines:
    """Bytes, however they were cut, as whole lines."""

    limit: int  # most bytes of a line
    _held: list[bytes] = field(default_factory=list)
    _size: int = 0

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` completes, possibly none.

        Raises:
            ApiError: 502, a line is longer than the limit.
        """
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole = b"".join([*self._held, data[:cut]]) if cut else b""
        if cut:
            self._held, self._size = [], 0
        if rest := data[cut:]:
            self._held.append(rest)
            self._size += len(rest)
        if self._size > self.limit:
            raise bad_gateway(f"A line of the remote server's stream is larger than {self.limit} bytes.")
        return whole

    def flush(self) -> bytes:
        """What has come after the last whole line."""
        rest, self._held, self._size = b"".join(self._held), [], 0
        return rest


class ReplyStream(AsyncIterator[bytes]):
    """What is made of a reply's stream. Closing it closes the reply, started or not."""

    def __init__(self, reply: Reply, blocks: AsyncGenerator[bytes]) -> None:
        self._reply = reply
        self._blocks = blocks

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._blocks)

    async def aclose(self) -> None:
        try:
            await self._blocks.aclose()
        finally:
            await self._reply.aclose()


class Relay(ReplyStream):
    """The stream of a reply, its bytes as they are."""

    def __init__(self, reply: Reply, endpoint: Endpoint, rename: Callable[[bytes], bytes], line_limit: int) -> None:
        super().__init__(reply, self._run())
        self._end = _TYPED_END if endpoint in ("responses", "messages") else _DONE
        self._rename = rename
        self._lines = Lines(line_limit)
        self._ended = False  # the end mark has come, or an error in its place
        self._failed = False  # an error has come
        self._sent = False

    async def _run(self) -> AsyncGenerator[bytes]:
        """The lines, as they come.

        Raises:
            ApiError: nothing has been sent yet.
            ConnectionError: the stream broke after it began.
        """
        try:
            async with aclosing(self._reply.chunks()) as chunks:
                async for chunk in chunks:
                    if block := self._pass(self._lines.feed(chunk)):
                        yield block
                        self._sent = True
            rest = self._pass(self._lines.flush())
            if not self._ended:
                raise bad_gateway(BROKEN)
            if rest:
                yield rest
        except ApiError as error:
            if self._sent and not self._ended:
                raise ConnectionError(error.message) from error
            if not self._ended:
                raise
        finally:
            await self._reply.aclose()

    def _pass(self, block: bytes) -> bytes:
        """What to send for some lines.

        Raises:
            ApiError: they begin with an error, and nothing has been sent yet.
        """
        if b'"error"' in block and (error := _ERROR.search(block)):
            if not self._sent and error.start() == 0:
                raise _first_error(error[1])
            self._failed = True
        self._ended = self._ended or self._failed or self._end.search(block) is not None
        # After an error the mark of a good end goes: a client would take a broken answer for a whole one.
        return self._rename(_DONE.sub(b"", block) if self._failed else block)


def _first_error(line: bytes) -> ApiError:
    """The error that a server finds only after it has answered 200, as an error with a status of its own."""
    try:
        error = json.loads(line)["error"]
    except ValueError:
        return bad_gateway(BROKEN)
    details: dict[str, Any] = error if isinstance(error, dict) else {"message": error}
    codes = (details.get("http_status_code"), details.get("code"))  # TGI; vLLM
    status = next((code for code in codes if isinstance(code, int) and 400 <= code < 600), 502)
    kind = "invalid_request_error" if status < 500 else "server_error"
    code, param = details.get("code"), details.get("param")
    return ApiError(
        status,
        str(details.get("message") or BROKEN),
        type=kind,
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
    )
