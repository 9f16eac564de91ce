"""A circuit breaker for each pool: one that fails again and again isn't asked for a while.

Source of the states: Nygard, "Release It!", 2007. Times are seconds on a clock that the caller has.
"""

import logging
import math
from collections import deque

from app.resilience.settings import BreakerConfig

logger = logging.getLogger("ray.serve")

MOST_TIMES = 16  # `open_s`, that a pool is left alone


class Breaker:
    """Of one pool, in this process."""

    def __init__(self, pool: str, config: BreakerConfig) -> None:
        self._pool = pool
        self._opened = 0  # times in a row
        self._opens_at_s: float | None = None  # the pool may be tried from then on; None: it is asked as usual
        self._probing = False
        self._failures = deque[bool](maxlen=config.window)
        self._answered_s = -math.inf  # when it last did well
        self._config = config

    def set(self, config: BreakerConfig) -> None:
        """Other settings, from now on."""
        self._config = config
        self._failures = deque(self._failures, config.window)

    def lets_in(self, now_s: float) -> bool:
        """Whether a request that comes now would be sent."""
        return self._opens_at_s is None or (now_s >= self._opens_at_s and not self._probing)

    def begin(self, now_s: float) -> "Trial | None":
        """A request is sent, unless the pool is to be left alone."""
        if not self.lets_in(now_s):
            return None
        self._probing = self._opens_at_s is not None
        return Trial(self, now_s, probe=self._probing)

    def take(self, now_s: float, *, failed: bool, probe: bool = False) -> None:
        """What became of a request."""
        if not failed:
            self._answered_s = now_s
        if probe:
            self._probing = False
            if failed:
                self._leave_alone(now_s)
            else:
                logger.warning("pool %s answers again", self._pool)
                self._opens_at_s, self._opened = None, 0
        elif self._opens_at_s is None:  # what was under way when it was left alone says nothing new
            self._failures.append(failed)
            failures = sum(self._failures)
            if failures >= self._config.min_failures and 2 * failures >= len(self._failures):
                self._leave_alone(now_s)

    def answered_since(self, began_s: float) -> bool:
        return self._answered_s >= began_s

    def cancel(self, *, probe: bool) -> None:
        """Nothing can be said of a request."""
        self._probing = self._probing and not probe

    def _leave_alone(self, now_s: float) -> None:
        seconds = self._config.open_s * min(2**self._opened, MOST_TIMES)
        logger.warning("pool %s fails: it isn't asked for %g s", self._pool, seconds)
        self._failures.clear()
        self._opened += 1
        self._opens_at_s = now_s + seconds


class Trial:
    """One request to a pool, until it is known how it went."""

    __slots__ = ("_began_s", "_breaker", "_known", "_probe")

    def __init__(self, breaker: Breaker, began_s: float, *, probe: bool) -> None:
        self._breaker = breaker
        self._began_s = began_s
        self._probe = probe
        self._known = False

    def succeeded(self, now_s: float) -> None:
        self._known = True
        self._breaker.take(now_s, failed=False, probe=self._probe)

    def failed(self, now_s: float) -> None:
        """It failed; maybe after it had begun well."""
        self._breaker.take(now_s, failed=True, probe=self._probe and not self._known)
        self._known = True

    def ran_out(self, now_s: float) -> None:
        """All of its time has passed without an answer, which may be too long for it: it failed if the pool answered
        nothing else either in that time."""
        if not self._breaker.answered_since(self._began_s):
            self.failed(now_s)

    def end(self) -> None:
        """Nothing more will be known."""
        if not self._known:
            self._known = True
            self._breaker.cancel(probe=self._probe)


class Breakers:
    """All pools'."""

    def __init__(self, config: BreakerConfig | None = None) -> None:
        self._config = config or BreakerConfig()
        self._breakers: dict[str, Breaker] = {}

    def set(self, config: BreakerConfig) -> None:
        """Other settings, from now on."""
        self._config = config
        for breaker in self._breakers.values():
            breaker.set(config)

    def of(self, pool: str) -> Breaker:
        if pool not in self._breakers:
            self._breakers[pool] = Breaker(pool, self._config)
        return self._breakers[pool]

    def lets_in(self, pool: str, now_s: float) -> bool:
        return pool not in self._breakers or self._breakers[pool].lets_in(now_s)
