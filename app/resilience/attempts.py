"""Which pool is asked next, after one has failed a request."""

from collections.abc import Sequence


class Attempts:
    """The pools that a request may still be sent to."""

    def __init__(self, pools: Sequence[str], most: int) -> None:
        self.left = list(pools)
        self.made = 0  # requests that were sent
        self._failures_left = most
        self._asked_again: str | None = None

    @property
    def over(self) -> bool:
        """Whether the client has to be told of the last failure."""
        return not self.left or not self._failures_left

    def passed_over(self, pool: str) -> None:
        """It was full, or isn't to be asked now."""
        self.left.remove(pool)

    def failed(self, pool: str, *, again: bool = False) -> None:
        """It failed. `again`: the last one left may be asked once more, for it has other replicas."""
        self._failures_left -= 1
        if again and self.left == [pool] and self._asked_again is None:
            self._asked_again = pool
        else:
            self.left.remove(pool)
