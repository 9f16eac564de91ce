"""From what came of each request to figures. Pure functions."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.gateway.figures import quantile
from benchmarks.overload.load import GAVE_UP, Outcome
from benchmarks.overload.mix import SLOTS

LIMIT = re.compile(r"busy: (.+) is reached")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the requests of one type in one phase. Times in ms; None: there was none."""

    offered: int
    answered: int
    shed: int  # 429
    queue_timeouts: int  # 504
    unanswered: int  # its client's patience ended
    wrong: int  # anything else: there should be none
    ttft_ms_p50: float | None
    ttft_ms_p95: float | None
    ttft_ms_p99: float | None
    queued_ms_p50: float | None  # of those that were answered
    queued_ms_p99: float | None
    shed_ms_p50: float | None  # until a 429 was there
    shed_ms_p99: float | None
    shed_by: dict[str, int]  # the limits that the 429s name


def figures(outcomes: Iterable[Outcome]) -> Figures:
    """What became of some requests."""
    there = list(outcomes)
    answered = [one for one in there if one.status == 200 and one.error is None]
    shed = [one for one in there if one.status == 429 and one.retry_after_s]
    late = [one for one in there if one.status == 504 and one.error != GAVE_UP]
    unanswered = [one for one in there if one.error == GAVE_UP]
    ttft = [(one.first_s - one.sent_s) * 1000 for one in answered if one.first_s is not None]
    queued = [one.queued_ms for one in answered if one.queued_ms is not None]
    refused = [(one.answered_s - one.sent_s) * 1000 for one in shed if one.answered_s is not None]
    return Figures(
        offered=len(there),
        answered=len(answered),
        shed=len(shed),
        queue_timeouts=len(late),
        unanswered=len(unanswered),
        wrong=len(there) - len(answered) - len(shed) - len(late) - len(unanswered),
        ttft_ms_p50=quantile(ttft, 0.5),
        ttft_ms_p95=quantile(ttft, 0.95),
        ttft_ms_p99=quantile(ttft, 0.99),
        queued_ms_p50=quantile(queued, 0.5),
        queued_ms_p99=quantile(queued, 0.99),
        shed_ms_p50=quantile(refused, 0.5),
        shed_ms_p99=quantile(refused, 0.99),
        shed_by=dict(Counter(_limit(one.error or "") for one in shed)),
    )


def by_kind(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Figures]]:
    """Figures of each phase and type, in the order in which they came."""
    names = dict.fromkeys((one.phase, one.kind) for one in outcomes)
    found: dict[str, dict[str, Figures]] = {}
    for phase, kind in names:
        some = (one for one in outcomes if (one.phase, one.kind) == (phase, kind))
        found.setdefault(phase, {})[kind] = figures(some)
    return found


def used(outcomes: Iterable[Outcome], begin_s: float, end_s: float) -> float:
    """The part of the pool that was busy in a time, by when tokens came."""
    busy_s = 0.0
    for one in outcomes:
        if one.first_s is not None:
            busy_s += max(0.0, min(one.ended_s, end_s) - max(one.first_s, begin_s))
    return busy_s / (SLOTS * (end_s - begin_s))


def _limit(message: str) -> str:
    found = LIMIT.search(message)
    return found.group(1) if found else message
