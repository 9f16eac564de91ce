"""What is done to a server on purpose, and must not harm its clients: the register of it, and what comes of it."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.faults.rig import Rig


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it."""

    requests: int  # of each load
    rounds: int  # of what is done again and again
    soak_s: float


FULL = Size(requests=10_000, rounds=40, soak_s=1200)
SHORT = Size(requests=800, rounds=8, soak_s=30)


@dataclass(slots=True)
class Seen:
    """What was counted, and what wasn't as it must be."""

    counts: dict[str, float] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def must(self, true: object, otherwise: str) -> None:
        if not true:
            self.misses.append(otherwise)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault."""

    name: str
    must: str  # what has to happen
    run: "Run"


Run = Callable[[Rig, Size, Seen], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Run], Run]:
    """Register a kind of fault. Its docstring's first line says what must happen."""

    def register(run: Run) -> Run:
        assert name not in ROWS
        ROWS[name] = Row(name, (run.__doc__ or "").strip().partition("\n")[0], run)
        return run

    return register


async def carry_out(chosen: Row, rig: Rig, size: Size) -> Seen:
    """Inject one kind of fault. Whatever goes wrong is a miss."""
    seen, began_s = Seen(), time.monotonic()
    try:
        await chosen.run(rig, size, seen)
    except Exception as error:
        seen.misses.append(f"{type(error).__name__}: {error}")
    seen.seconds = time.monotonic() - began_s
    return seen
