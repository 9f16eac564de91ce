"""What is asked for, and when: arrivals that don't wait for answers. Pure functions."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SLOTS = 32  # requests that the pool may answer at once
TOKEN_S = 0.02  # from each token to the next
CALM, OVERLOAD, AFTER = PHASES = ("calm", "overload", "after")


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one type."""

    name: str
    load: float  # offered, in parts of what the pool can do
    tokens: int  # of an answer

    @property
    def requests_per_s(self) -> float:
        return self.load * SLOTS / (self.tokens * TOKEN_S)


# Ten times what the pool can do. What can't wait fits, as an operator would plan; offline work is without end.
MIX = (Kind("chat", 0.3, 50), Kind("batch", 0.2, 100), Kind("offline", 9.5, 100))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request."""

    at_s: float  # from the beginning
    phase: str
    kind: Kind


def arrivals(calm_s: float, overload_s: float, seed: int, mix: Sequence[Kind] = MIX) -> list[Arrival]:
    """Poisson arrivals: of the first kind all the time, of all kinds in the middle."""
    chance = random.Random(seed)
    ends_s = (calm_s, calm_s + overload_s, 2 * calm_s + overload_s)

    def times(kind: Kind, begin_s: float, end_s: float) -> Iterator[float]:
        at_s = begin_s + chance.expovariate(kind.requests_per_s)
        while at_s < end_s:
            yield at_s
            at_s += chance.expovariate(kind.requests_per_s)

    found = [
        Arrival(at_s, phase, kind)
        for phase, begin_s, end_s in zip(PHASES, (0.0, *ends_s), ends_s, strict=False)
        for kind in (mix if phase == OVERLOAD else mix[:1])
        for at_s in times(kind, begin_s, end_s)
    ]
    return sorted(found, key=lambda arrival: arrival.at_s)
