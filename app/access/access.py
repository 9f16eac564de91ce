"""Whom an ingress replica lets in."""

import asyncio
import logging
import time

from app.access.keys import CHALLENGE, Key
from app.access.listening import LOOPBACK, REMEDY, is_loopback
from app.access.rates import Allowances
from app.access.settings import AccessConfig
from app.access.sources import KeySources
from app.access.visit import Clock, LimitedVisit, Visit
from app.admission.budget import Place
from app.routing.route import Headers
from deployments.errors import ApiError

logger = logging.getLogger("ray.serve")

LOOK_S = 1.0  # between two looks at the keys file


class Access:
    """The keys there are, and what is left of their limits."""

    def __init__(self, host: str | None = LOOPBACK, clock: Clock = time.monotonic_ns) -> None:
        self._host = host  # None: unknown, so that others may reach it
        self._clock = clock
        self._config = AccessConfig()
        self._sources: KeySources | None = None
        self._allowances = Allowances()
        self._everybody = self._of_everybody()
        self._watching: asyncio.Task[None] | None = None

    def listen_on(self, host: str | None) -> None:
        """Where Serve listens, as far as it is known."""
        self._host = host
        self._everybody = self._of_everybody()

    def configure(self, config: AccessConfig) -> None:
        """Another configuration. Keys are read at once, also where only they have changed."""
        if config != self._config:
            self._config, self._sources = config, None
        if config.has_keys:
            self._sources = self._sources or KeySources(config)
            self._sources.look()
            self._forget()
        self._everybody = self._of_everybody()

    def watch(self) -> None:
        """Begin to look at the keys file; the event loop never waits for it."""
        self._watching = asyncio.create_task(self._look_forever())

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Have a changed keys file read."""
        if self._sources is None or self._config.keys_file is None:
            return
        try:
            await asyncio.to_thread(self._sources.look)
        except Exception as error:
            logger.error("the keys file can't be looked at: %r", error)
        self._forget()

    def _forget(self) -> None:
        if self._sources is not None and self._sources.ring is not None:
            self._allowances.keep(self._sources.ring.names())

    def move(self, place: Place) -> None:
        """There are more of the ingress's replicas, or fewer, which have limits between them."""
        self._allowances.place = place

    def visit(self, headers: Headers) -> Visit:
        """A request's, by the key that it shows.

        Raises:
            ApiError: 401; 503, where no keys could be read yet.
        """
        if self._everybody is not None:
            return self._everybody
        key = self.find(headers)
        return LimitedVisit(key, self._allowances.of(key, self._clock()), self._clock) if key.limits else Visit(key)

    def find(self, headers: Headers) -> Key:
        """Who asks.

        Raises:
            ApiError: as `visit`.
        """
        if self._everybody is not None:
            return self._everybody.key
        if self._sources is None:
            raise _no_keys(self._host)
        if self._sources.ring is None:
            message = "This server's API keys can't be read; its log says why."
            raise ApiError(503, message, type="server_error", code="keys_unreadable", headers={"retry-after": "5"})
        return self._sources.ring.find(headers)

    def _of_everybody(self) -> Visit | None:
        """What everybody's requests are, where nobody needs a key. On this machine alone, they are an operator's."""
        here = self._host is not None and is_loopback(self._host)
        if self._config.has_keys or not (here or self._config.anonymous):
            return None
        return Visit(Key("", "", admin=here))


def _no_keys(host: str | None) -> ApiError:
    where = f"listens on '{host}', which isn't loopback," if host else "can't tell whether it listens on loopback,"
    message = f"This server {where} and has no API keys, so it lets nobody in. Its operator has to {REMEDY}."
    return ApiError(401, message, code="no_api_keys", headers={"www-authenticate": CHALLENGE})
