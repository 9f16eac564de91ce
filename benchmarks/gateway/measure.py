"""Puts one row through everything: its latency against the mock server's, what it uses when idle, and all cases."""

import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from app import runner
from app.flags import free_port
from benchmarks.gateway import client, figures, usage
from benchmarks.gateway.answers import Ask
from benchmarks.gateway.cases import CASES, PAIRED, PAIRED_LIMIT_S, PAIRS, PROMPT_CHARS, WARM_UP, Case
from benchmarks.gateway.engine import Pace
from benchmarks.gateway.figures import CaseFigures, PairedFigures, Spent
from benchmarks.gateway.processes import Launch, Running, StartError, module, running
from benchmarks.gateway.rows import Place, Report, Row

T = TypeVar("T")

IDLE_S = 4.0
SETTLE_S = 0.3  # from the last answer to when a row counts as idle
CALM_S = 2.0  # what a row uses in two such times hardly differs once it has started in all its parts
CALM_WITHIN = 0.2
CALM_LIMIT_S = 90.0
START_S = 180.0  # Ray's rows take half a minute, more where others keep the machine busy
ASK_AGAIN_S = 0.2
PROBE = Ask(Pace(4), PROMPT_CHARS, stream=True)


@dataclass(frozen=True, slots=True)
class RowFigures:
    """All that one run of a row gave."""

    start_s: float
    idle_cpu_percent: float  # of one core
    rss_mb: float
    pss_mb: float
    paired: PairedFigures
    cases: Mapping[str, CaseFigures]


@contextmanager
def mock_server() -> Iterator[int]:
    """The server that gateways to servers elsewhere get, and that added latency is counted from; its port."""
    with _folder() as folder:
        port = free_port()
        with running(Launch(module("mock_server", port)), folder / "log") as server:
            _wait_until_right(server, port)
            yield port


def measure(row: Row, upstream_port: int, scale: float, report: Report) -> RowFigures:
    """One run of a row.

    Raises:
        StartError: it can't be had to answer.
    """
    with _folder() as folder:
        place = Place(free_port(), folder, upstream_port)
        began_s = time.monotonic()
        with running(row.launch(place), folder / "log") as process:
            _wait_until_right(process, place.port)
            start_s = time.monotonic() - began_s
            report(f"{row.name}: up after {start_s:.0f} s")
            return _Subject(process, place, scale, report).figures(row.name, start_s)


class _Subject:
    """A row that runs."""

    def __init__(self, process: Running, place: Place, scale: float, report: Report) -> None:
        self._process = process
        self._place = place
        self._scale = scale
        self._report = report

    def figures(self, name: str, start_s: float) -> RowFigures:
        self._wait_until_calm()
        for case in WARM_UP:
            _run(client.load(self._place.port, case.scaled(self._scale)))
        paired = self._paired()
        idle = self._idle()
        self._report(f"{name}: adds {paired.added_ttft_ms_p50:.2f} ms of TTFT; idle, it uses {idle:.1%} of a core")
        cases = {}
        for case in CASES:
            cases[case.name] = found = self._case(case.scaled(self._scale), idle)
            self._report(f"{name}: {described(case, found)}")
            self._process.refuse_ended()
        memory = usage.memory(self._process.pid)
        return RowFigures(start_s, idle * 100, memory.rss_mb, memory.pss_mb, paired, cases)

    def _paired(self) -> PairedFigures:
        ports = (self._place.upstream_port, self._place.port)
        rounds = max(20, round(PAIRS * self._scale))
        return figures.paired_figures(PAIRED, _run(client.in_turn(ports, PAIRED, rounds, PAIRED_LIMIT_S)))

    def _wait_until_calm(self) -> None:
        """Ray's rows answer before all of their processes are up."""
        deadline_s, last, now = time.monotonic() + CALM_LIMIT_S, float("inf"), self._used(CALM_S)
        while abs(last - now) > CALM_WITHIN * now and time.monotonic() < deadline_s:
            last, now = now, self._used(CALM_S)

    def _idle(self) -> float:
        """The CPU that it uses when nobody asks anything, as a share of one core."""
        time.sleep(SETTLE_S)
        return self._used(max(1.0, IDLE_S * self._scale))

    def _used(self, seconds: float) -> float:
        """The CPU that it uses in some time, as a share of one core."""
        before = usage.read(self._process.pid)
        time.sleep(seconds)
        after = usage.read(self._process.pid)
        return usage.cpu_s(before, after) / (after.at_s - before.at_s)

    def _case(self, case: Case, idle: float) -> CaseFigures:
        before, client_before_s = usage.read(self._process.pid), time.process_time()
        began_s = time.monotonic()
        answers = _run(client.load(self._place.port, case))
        wall_s, client_cpu_s = time.monotonic() - began_s, time.process_time() - client_before_s
        time.sleep(SETTLE_S)  # what a row puts off until an answer is out is its cost too
        after = usage.read(self._process.pid)
        idle_cpu_s = idle * (after.at_s - before.at_s)
        return figures.case_figures(case, answers, Spent(wall_s, usage.cpu_s(before, after), idle_cpu_s, client_cpu_s))


def described(case: Case, found: CaseFigures) -> str:
    """A case in a line of progress."""
    per_chunk = f", {found.cpu_us_per_chunk:.0f} us/chunk" if found.cpu_us_per_chunk is not None else ""
    wrong = f"; WRONG: {found.wrong}" if found.wrong else ""
    cpu = f"{found.cpu_ms_per_request:.2f} ms CPU/request{per_chunk}"
    return f"{case.name}: {found.requests} in {found.wall_s:.1f} s, {cpu}{wrong}"


def _wait_until_right(process: Running, port: int) -> None:
    """
    Raises:
        StartError: it has ended, or gives no right answer in time.
    """
    deadline_s, wrong = time.monotonic() + START_S, ""
    while time.monotonic() < deadline_s:
        process.refuse_ended()
        _refuse_failed(process, port)
        found = _run(client.once(port, PROBE)).fault(PROBE)
        if found is None:
            return
        wrong = found
        time.sleep(ASK_AGAIN_S)
    raise StartError(f"no right answer within {START_S:.0f} s, the last: {wrong}; its last words:\n{process.tail()}")


def _refuse_failed(process: Running, port: int) -> None:
    """
    Raises:
        StartError: it says of a pool that it can't be deployed, as Enginehouse does.
    """
    states = runner.pool_states(runner.Where("127.0.0.1", port)) or {}
    if failed := [f"{name}: {state}" for name, state in states.items() if state in runner.FAILED]:
        raise StartError(f"pool {', '.join(failed)}: {runner.reason(process.log)}{process.tail()}")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(work)


@contextmanager
def _folder() -> Iterator[Path]:
    """A new one, removed in the end. Its path is short, for below it come those of sockets: HAProxy's may have 97
    characters, and `enginehouse serve` needs 82 of them."""
    folder = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
