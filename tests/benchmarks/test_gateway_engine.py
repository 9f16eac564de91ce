"""What every contestant's engine says, and when."""

import json
import time
from typing import Any

import pytest

from benchmarks.gateway import engine
from benchmarks.gateway.answers import Ask
from benchmarks.gateway.engine import Pace, Work
from tests.benchmarks.gateway_samples import STREAM, WHOLE, right


def documents(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n")[:-2]]


@pytest.mark.parametrize("pace", [Pace(), Pace(3, 0.5, 20), Pace(128, 10)])
def test_the_settings_come_with_the_prompt(pace: Pace) -> None:
    ask = Ask(pace, 300, stream=True)
    assert engine.work_of(json.loads(ask.body())) == Work(pace, 300, stream=True, usage=True)


def test_usage_is_told_where_it_is_asked_for() -> None:
    body = {"messages": [{"role": "user", "content": STREAM.prompt}], "stream": True}
    assert not engine.work_of(body).usage
    assert engine.work_of(body | {"stream_options": {"include_usage": True}}).usage
    assert not engine.work_of(body | {"stream_options": None}).usage


def test_a_prompt_without_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt begins with 'chunks=64"):
        engine.work("What is the capital of France?", stream=False, usage=False)


async def test_a_stream_has_a_role_the_content_an_end_and_the_usage() -> None:
    role, *content, finish, usage = documents(await right(STREAM))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in content] == engine.pieces(12)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 200, "completion_tokens": 12, "total_tokens": 212}


async def test_without_usage_there_is_no_such_event() -> None:
    events = [event async for event in engine.events(Work(Pace(2), 100, stream=True, usage=False))]
    assert len(events) == 1 + 2 + 1 + 1
    assert events[-1] == b"data: [DONE]\n\n"


async def test_a_whole_answer_says_the_same() -> None:
    document = json.loads(await right(WHOLE))
    assert document["choices"][0]["message"]["content"] == "".join(engine.pieces(12))
    assert document["usage"]["total_tokens"] == 212


def test_the_content_is_what_careless_code_breaks() -> None:
    text = "".join(engine.pieces(64))
    assert all(part in text for part in ("\n\n", '"', "\\", "é", "漢", "\U0001f680", " data: ", "\u2028"))
    assert len(engine.pieces(64)) == 64
    assert all(engine.pieces(64))


async def test_a_late_reader_delays_no_later_event() -> None:
    """Deadlines are absolute: a pause of several intervals is made up for."""
    began_s, arrived_s = time.monotonic(), list[float]()
    async for _ in engine.events(Work(Pace(10, interval_ms=20, ttft_ms=10), 100, stream=True, usage=False)):
        if len(arrived_s) == 2:
            time.sleep(0.1)  # noqa: ASYNC251  # as a loop that others keep busy
        arrived_s.append(time.monotonic() - began_s)
    assert arrived_s[0] >= 0.01
    assert 0.19 <= arrived_s[-1] < 0.28


def test_how_long_a_whole_answer_takes() -> None:
    assert Pace(11, interval_ms=10, ttft_ms=50).whole_s == pytest.approx(0.15)
