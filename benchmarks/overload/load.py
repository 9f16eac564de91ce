"""Sends requests when they are due, whatever became of those before, and notes what came of each."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from benchmarks.overload.mix import Arrival, Kind

MODEL = "overloaded"
GAVE_UP = "its client gave up"


@dataclass(slots=True)
class Outcome:
    """What came of a request. Times are in seconds from the beginning; None: it never came."""

    kind: str
    phase: str
    sent_s: float
    ended_s: float = 0.0  # or given up
    status: int | None = None
    answered_s: float | None = None  # the status
    first_s: float | None = None  # the first event
    queued_ms: float | None = None
    error: str | None = None  # its message, or what became of the connection
    retry_after_s: int | None = None


def body(kind: Kind) -> bytes:
    return json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Tell a {kind.name} story."}],
            "max_tokens": kind.tokens,
            "stream": True,
        }
    ).encode()


async def run(port: int, due: Sequence[Arrival], patience_s: float) -> list[Outcome]:
    """All of them, each for at most `patience_s`."""
    began_s = time.perf_counter()

    def now_s() -> float:
        return time.perf_counter() - began_s

    async def ask(arrival: Arrival) -> Outcome:
        outcome = Outcome(arrival.kind.name, arrival.phase, now_s())
        headers = {"content-type": "application/json", "x-request-type": arrival.kind.name}
        try:
            async with (
                asyncio.timeout(patience_s),
                client.post(url, data=body(arrival.kind), headers=headers) as answer,
            ):
                await _read(answer, outcome)
        except TimeoutError:
            outcome.error = GAVE_UP
        except aiohttp.ClientError as error:
            outcome.error = repr(error)
        outcome.ended_s = now_s()
        return outcome

    async def _read(answer: aiohttp.ClientResponse, outcome: Outcome) -> None:
        outcome.status, outcome.answered_s = answer.status, now_s()
        if (queued := answer.headers.get("x-enginehouse-queue-ms")) is not None:
            outcome.queued_ms = float(queued)
        if answer.status != 200:
            outcome.retry_after_s = int(answer.headers.get("retry-after", 0)) or None
            outcome.error = (await answer.json())["error"]["message"]
        else:
            last = b""
            async for chunk in answer.content.iter_any():
                outcome.first_s = outcome.first_s or now_s()
                last = (last + chunk)[-32:]
            if not last.endswith(b"data: [DONE]\n\n"):
                outcome.error = f"the stream ends with {last!r}"

    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client, asyncio.TaskGroup() as group:
        tasks = []
        for arrival in due:
            await asyncio.sleep(max(0.0, arrival.at_s - now_s()))
            tasks.append(group.create_task(ask(arrival)))
    return [task.result() for task in tasks]
