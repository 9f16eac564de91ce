"""One server that runs elsewhere, and an answer that it gives."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import aiohttp

from deployments.errors import ApiError
from deployments.upstream_args import root_of


@dataclass(eq=False, slots=True)
class Server:
    """One server, as it was seen last."""

    url: str
    state: Literal["new", "up", "down"] = "new"
    reason: str = "not asked yet"  # of the last failure
    failures: int = 0  # in a row
    in_flight: int = 0  # of this pool's requests
    turn: int = 0  # grows with every request: the least is of the one that has waited longest
    spoke: bool = False  # an answer's bytes have come since the last health check

    @property
    def root(self) -> str:
        return root_of(self.url)


def choose(servers: Iterable[Server], tried: Iterable[Server] = ()) -> Server | None:
    """The server that is up and has the fewest requests; of several, the one that has waited longest."""
    up = [server for server in servers if server.state == "up" and server not in tried]
    return min(up, key=lambda server: (server.in_flight, server.turn), default=None)


class Reply:
    """An answer of which the status and headers are there. Closing it ends the request at the server."""

    def __init__(self, server: Server, response: aiohttp.ClientResponse, read_timeout_s: float) -> None:
        self._server = server
        self._response = response
        self._read_timeout_s = read_timeout_s
        self._closed = False
        server.in_flight += 1

    @property
    def server_root(self) -> str:
        """Of the server that answers."""
        return self._server.root

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes.

        Raises:
            ApiError: 504 where nothing came for too long, 502 where the answer was broken off.
        """
        try:
            async for chunk in self._response.content.iter_any():
                self._server.spoke = True
                yield chunk
        except TimeoutError as error:
            raise timed_out(self._read_timeout_s) from error
        except aiohttp.ClientError as error:
            raise bad_gateway("The remote server broke off its answer.") from error

    async def read(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            ApiError: as `chunks`; 502 where it is longer than `limit` bytes.
        """
        chunks, size = [], 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise bad_gateway(f"The remote server's answer is larger than {limit} bytes.")
            chunks.append(chunk)
        return b"".join(chunks)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.in_flight -= 1
            self._response.close()


def timed_out(seconds: float) -> ApiError:
    message = f"The remote server sent nothing for {seconds:g} s (read_timeout_s)."
    return ApiError(504, message, type="server_error", code="upstream_timeout")


def bad_gateway(message: str) -> ApiError:
    return ApiError(502, message, type="server_error", code="upstream_error")
