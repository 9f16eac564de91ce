"""From answers and counters to figures. Pure functions."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.gateway.answers import Ask
from benchmarks.gateway.cases import Case
from benchmarks.gateway.client import Answer


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """One case of one row. None: nothing to tell it from, such as chunks where nothing was streamed."""

    requests: int
    wrong: dict[str, int]  # how often, by what was wrong
    wall_s: float
    requests_per_s: float
    chunks_per_s: float | None
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    gap_ms_p50: float | None  # between two events
    gap_ms_p99: float | None
    reads_per_event: float | None  # less than 1: events came several at once
    cpu_ms_per_request: float  # without what the row uses when idle
    cpu_us_per_chunk: float | None  # the whole stream's, by its chunks
    raw_cpu_ms_per_request: float
    raw_cpu_us_per_chunk: float | None
    cpu_s: float
    client_cpu_s: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What a case took."""

    wall_s: float
    cpu_s: float  # the row's
    idle_cpu_s: float  # what of it the row would have used anyway
    client_cpu_s: float


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """Time to the first event, directly and through the gateway. What it adds is the difference of the quantiles."""

    pairs: int
    wrong: dict[str, int]
    direct_ttft_ms_p50: float
    direct_ttft_ms_p99: float
    gateway_ttft_ms_p50: float
    gateway_ttft_ms_p99: float
    added_ttft_ms_p50: float
    added_ttft_ms_p99: float


def case_figures(case: Case, answers: Sequence[Answer], spent: Spent) -> CaseFigures:
    found = [answer.fault(case.ask) for answer in answers]
    right = [answer for answer, wrong in zip(answers, found, strict=True) if wrong is None]
    count, net_s = max(1, len(answers)), max(0.0, spent.cpu_s - spent.idle_cpu_s)
    chunks = count * case.ask.pace.chunks if case.ask.stream else None
    ttft_ms = [(answer.first_s - answer.sent_s) * 1e3 for answer in right]
    gaps_ms = [gap * 1e3 for answer in right for gap in gaps_s(answer.arrivals)]
    reads, events = sum(len(answer.arrivals) for answer in right), len(gaps_ms) + len(right)
    return CaseFigures(
        requests=len(answers),
        wrong=dict(Counter(filter(None, found))),
        wall_s=spent.wall_s,
        requests_per_s=len(right) / spent.wall_s,
        chunks_per_s=len(right) * case.ask.pace.chunks / spent.wall_s if chunks else None,
        ttft_ms_p50=quantile(ttft_ms, 0.5),
        ttft_ms_p99=quantile(ttft_ms, 0.99),
        gap_ms_p50=quantile(gaps_ms, 0.5),
        gap_ms_p99=quantile(gaps_ms, 0.99),
        reads_per_event=reads / events if chunks and right else None,
        cpu_ms_per_request=net_s * 1e3 / count,
        cpu_us_per_chunk=net_s * 1e6 / chunks if chunks else None,
        raw_cpu_ms_per_request=spent.cpu_s * 1e3 / count,
        raw_cpu_us_per_chunk=spent.cpu_s * 1e6 / chunks if chunks else None,
        cpu_s=spent.cpu_s,
        client_cpu_s=spent.client_cpu_s,
    )


def paired_figures(ask: Ask, pairs: Sequence[tuple[Answer, ...]]) -> PairedFigures:
    """`pairs` of a direct answer and one through the gateway.

    Raises:
        ValueError: there are none.
    """
    if not pairs:
        raise ValueError("no pair of requests was answered")
    direct, gateway = ([(pair[side].first_s - pair[side].sent_s) * 1e3 for pair in pairs] for side in (0, 1))
    direct_p50, direct_p99, gateway_p50, gateway_p99 = (
        value for values in (direct, gateway) for q in (0.5, 0.99) if (value := quantile(values, q)) is not None
    )
    return PairedFigures(
        pairs=len(pairs),
        wrong=dict(Counter(filter(None, (answer.fault(ask) for pair in pairs for answer in pair)))),
        direct_ttft_ms_p50=direct_p50,
        direct_ttft_ms_p99=direct_p99,
        gateway_ttft_ms_p50=gateway_p50,
        gateway_ttft_ms_p99=gateway_p99,
        added_ttft_ms_p50=gateway_p50 - direct_p50,
        added_ttft_ms_p99=gateway_p99 - direct_p99,
    )


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that a share of `q` of them doesn't exceed; None of none."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)] if values else None


def gaps_s(arrivals: Sequence[tuple[float, int]]) -> Iterator[float]:
    """Seconds between two events, one after the other: 0 between those that one read brought."""
    last_s: float | None = None
    for now_s, events in arrivals:
        if last_s is not None:
            yield now_s - last_s
        yield from (0.0 for _ in range(events - 1))
        last_s = now_s
