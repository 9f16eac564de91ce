"""How long a request may take: timeouts that say which one it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.admission.settings import TimeoutsConfig
from app.calls import PoolStream
from deployments.errors import ApiError


class TooSlowError(Exception):
    """A stream has taken too long. `code` is what its client is told."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Patience:
    """The timeouts of one request, from when it has come."""

    def __init__(self, config: TimeoutsConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.total_at = None if config.total_s is None else self.loop.time() + config.total_s

    @asynccontextmanager
    async def begins(self, *, stream: bool) -> AsyncIterator[None]:
        """While a stream begins, or all of another answer comes.

        Raises:
            ApiError: 504, it took too long.
        """
        most_s = self.config.first_token_s if stream else None
        first_at = None if most_s is None else self.loop.time() + most_s
        ends = [at for at in (first_at, self.total_at) if at is not None]
        try:
            async with asyncio.timeout_at(min(ends, default=None)) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            error = self.total_error()
            if first_at == min(ends):
                message = f"No token came within {most_s:g} s (timeouts.first_token_s)."
                error = TooSlowError(message, "first_token_timeout")
            raise ApiError(504, error.message, type="server_error", code=error.code) from None

    def total_error(self) -> TooSlowError:
        message = f"The answer wasn't whole within {self.config.total_s or 0:g} s (timeouts.total_s)."
        return TooSlowError(message, "total_timeout")


class StreamWatch:
    """Has a stream fail that takes too long. It's one timer: a token costs it two assignments."""

    def __init__(self, stream: PoolStream, patience: Patience) -> None:
        self._stream = stream
        self._patience = patience
        self._loop = patience.loop
        self._waiting_since: float | None = None  # for the stream; a slow client isn't its fault
        self._timer = self._next()

    async def read(self) -> bytes:
        """What has come of the stream."""
        self._waiting_since = self._loop.time()
        data = await self._stream.read()
        self._waiting_since = None
        return data

    def stop(self) -> None:
        """The stream has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> asyncio.TimerHandle | None:
        ends = [at for at in (self._patience.total_at, self._stalls_at()) if at is not None]
        return self._loop.call_at(min(ends), self._look) if ends else None

    def _stalls_at(self) -> float | None:
        """When the next token is due at the latest, as far as is known now."""
        most_s = self._patience.config.between_tokens_s
        since = self._loop.time() if self._waiting_since is None else self._waiting_since
        return None if most_s is None else since + most_s

    def _look(self) -> None:
        now, stalls_at = self._loop.time(), self._stalls_at()
        if self._patience.total_at is not None and now >= self._patience.total_at:
            self._stream.fail(self._patience.total_error())
        elif stalls_at is not None and now >= stalls_at:
            most_s = self._patience.config.between_tokens_s
            message = f"No token came within {most_s:g} s (timeouts.between_tokens_s)."
            self._stream.fail(TooSlowError(message, "between_tokens_timeout"))
        else:
            self._timer = self._next()
