"""Right answers, and figures, for the benchmark's tests to spoil."""

from dataclasses import replace

from benchmarks.gateway import engine
from benchmarks.gateway.answers import Ask
from benchmarks.gateway.cases import CASES
from benchmarks.gateway.client import Answer
from benchmarks.gateway.engine import Pace
from benchmarks.gateway.figures import CaseFigures, PairedFigures
from benchmarks.gateway.measure import RowFigures

STREAM = Ask(Pace(12), prompt_chars=200, stream=True)
WHOLE = replace(STREAM, stream=False)

CASE = CaseFigures(
    requests=10,
    wrong={},
    wall_s=1.0,
    requests_per_s=10.0,
    chunks_per_s=640.0,
    ttft_ms_p50=1.0,
    ttft_ms_p99=2.0,
    gap_ms_p50=10.0,
    gap_ms_p99=11.0,
    reads_per_event=1.0,
    cpu_ms_per_request=2.0,
    cpu_us_per_chunk=50.0,
    raw_cpu_ms_per_request=2.5,
    raw_cpu_us_per_chunk=55.0,
    cpu_s=0.025,
    client_cpu_s=0.01,
)
PAIRED = PairedFigures(
    pairs=100,
    wrong={},
    direct_ttft_ms_p50=0.5,
    direct_ttft_ms_p99=1.0,
    gateway_ttft_ms_p50=2.0,
    gateway_ttft_ms_p99=4.0,
    added_ttft_ms_p50=1.5,
    added_ttft_ms_p99=3.0,
)


async def right(ask: Ask) -> bytes:
    """The body of a right answer."""
    work = engine.work(ask.prompt, stream=ask.stream, usage=ask.stream)
    return b"".join([event async for event in engine.events(work)]) if ask.stream else await engine.document(work)


def answer(body: bytes, arrivals: list[tuple[float, int]] | None = None) -> Answer:
    """One that was sent at 0 s, and has ended after 2 s."""
    return Answer(0.0, 2.0, status=200, body=body, arrivals=[(1.0, 1)] if arrivals is None else arrivals)


def row_figures(
    cpu_ms_per_request: float = 2.0, wrong: dict[str, int] | None = None, paired: PairedFigures = PAIRED
) -> RowFigures:
    found = replace(CASE, cpu_ms_per_request=cpu_ms_per_request, wrong=wrong or {})
    cases = {case.name: found for case in CASES}
    return RowFigures(start_s=1.0, idle_cpu_percent=5.0, rss_mb=100.0, pss_mb=80.0, paired=paired, cases=cases)
