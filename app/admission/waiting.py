"""The order in which requests wait: by priority, and fair between keys."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.routing.settings import RequestType

PRIORITY: dict[RequestType, int] = {"chat": 0, "multi_turn": 0, "embedding": 0, "batch": 1, "offline": 2}

T = TypeVar("T")


@dataclass(order=True, slots=True)
class _Entry(Generic[T]):
    priority: int
    tag: float  # virtual time at which it would be done
    number: int
    begins: float = field(compare=False)
    item: T = field(compare=False)
    gone: bool = field(compare=False, default=False)


class Waiting(Generic[T]):
    """Start-time fair queueing: of one priority, each key gets as many tokens as any other that waits too.

    Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", 1996, with the end's tag for the order.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry[T]] = []
        self._numbers = itertools.count()
        self._now: dict[int, float] = {}  # virtual time of each priority
        self._ends: dict[tuple[int, str], float] = {}  # when each key's last one would be done
        self.count: Counter[int] = Counter()  # of those that wait, by priority

    def __len__(self) -> int:
        return self.count.total()

    def ahead_of(self, kind: RequestType) -> int:
        """How many wait whose turn comes before that of one that comes now."""
        return sum(count for priority, count in self.count.items() if priority <= PRIORITY[kind])

    def add(self, item: T, kind: RequestType, key: str, tokens: int) -> Callable[[], None]:
        """Have something wait; the function that is returned takes it out again, if it waits still."""
        priority = PRIORITY[kind]
        begins = max(self._now.get(priority, 0.0), self._ends.get((priority, key), 0.0))
        tag = self._ends[priority, key] = begins + max(tokens, 1)
        entry = _Entry(priority, tag, next(self._numbers), begins, item)
        heapq.heappush(self._heap, entry)
        self.count[priority] += 1
        return lambda: self._leave(entry)

    def _leave(self, entry: _Entry[T]) -> None:
        if not entry.gone:
            entry.gone = True
            self.count[entry.priority] -= 1
            self._tidy()

    def pop_first(self, fits: Callable[[T], bool], blocks: Callable[[T], bool]) -> T | None:
        """Take out the first that fits. One that doesn't is passed over, unless it blocks those behind it."""
        passed: list[_Entry[T]] = []
        found: T | None = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            if entry.gone:
                continue
            if fits(entry.item):
                entry.gone = True
                self.count[entry.priority] -= 1
                self._now[entry.priority] = max(self._now.get(entry.priority, 0.0), entry.begins)
                found = entry.item
                break
            passed.append(entry)
            if blocks(entry.item):
                break
        for entry in passed:
            heapq.heappush(self._heap, entry)
        self._tidy()
        return found

    def _tidy(self) -> None:
        """Forget what is over, so that memory is bounded by what waits."""
        if not len(self):
            self._heap.clear()
            self._now.clear()
            self._ends.clear()
        elif len(self._heap) > 2 * len(self) + 16:
            self._heap = [entry for entry in self._heap if not entry.gone]
            heapq.heapify(self._heap)
