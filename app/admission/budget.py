"""What is under way against what may be: counting, nothing else."""

from dataclasses import dataclass

from app.admission.settings import LimitConfig


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request takes of a budget."""

    tokens: int
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the ingress's replicas this is, from 0, of how many."""

    rank: int = 0
    replicas: int = 1


ALONE = Place()


def share_of(limit: int | None, place: Place) -> int | None:
    """This replica's part of a limit, at least 1: the parts of all add up to it, where it is no less than they are."""
    if limit is None:
        return None
    whole, rest = divmod(limit, place.replicas)
    return max(1, whole + (place.rank < rest))


class Budget:
    """Of a pool or a model, in this process."""

    def __init__(self, limit: LimitConfig, place: Place = ALONE) -> None:
        self.running = 0
        self.tokens = 0
        self.set(limit, place)

    def set(self, limit: LimitConfig, place: Place) -> None:
        """Other limits, from now on; what is under way stays."""
        self.most_running = share_of(limit.max_concurrent, place)
        self.most_tokens = share_of(limit.max_tokens_in_flight, place)
        self.largest = limit.max_tokens_in_flight  # of one request: it may be larger than a share, where it is alone
        self.most_queued = (share_of(limit.max_queued, place) or 0) if limit.max_queued else 0

    @property
    def limits(self) -> bool:
        return self.most_running is not None or self.most_tokens is not None

    def lacks(self, cost: Cost) -> str | None:
        """The limit that a request doesn't fit into now; None if it fits."""
        if self.most_running is not None and self.running + cost.requests > self.most_running:
            return "max_concurrent"
        if self.most_tokens is not None and self.tokens and self.tokens + cost.tokens > self.most_tokens:
            return "max_tokens_in_flight"
        return None

    def beyond(self, whole: "Budget", part: float, cost: Cost) -> bool:
        """Whether this would take more than a part of a whole budget. One request at a time it always may."""
        if not self.running:
            return False
        running = whole.most_running is not None and self.running + cost.requests > whole.most_running * part
        tokens = whole.most_tokens is not None and self.tokens + cost.tokens > whole.most_tokens * part
        return running or tokens

    def too_large(self, cost: Cost) -> bool:
        """Whether a request couldn't even be answered alone."""
        return self.largest is not None and cost.tokens > self.largest

    def take(self, cost: Cost) -> None:
        self.running += cost.requests
        self.tokens += cost.tokens

    def give_back(self, cost: Cost) -> None:
        self.running -= cost.requests
        self.tokens -= cost.tokens
