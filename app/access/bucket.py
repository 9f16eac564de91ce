"""So many a minute: counting, with the time given, in nanoseconds."""

MINUTE = 60 * 10**9
SECOND = 10**9


class Bucket:
    """So many a minute, which come back evenly. It counts in parts of a minute's, in whole numbers: no rounding."""

    def __init__(self, per_minute: int, now: int) -> None:
        self.per_minute = per_minute
        self._level = per_minute * MINUTE
        self._at = now

    def set(self, per_minute: int, now: int) -> None:
        """Another rate, from now on; what there is stays, as far as it fits."""
        self._refill(now)
        self.per_minute = per_minute
        self._level = min(self._level, self._full)

    @property
    def _full(self) -> int:
        return self.per_minute * MINUTE

    def _refill(self, now: int) -> None:
        self._level = min(self._full, self._level + max(0, now - self._at) * self.per_minute)
        self._at = max(self._at, now)

    def remaining(self, now: int) -> int:
        self._refill(now)
        return max(0, self._level // MINUTE)

    def wait(self, amount: int, now: int) -> int:
        """Until so many can be taken: at most a minute's."""
        self._refill(now)
        return self._until(amount * MINUTE)

    def full_in(self, now: int) -> int:
        self._refill(now)
        return self._until(self._full)

    def _until(self, level: int) -> int:
        return max(0, -(-(level - self._level) // self.per_minute))

    def take(self, amount: int, now: int) -> None:
        """Less than nothing puts back."""
        self._refill(now)
        self._level = min(self._full, self._level - amount * MINUTE)


def duration(nanoseconds: int) -> str:
    """As OpenAI's API writes one: `120ms`, `1.5s`, `6m0s`. Rounded up."""
    milliseconds = -(-nanoseconds // 10**6)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{seconds}" if minutes else seconds
