"""How long a request may take: timeouts that say which one it was."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from app.admission.settings import TimeoutsConfig
from app.calls import PoolStream
from deployments.errors import ApiError

logger = logging.getLogger("ray.serve")

# For a client whose stream was given up to take what was sent before, and the event that says why. It holds no engine
# any more, but its connection, which one that never reads would hold for ever.
GRACE_S = 10.0


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

    def stall_error(self) -> TooSlowError:
        message = f"No token came within {self.config.between_tokens_s or 0:g} s (timeouts.between_tokens_s)."
        return TooSlowError(message, "between_tokens_timeout")

    def unread_error(self) -> TooSlowError:
        message = (
            "So much of the answer was left unread that no more of it could be sent for "
            f"{self.config.unread_s or 0:g} s (timeouts.unread_s)."
        )
        return TooSlowError(message, "client_too_slow")


class StreamWatch:
    """Gives a stream up that takes too long, or whose client does. A token costs it a few assignments: there is one
    timer, and whatever isn't reading of the stream is sending to the client.

    A stream given up while its client doesn't read is left at once; what is being sent then has `GRACE_S` to get
    through, with the event that says why. After that the task that sends is cancelled. Made in that task.
    """

    def __init__(
        self,
        stream: PoolStream,
        patience: Patience,
        left: Callable[[], None] | None = None,
        broke: Callable[[str], None] | None = None,
    ) -> None:
        """`left` is called once, when the pool has no more to do with the stream; `broke` at most once, with the code
        that says why its client doesn't get all of it."""
        self._stream = stream
        self._patience = patience
        self._left, self._is_left = left, False
        self._broke, self._is_broken = broke, False
        self._loop = patience.loop
        self._task = asyncio.current_task()
        self._sending = True
        self._since = self._loop.time()  # it sends, or reads
        self._error: TooSlowError | None = None  # once it was given up
        self._cut = False
        self._timer = self._next()

    async def read(self) -> bytes:
        """What has come of the stream.

        Raises:
            TooSlowError: it was given up.
            Exception: it broke.
        """
        if self._error is not None:
            raise self._error
        self._since, self._sending = self._loop.time(), False
        try:
            return await self._stream.read()
        finally:
            self._since, self._sending = self._loop.time(), True

    def took_back(self) -> bool:
        """Whether it was this that cancelled the task, for its client didn't read, and nobody else did."""
        return self._cut and self._task is not None and not self._task.uncancel()

    def stop(self) -> None:
        """The stream has ended."""
        if self._timer is not None:
            self._timer.cancel()
        self.leave()

    def leave(self) -> None:
        """The pool has no more to do with it. Safe to call twice."""
        if not self._is_left:
            self._is_left = True
            self._stream.leave()
            if self._left is not None:
                self._left()

    def broke(self, code: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            if self._broke is not None:
                self._broke(code)

    def _next(self) -> asyncio.TimerHandle | None:
        ends = [at for at, _ in self._limits(self._loop.time())]
        return self._loop.call_at(min(ends), self._look) if ends else None

    def _limits(self, now: float) -> Iterator[tuple[float, Callable[[], TooSlowError]]]:
        """When it will have taken too long at the earliest, as far as is known now, and what is said then."""
        patience, config = self._patience, self._patience.config
        if patience.total_at is not None:
            yield patience.total_at, patience.total_error
        if config.between_tokens_s is not None:
            yield (now if self._sending else self._since) + config.between_tokens_s, patience.stall_error
        if config.unread_s is not None:
            yield (self._since if self._sending else now) + config.unread_s, patience.unread_error

    def _look(self) -> None:
        now = self._loop.time()
        if self._error is not None:
            self._cut_off(self._error)
            return
        for at, error in self._limits(now):
            if now >= at:
                self._give_up(error())
                return
        self._timer = self._next()

    def _give_up(self, error: TooSlowError) -> None:
        logger.warning("a stream was given up: %s", error)
        self._error = error
        if not self._is_left:  # else only its end is unread, and may still be read
            self.broke(error.code)
        if self._sending:
            self.leave()
        else:
            self._stream.fail(error)
        self._timer = self._loop.call_later(GRACE_S, self._look)

    def _cut_off(self, error: TooSlowError) -> None:
        logger.warning("a client's connection is closed: it hasn't read the end of its stream")
        self.broke(error.code)
        self._cut = True
        if self._task is not None:
            self._task.cancel()
