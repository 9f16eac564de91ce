"""What is done to a server on purpose, and must not harm its clients: the register of it, and what comes of it."""

import time
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, field

from tests.faults.load import Tally
from tests.faults.rig import Rig

BROKEN = frozenset({"engine_lost"})  # what clients of streams that had begun are told


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it."""

    requests: int  # of each load
    rounds: int  # of what is done again and again
    soak_s: float


FULL = Size(requests=10_000, rounds=40, soak_s=1200)
SHORT = Size(requests=800, rounds=8, soak_s=30)


class NotHereError(Exception):
    """This machine lacks what a row needs. The message says what."""


@dataclass(slots=True)
class Seen:
    """What was counted, and what wasn't as it must be."""

    counts: dict[str, float] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def must(self, true: object, otherwise: str) -> None:
        if not true:
            self.misses.append(otherwise)


def clean(seen: Seen, tally: Tally, told: Set[str] = frozenset()) -> None:
    """No answer was wrong or cut, and no client was told of another failure than these."""
    seen.counts.update(tally.counts())
    seen.must(not tally.wrong, f"wrong answers: {dict(tally.wrong)}")
    seen.must(not tally.cut, f"cut off: {dict(tally.cut)}")
    seen.must(set(tally.told) <= told, f"told: {dict(tally.told)}")


Run = Callable[[Rig, Size, Seen], Awaitable[None]]
Alone = Callable[[Size, Seen], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault. It is done to the one server of all rows, or to one that it starts itself."""

    name: str
    must: str  # what has to happen
    run: Run | None = None
    alone: Alone | None = None
    is_soak: bool = False  # its long form takes half an hour: `make soak`


ROWS: dict[str, Row] = {}


def row(name: str, *, is_soak: bool = False) -> Callable[[Run], Run]:
    """Register a kind of fault. Its docstring's first line says what must happen."""

    def register(run: Run) -> Run:
        _register(Row(name, _must(run), run=run, is_soak=is_soak))
        return run

    return register


def row_alone(name: str) -> Callable[[Alone], Alone]:
    """As `row`, of one that starts a server of its own."""

    def register(alone: Alone) -> Alone:
        _register(Row(name, _must(alone), alone=alone))
        return alone

    return register


def _register(row: Row) -> None:
    assert row.name not in ROWS
    ROWS[row.name] = row


def _must(run: Callable[..., object]) -> str:
    return (run.__doc__ or "").strip().partition("\n")[0]


async def carry_out(chosen: Row, rig: Rig | None, size: Size) -> Seen:
    """Inject one kind of fault; `rig` is there for rows that need it. Whatever goes wrong is a miss."""
    seen, began_s = Seen(), time.monotonic()
    try:
        if chosen.alone is not None:
            await chosen.alone(size, seen)
        elif chosen.run is not None and rig is not None:
            await chosen.run(rig, size, seen)
        else:
            raise ValueError(f"nothing carries out {chosen.name}")
    except NotHereError:
        raise
    except Exception as error:
        seen.misses.append(f"{type(error).__name__}: {error}")
    seen.seconds = time.monotonic() - began_s
    return seen
