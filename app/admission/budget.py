"""What is under way against what may be: counting, nothing else."""

import math
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


def without(headroom: float, limit: int) -> int:
    """What is left of a limit of at least 1: itself at least 1, or the patient would never have their turn."""
    return max(1, math.floor(limit * (1 - headroom) + 0.5))


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

    def lacks(self, cost: Cost, headroom: float = 0.0) -> str | None:
        """The limit that a request doesn't fit into now, if it has to leave a part of it free; None if it fits."""
        if self.most_running is not None and self.running + cost.requests > without(headroom, self.most_running):
            return "max_concurrent"
        most = None if self.most_tokens is None else self.most_tokens * (1 - headroom)
        if most is not None and self.tokens and self.tokens + cost.tokens > most:
            return "max_tokens_in_flight"
        return None

    def too_large(self, cost: Cost) -> bool:
        """Whether a request couldn't even be answered alone."""
        return self.largest is not None and cost.tokens > self.largest

    def take(self, cost: Cost) -> None:
        self.running += cost.requests
        self.tokens += cost.tokens

    def give_back(self, cost: Cost) -> None:
        self.running -= cost.requests
        self.tokens -= cost.tokens
