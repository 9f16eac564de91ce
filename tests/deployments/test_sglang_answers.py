import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from deployments.sglang_answers import has_broken_stops, put_right, with_offsets

DONE = "data: [DONE]\n\n"


def chunk(*choices: dict[str, Any]) -> str:
    return f"data: {json.dumps({'id': '1', 'choices': choices}, separators=(',', ':'))}\n\n"


def chat(content: str | None, finish: str | None = None, matched: Any = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": {"content": content}, "finish_reason": finish, "matched_stop": matched}


def completion(text: str, tokens: Sequence[str] = (), finish: str | None = None) -> dict[str, Any]:
    logprobs = {"tokens": list(tokens), "text_offset": [-1] * len(tokens)} if tokens else None
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish, "matched_stop": None}


async def made(*events: str) -> AsyncGenerator[str]:
    for event in events:
        yield event


async def choices_of(stops: Sequence[str], *events: str) -> list[dict[str, Any]]:
    found = [event async for event in put_right(made(*events, DONE), stops)]
    assert found[-1] == DONE
    return [choice for event in found[:-1] for choice in json.loads(event.removeprefix("data: "))["choices"]]


async def test_the_beginning_of_a_stop_string_is_not_sent() -> None:
    events = [chunk(chat("四五")), chunk(chat("六")), chunk(chat(None, "stop", "六七"))]
    found = await choices_of(["六七"], *events)
    assert [choice["delta"].get("content") for choice in found] == ["四五", None, None]
    assert found[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(("finish", "matched"), [("length", None), ("stop", 2)])
async def test_what_was_held_back_is_sent_where_the_answer_ends_otherwise(finish: str, matched: Any) -> None:
    found = await choices_of(["六七"], chunk(chat("四六")), chunk(chat(None, finish, matched)))
    assert [choice["delta"]["content"] for choice in found] == ["四", "六"]


async def test_choices_keep_apart() -> None:
    events = [chunk(chat("六")), chunk(chat("a", index=1)), chunk(chat("八")), chunk(chat(None, "length", index=1))]
    found = await choices_of(["六七"], *events)
    assert [(choice["index"], choice["delta"].get("content")) for choice in found] == [
        (0, None),
        (1, "a"),
        (0, "六八"),
        (1, None),
    ]


async def test_a_null_role_is_left_out_and_a_first_one_kept() -> None:
    call = [{"index": 0, "id": "call_1"}]
    first = {**chat(""), "delta": {"role": "assistant", "content": ""}}
    later = {**chat(None), "delta": {"role": None, "content": None, "tool_calls": call}}
    found = await choices_of([], chunk(first), chunk(later), chunk(chat(None, "tool_calls")))
    assert [choice["delta"] for choice in found] == [first["delta"], {"tool_calls": call}, {}]


async def test_offsets_go_on_over_a_stream() -> None:
    events = [chunk(completion("ab", ["a", "b"])), chunk(completion(" c", [" c"])), chunk(completion("", (), "stop"))]
    found = await choices_of([], *events)
    assert [choice["logprobs"] and choice["logprobs"]["text_offset"] for choice in found] == [[0, 1], [2], None]
    assert "".join(choice["text"] for choice in found) == "ab c"


async def test_other_events_pass() -> None:
    error = 'data: {"error": {"message": "no"}}\n\n'
    assert [event async for event in put_right(made(error, DONE), [])] == [error, DONE]


def test_offsets_of_a_whole_choice() -> None:
    whole = {"text": "ab c", "logprobs": {"tokens": ["ab", " c"], "text_offset": [-1, -1]}}
    assert with_offsets(whole)["logprobs"]["text_offset"] == [0, 2]
    assert with_offsets({"text": "a", "logprobs": None}) == {"text": "a", "logprobs": None}


def test_which_stop_strings_sglang_breaks() -> None:
    assert has_broken_stops(["a", "六"])
    assert not has_broken_stops(["a", "\n\n"]) and not has_broken_stops([])
