"""What the overload benchmark asks for, what it makes of the answers, and how it shows that."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from aiohttp import web

from app.config import load_ingress_config
from benchmarks.overload import figures, load, report
from benchmarks.overload.load import GAVE_UP, Outcome
from benchmarks.overload.mix import MIX, PHASES, SLOTS, TOKEN_S, Arrival, Kind, arrivals
from benchmarks.overload.server import LIMITS

CHAT = Outcome("chat", "overload", 1.0, 2.0, 200, 1.01, 1.05, queued_ms=4.0)
BUSY = "The server is busy: x is reached, ..."
SHED = Outcome("offline", "overload", 1.0, 1.002, 429, 1.002, error=BUSY, retry_after_s=3)


def test_ten_times_what_the_pool_can_do_is_asked_for() -> None:
    due = arrivals(calm_s=100, overload_s=100, seed=1)
    tokens = {phase: sum(one.kind.tokens for one in due if one.phase == phase) for phase in PHASES}
    can_do = SLOTS / TOKEN_S * 100
    assert tokens["overload"] / can_do == pytest.approx(10, rel=0.05)
    assert [tokens[phase] / can_do for phase in ("calm", "after")] == pytest.approx([0.3, 0.3], rel=0.2)
    assert {one.kind.name for one in due if one.phase != "overload"} == {"chat"}
    assert [one.at_s for one in due] == sorted(one.at_s for one in due)
    assert due == arrivals(100, 100, 1) != arrivals(100, 100, 2)


def test_the_limits_are_limits() -> None:
    config = load_ingress_config({"models": {"overloaded": {"pools": ["overloaded"]}}, "admission": LIMITS}, {})
    assert config.admission.pools["overloaded"].max_concurrent == SLOTS


def test_what_became_of_requests() -> None:
    late = replace(SHED, status=504, retry_after_s=None)
    never = Outcome("chat", "overload", 1.0, 16.0, error=GAVE_UP)
    broken = replace(CHAT, error="the stream ends with b''")
    silent = replace(SHED, retry_after_s=None)
    found = figures.figures([CHAT, SHED, late, never, broken, silent])
    assert (found.offered, found.answered, found.shed, found.queue_timeouts) == (6, 1, 1, 1)
    assert (found.unanswered, found.wrong) == (1, 2)
    assert (found.ttft_ms_p50, found.queued_ms_p99, found.shed_ms_p50) == pytest.approx((50, 4, 2))
    assert found.shed_by == {"x": 1}
    assert figures.figures([]).ttft_ms_p50 is None


def test_how_busy_the_pool_was() -> None:
    assert figures.used([CHAT, SHED], 1.05, 2.05) == pytest.approx(0.95 / SLOTS)
    assert figures.used([CHAT], 0, 4) == pytest.approx(0.95 / 4 / SLOTS)


def test_the_table() -> None:
    phases = figures.by_kind([CHAT, SHED])
    document: dict[str, Any] = {
        "phases": {phase: {kind: asdict(one) for kind, one in kinds.items()} for phase, kinds in phases.items()},
        "used": 0.8,
        "ingress_rss_mb": {"calm": 150.4, "most": 160.0},
    }
    lines = report.table({"limits": document}).splitlines()
    assert " ".join(lines[1].split()) == "overload: chat 1 1 0 0 0 0 4 4 50 50 50 - -"
    assert " ".join(lines[2].split()) == "overload: offline 1 0 1 0 0 0 - - - - - 2.0 2.0"
    assert [line.strip() for line in lines[3:]] == [
        "429 by x: 1",
        "the pool was busy at 80% of the overload",
        "the ingress had 150 MB in the calm, 160 MB at most",
    ]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that answers chat, cuts batch, turns away offline, and leaves embedding waiting."""

    async def answer(request: web.Request) -> web.StreamResponse:
        kind = request.headers["x-request-type"]
        if kind == "offline":
            return web.json_response({"error": {"message": "busy"}}, status=429, headers={"retry-after": "7"})
        stream = web.StreamResponse(headers={"x-enginehouse-queue-ms": "12"})
        await stream.prepare(request)
        await stream.write(b"data: {}\n\n")
        if kind == "embedding":
            await asyncio.sleep(60)  # longer than its client waits
        if kind == "chat":
            await stream.write(b"data: [DONE]\n\n")
        return stream

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def test_each_request_is_sent_when_it_is_due_and_its_answer_noted(port: int) -> None:
    kinds = [*MIX, Kind("embedding", 1, 1)]
    due = [Arrival(number * 0.05, "calm", kind) for number, kind in enumerate(kinds)]
    chat, batch, offline, waiting = await load.run(port, due, patience_s=1)
    assert [one.sent_s for one in (chat, batch, offline)] == pytest.approx([0, 0.05, 0.1], abs=0.1)
    assert (chat.status, chat.error, chat.queued_ms) == (200, None, 12)
    assert chat.first_s is not None and chat.sent_s < chat.first_s <= chat.ended_s
    assert batch.error is not None and batch.error.startswith("the stream ends with")
    assert (offline.status, offline.error, offline.retry_after_s) == (429, "busy", 7)
    assert waiting.ended_s == pytest.approx(1.15, abs=0.2) and waiting.error == GAVE_UP
    assert figures.figures([chat, batch, offline, waiting]).unanswered == 1
