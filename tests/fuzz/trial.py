"""One input after the other at a house's doors, each with a good request after it."""

import asyncio
import itertools
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.by_schema import document_of
from tests.fuzz.client import Answer, ask
from tests.fuzz.documents import GOOD
from tests.fuzz.headers import usual
from tests.fuzz.house import House, house
from tests.fuzz.inputs import Input
from tests.fuzz.judge import faults
from tests.fuzz.logs import Listener, listening

_GOOD = [Input("POST", path, usual, (json.dumps(document).encode(),)) for path, document in GOOD]


FRAMES = 950  # of Python's 1000; a replica's own come before a request's
STUCK_S = 120  # without the event loop going on: then the whole run is given up


class Trial:
    """Asks one house, which goes on from input to input, as a server does."""

    def __init__(self, runner: asyncio.Runner, asked: House, listener: Listener) -> None:
        self._runner = runner
        self._house = asked
        self._listener = listener
        self._good = itertools.cycle(_GOOD)

    def api(self) -> dict[str, object]:
        """The house's OpenAPI document."""
        return self._runner.run(document_of(self._house.doors["open"]))

    def judged(self, asked: Input) -> tuple[Answer, list[str]]:
        """The answer to an input, and what is wrong with it, or with the house since."""
        with _no_longer_than(STUCK_S, asked), _usual_stack():
            return self._runner.run(self._judged(asked))

    async def _judged(self, asked: Input) -> tuple[Answer, list[str]]:
        answer = await ask(self._house.doors[asked.door], asked)
        found = [*faults(asked, answer)]
        good = next(self._good)
        after = await ask(self._house.doors["open"], good)
        if after.status != 200:
            found.append(f"the next good request, {good.target}: {after.status} {after.body[:300]!r}")
        found += [f"the next good request, {good.target}: {fault}" for fault in faults(good, after)]
        return answer, [*found, *self._listener.taken()]


@contextmanager
def _no_longer_than(seconds: int, asked: Input) -> Iterator[None]:
    """What doesn't return to the event loop is ended by a signal."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"stuck for {seconds} s: {asked}")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _usual_stack() -> Iterator[None]:
    """As much of it as a server has: hypothesis allows itself, and what it calls, thousands of frames more."""
    depth, frame = 0, sys._getframe()
    while (before := frame.f_back) is not None:
        depth, frame = depth + 1, before
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def trial() -> Iterator[Trial]:
    """A house of its own."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner, listening() as listener:
        opened = house(Path(folder))
        entered = runner.run(opened.__aenter__())
        try:
            yield Trial(runner, entered, listener)
        finally:
            runner.run(opened.__aexit__(None, None, None))
