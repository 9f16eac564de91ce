import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.capabilities import refuse_beyond
from deployments.engine import Capabilities, Endpoint, EngineRequest
from deployments.errors import ApiError

NONE = Capabilities(endpoints=("chat/completions", "completions"))
ALL = Capabilities(
    endpoints=("chat/completions",),
    tools=("auto", "forced"),
    json_schema=True,
    logprobs=True,
    n=True,
    parts=("text", "image", "audio"),
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}
DATA = "data:image/png;base64,AA=="


def with_part(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]


IMAGE = with_part({"type": "image_url", "image_url": {"url": DATA}})


def ask(can: Capabilities, endpoint: Endpoint = "chat/completions", **fields: Any) -> None:
    refuse_beyond(can, EngineRequest(endpoint, json.dumps(fields).encode(), "id"), "toy")


def test_a_field_whose_name_is_spelt_with_escapes_is_seen() -> None:
    with pytest.raises(ApiError, match="'n' is not supported"):
        refuse_beyond(NONE, EngineRequest("chat/completions", b'{"\\u006e": 2}', "id"), "toy")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": SCHEMA}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"n": 2}, "n"),
        ({"messages": IMAGE}, "messages[0].content[1]"),
        ({"input": with_part({"type": "input_image", "image_url": DATA})}, "input[0].content[1]"),
        ({"text": {"format": SCHEMA}}, "text.format"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tools"),
    ],
)
def test_each_field_is_refused_where_it_cannot_be_honoured(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask(NONE, **fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, "unsupported_parameter")
    assert param in error.message and "toy engine" in error.message
    ask(ALL, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [], "functions": None, "response_format": None, "logprobs": None, "n": None},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"text": {"format": {"type": "text"}}, "input": "a"},
        {"response_format": {"type": "text"}, "logprobs": False, "n": 1},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        # Of a wrong type: the engine says so, in its own schema's words.
        {"messages": 7, "n": "two", "response_format": "json"},
        {"messages": [7, {"content": [7, {"type": 7}, {"type": "unheard of"}]}]},
    ],
)
def test_what_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    ask(NONE, **fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"a"'])
def test_a_body_that_is_no_object_is_left_to_the_engine(body: bytes) -> None:
    refuse_beyond(NONE, EngineRequest("completions", body, "id"), "toy")


def test_tools_that_can_only_be_forced() -> None:
    forced = replace(NONE, tools=("forced",))
    ask(forced, tools=TOOLS, tool_choice="required")
    ask(forced, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}})
    ask(forced, tools=TOOLS, tool_choice={"type": "any"})
    cases: list[tuple[dict[str, Any], str]] = [({"tool_choice": "auto"}, "tool_choice"), ({}, "tools")]
    for fields, param in cases:
        with pytest.raises(ApiError) as caught:
            ask(forced, tools=TOOLS, **fields)
        assert caught.value.param == param


def test_an_endpoint_that_the_engine_lacks() -> None:
    with pytest.raises(ApiError) as caught:
        ask(NONE, "embeddings", input="a")
    error = caught.value
    assert (error.status, error.code) == (400, "unsupported_endpoint")
    for word in ("toy", "embeddings", "chat/completions, completions"):
        assert word in error.message


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url.url"),
        ({"type": "input_image", "image_url": "https://example.com/a.png"}, "image_url"),
        ({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, "source.url"),
        (
            {"type": "tool_result", "content": [{"type": "image", "source": {"url": "http://a"}}]},
            "content[0].source.url",
        ),
        ({"type": "unheard of", "url": "ftp://example.com"}, "url"),
    ],
)
@pytest.mark.parametrize("field", ["messages", "input"])
def test_no_request_has_this_server_fetch_something(field: str, part: dict[str, Any], where: str) -> None:
    request = json.dumps({field: with_part(part)}).encode()
    with pytest.raises(ApiError) as caught:
        refuse_beyond(ALL, EngineRequest("chat/completions", request, "id"), "toy")
    assert (caught.value.param, caught.value.code) == (f"{field}[0].content[1].{where}", "unsupported_url")
