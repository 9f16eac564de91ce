"""A request's bytes, read once."""

import json
from typing import Any

import pytest

from app.routing.request import MAX_VALUES, MOST_TOKENS, Request, conversation_of, opening, read_request
from deployments.engine import Endpoint
from deployments.errors import ApiError


def read(endpoint: Endpoint = "chat/completions", **fields: Any) -> Request:
    return read_request(endpoint, json.dumps({"model": "m", **fields}).encode())


def message(text: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as raised:
        read_request("chat/completions", body)
    assert (raised.value.status, raised.value.type) == (400, "invalid_request_error")
    return raised.value


@pytest.mark.parametrize(
    ("fields", "stream"),
    [(b"", False), (b', "stream": true', True), (b', "stream": false', False), (b', "stream": null', False)],
)
def test_model_and_stream_are_read(fields: bytes, stream: bool) -> None:
    request = read_request("chat/completions", b'{"model": "org/name"%s}' % fields)
    assert (request.model, request.stream) == ("org/name", stream)


def test_what_is_not_for_routing_is_not_judged() -> None:
    odd: dict[str, Any] = {
        "messages": {},
        "tempreature": [None],
        "max_tokens": "x",
        "n": {},
        "metadata": 3,
        "prompt": {"a": 1},
    }
    request = read(**odd)
    assert (request.messages, request.prompt_tokens, request.max_tokens, request.choices) == (0, 0, None, 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "EOF while parsing a value at line 1 column 0."),
        (b'{"model": "m"', "EOF while parsing an object at line 1 column 13."),
        (b"{'model': 'm'}", "key must be a string at line 1 column 2."),
        (b'{"model": "m"} {}', "trailing characters at line 1 column 16."),
        (b'{"model": "\xff"}', "invalid unicode code point at line 1 column 12."),
        (b'{"model": "\\ud800"}', "unexpected end of hex escape at line 1 column 18."),
        (b"[" * 10_000, "recursion limit exceeded at line 1 column 202."),
    ],
)
def test_what_is_not_json(body: bytes, message: str) -> None:
    error = refusal(body)
    assert error.message == f"The request body is not JSON: {message}"
    assert (error.param, error.code) == (None, None)


def test_more_values_than_anybody_needs() -> None:
    """Ten million of them, in 20 MB, are gigabytes here, and seconds in which no other client is answered."""
    most = b'{"model": "m", "prompt": [' + b"1," * (MAX_VALUES - 2) + b"1]}"
    assert read_request("completions", most).prompt_tokens == MAX_VALUES - 1
    error = refusal(most.replace(b"[", b"[1,"))
    assert (error.param, error.code) == (None, "too_many_values")


@pytest.mark.parametrize("body", [b"[]", b"null", b'"model"', b"5", b'[{"model": "m"}]'])
def test_json_that_is_no_object(body: bytes) -> None:
    error = refusal(body)
    assert error.message == "Invalid value: Input should be an object."
    assert (error.param, error.code) == (None, "invalid_value")


def test_the_model_is_required() -> None:
    error = refusal(b'{"messages": []}')
    assert error.message == "Missing required parameter: 'model'."
    assert (error.param, error.code) == ("model", "missing_parameter")


@pytest.mark.parametrize("value", [b"5", b"null", b"true", b'["m"]', b"{}"])
def test_the_model_is_a_string(value: bytes) -> None:
    error = refusal(b'{"model": %s}' % value)
    assert error.message == "Invalid value for 'model': Input should be a valid string."
    assert (error.param, error.code) == ("model", "invalid_value")


@pytest.mark.parametrize("value", [b'"true"', b"1", b"0", b"[]", b'""'])
def test_stream_is_a_boolean(value: bytes) -> None:
    error = refusal(b'{"model": "m", "stream": %s}' % value)
    assert error.message == "Invalid value for 'stream': Input should be a valid boolean."
    assert (error.param, error.code) == ("stream", "invalid_value")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 0),
        ({"prompt": "a" * 8}, 2),
        ({"prompt": "a" * 9}, 3),
        ({"prompt": ["a" * 4, "b" * 4]}, 2),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"input": ["a" * 4, [1, 2]]}, 3),
        ({"messages": [message("a" * 4), message("b" * 4, "assistant")]}, 2),
        ({"messages": [message([{"type": "text", "text": "a" * 4}, {"type": "image_url", "image_url": "x" * 99}])]}, 1),
        ({"messages": [message(None)], "system": "a" * 4}, 1),
        ({"system": [{"type": "text", "text": "a" * 4}]}, 1),
        ({"instructions": "a" * 4, "input": [message([{"type": "input_text", "text": "b" * 4}])]}, 2),
        ({"query": "a" * 4, "documents": ["b" * 4, {"text": "c" * 4}]}, 3),
    ],
)
def test_the_tokens_of_a_prompt_are_estimated(fields: dict[str, Any], tokens: int) -> None:
    assert read(**fields).prompt_tokens == tokens


def test_characters_a_token_are_a_setting() -> None:
    body = json.dumps({"model": "m", "prompt": "a" * 10}).encode()
    assert [read_request("completions", body, each).prompt_tokens for each in (1.0, 2.5, 100.0)] == [10, 4, 1]


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_output_tokens": 9}, 9),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 1.5}, None),
        ({"max_tokens": 10**4299}, MOST_TOKENS),  # Python writes no number that is longer than this times ten
    ],
)
def test_most_tokens_of_an_answer(fields: dict[str, Any], most: int | None) -> None:
    assert read(**fields).max_tokens == most


def test_what_a_request_needs() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    image = message([{"type": "image_url", "image_url": {"url": "data:,"}}])
    wanted = {"type": "json_object"}
    everything = read(tools=[tool], response_format=wanted, logprobs=True, n=2, messages=[image])
    assert everything.needs == {"tools", "json_schema", "logprobs", "n", "image"}
    assert read(tools=[tool], tool_choice="required").needs == {"forced_tools"}
    assert read(tools=[], n=1, messages=[message("hi")]).needs == frozenset()


def test_choices_are_counted() -> None:
    assert [read(n=n).choices for n in (1, 3, 0, "2", 1000)] == [1, 3, 1, 1, 1]


def test_how_a_prompt_begins() -> None:
    request = read(messages=[message("abc", "system"), message("defgh")])
    assert opening(request.document, 100) is None
    whole = opening(request.document, 8)
    assert whole == opening(read(messages=[message("abc", "system"), message("defgh, and on")]).document, 8)
    assert whole != opening(read(messages=[message("abcd", "system"), message("efgh")]).document, 8)
    assert opening(read(prompt=[1, 23, 4]).document, 4) == opening(read(prompt=[1, 23, 4, 5]).document, 4)


def conversation(header: str | None = None, **fields: Any) -> str:
    return conversation_of(read(**fields).document, header)


def test_a_conversation_is_known_by_its_name_or_by_how_it_begins() -> None:
    first = [message("be brief", "system"), message("hi")]
    later = [*first, message("hello", "assistant"), message("and now?")]
    assert conversation(messages=first) == conversation(messages=later)
    assert conversation(messages=first) != conversation(messages=[first[0], message("ho")])
    assert conversation(messages=first, system="x") != conversation(messages=first)
    assert conversation("c1", messages=first) == conversation("c1", messages=[message("else")])
    named: list[dict[str, Any]] = [{"metadata": {"conversation_id": "c1"}}, {"prompt_cache_key": "c1"}]
    assert {conversation(**each) for each in named} == {conversation("c1")}
    assert conversation(prompt="a") != conversation(prompt="b")
    assert conversation(messages=[]) == conversation(messages=[])
