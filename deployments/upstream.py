"""Servers that run elsewhere, as one: which are up, which gets the next request, and how a request gets there."""

import asyncio
import itertools
import logging
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import aiohttp

from deployments.errors import ApiError, unavailable
from deployments.upstream_args import UpstreamArgs, api_key, trust
from deployments.upstream_server import Reply, Server, choose, timed_out

logger = logging.getLogger("ray.serve")

RETRY_AFTER_S = 5  # what a client is told to wait where no server can be reached
# Shorter than what servers keep idle connections open (Uvicorn's 5 s), so that none is used while it is closed.
KEEP_ALIVE_S = 2.0
BUSY = frozenset({429, 503})
DOCUMENT_LIMIT = 2**24  # bytes of a list of models, of metrics, or of what a server says of itself
NO_SUCH_PATH = frozenset({404, 405})


class Upstream:
    """The servers of one pool, watched while it runs."""

    def __init__(self, args: UpstreamArgs, *, red_when_busy: bool = False) -> None:
        """`red_when_busy`: the servers' health checks fail under load, too."""
        self._args = args
        self._red_when_busy = red_when_busy
        self.servers = [Server(url) for url in args.urls]
        self._turns = itertools.count(1)
        self._client: aiohttp.ClientSession | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._one_is_up = asyncio.Event()
        self.api_key: str | None = None

    @property
    def in_flight(self) -> int:
        return sum(server.in_flight for server in self.servers)

    async def start(self) -> None:
        """Ask every server once, and return once one is up.

        Raises:
            ValueError: the API key or the certificates can't be had.
            TimeoutError: no server is up in time; the message has each one's URL and what is wrong with it.
        """
        self.api_key = api_key(self._args, os.environ)
        self._client = self._connect(await asyncio.to_thread(trust, self._args))
        await asyncio.gather(*map(self._check, self.servers))
        self._watchers = [asyncio.create_task(self._watch(server)) for server in self.servers]
        try:
            async with asyncio.timeout(self._args.start_timeout_s):
                await self._one_is_up.wait()
        except TimeoutError:
            wrong = "; ".join(f"{server.url}: {server.reason}" for server in self.servers)
            message = f"no remote server was healthy within {self._args.start_timeout_s:g} s: {wrong}"
            raise TimeoutError(message) from None

    def _connect(self, trusted: ssl.SSLContext | bool) -> aiohttp.ClientSession:
        headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "enginehouse"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted, keepalive_timeout=KEEP_ALIVE_S),
            headers=headers,
            timeout=aiohttp.ClientTimeout(connect=self._args.connect_timeout_s, sock_read=self._args.read_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # no proxy, no .netrc: where the key goes is what the configuration says
        )

    @property
    def client(self) -> aiohttp.ClientSession:
        assert self._client is not None, "start() comes first"
        return self._client

    def raise_if_unwatched(self) -> None:
        """Raises what ended the watching of a server, which nothing should."""
        for watcher in self._watchers:
            if watcher.done():
                watcher.result()

    async def send(
        self,
        path: str,
        body: bytes,
        request_id: str,
        *,
        at_root: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """POST a JSON document to one server after another, each once, until one takes it.

        A server that has begun to answer is never left for another, but for one that says it is busy.

        Raises:
            ApiError: 503 where no server can be reached; 504 where one took the request and never answered.
        """
        tried: list[Server] = []
        reasons: list[str] = []
        while (server := choose(self.servers, tried)) is not None:
            tried.append(server)
            url = (server.root if at_root else server.url) + path
            ours = {"content-type": "application/json", "x-request-id": request_id}
            try:
                reply = await self._post(server, url, body, {**ours, **(headers or {})})
            except aiohttp.SocketTimeoutError as error:
                raise timed_out(self._args.read_timeout_s) from error
            except aiohttp.ClientError as error:
                reasons.append(explain(error))
                self.failed(server, reasons[-1])
                continue
            if reply.status not in BUSY or choose(self.servers, tried) is None:
                return reply
            reasons.append(f"status {reply.status}")
            await reply.aclose()
        raise self.unavailable(reasons)

    def unavailable(self, reasons: Sequence[str] = ()) -> ApiError:
        """What is answered where no server took a request; `reasons`: why each that was asked didn't."""
        why = ", ".join(reasons or (server.reason for server in self.servers))
        return unavailable(f"No remote server takes this request: {why}.", "upstream_down", RETRY_AFTER_S)

    async def _post(self, server: Server, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        with self.using(server):
            response = await self.client.post(url, data=body, headers=headers, allow_redirects=False)
        server.spoke = True
        return Reply(server, response, self._args.read_timeout_s)

    @contextmanager
    def using(self, server: Server) -> Iterator[None]:
        """While a request is there."""
        server.in_flight += 1
        server.turn = next(self._turns)
        try:
            yield
        finally:
            server.in_flight -= 1

    async def get(self, url: str, limit: int) -> bytes:
        """A small document of a server, such as its metrics; all of it within `connect_timeout_s`.

        Raises:
            aiohttp.ClientError: it can't be had, or its status is an error.
            TimeoutError: it didn't come in time.
            ValueError: it is longer than `limit` bytes.
        """
        async with asyncio.timeout(self._args.connect_timeout_s), self._get(url) as response:
            response.raise_for_status()
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise ValueError(f"longer than {limit} bytes")
                chunks.append(chunk)
        return b"".join(chunks)

    async def _watch(self, server: Server) -> None:
        while True:
            await asyncio.sleep(self._args.health_interval_s)
            await self._check(server)

    async def _check(self, server: Server) -> None:
        spoke, server.spoke = server.spoke, False
        try:
            async with asyncio.timeout(self._args.connect_timeout_s):
                status = await self._status(server.root + self._args.health_path)
                if status in NO_SUCH_PATH:
                    status = await self._status(f"{server.url}/models")
        except TimeoutError:
            if not spoke and not server.spoke:  # a server that is busy answering isn't down
                self.failed(server, f"no answer to a health check within {self._args.connect_timeout_s:g} s")
        except aiohttp.ClientError as error:
            self.failed(server, explain(error))
        else:
            busy = spoke or server.spoke or server.in_flight
            if 200 <= status < 300 or (self._red_when_busy and status == 503 and busy):
                self._succeeded(server)
            else:
                wrong = "the API key is refused, " if status in (401, 403) else ""
                self.failed(server, f"{wrong}status {status} at a health check")

    async def _status(self, url: str) -> int:
        async with self._get(url) as response:
            return response.status

    def _get(self, url: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.client.get(url, allow_redirects=False)

    def _succeeded(self, server: Server) -> None:
        server.failures = 0
        if server.state != "up":
            server.state = "up"
            self._one_is_up.set()
            logger.info("remote server %s is up", server.url)

    def failed(self, server: Server, reason: str) -> None:
        """A health check or a connection failed."""
        server.failures += 1
        server.reason = reason
        if server.state == "new" or (server.state == "up" and server.failures >= self._args.unhealthy_after):
            server.state = "down"
            logger.warning("remote server %s is down: %s", server.url, reason)

    async def stop(self) -> None:
        """Safe to call twice, or after a failed start."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        if self._client is not None:
            await self._client.close()


def explain(error: Exception) -> str:
    """What went wrong with a connection, in words that hold no address."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "connecting timed out (connect_timeout_s)"
        case TimeoutError():
            return "timed out"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate isn't trusted"
        case aiohttp.ClientSSLError():
            return "it doesn't speak TLS as this side does"
        case aiohttp.ClientConnectorError():
            return "connection refused or no such host"
        case aiohttp.InvalidURL():
            return "not a URL"
    return "connection lost before an answer"
