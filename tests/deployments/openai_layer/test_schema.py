import json
from typing import Any

import pytest

from deployments.errors import ApiError
from deployments.openai_layer.schema import (
    MAX_CHOICES,
    MAX_STOP_STRINGS,
    MAX_SUBSCHEMAS,
    MAX_TOP_LOGPROBS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from deployments.openai_layer.tokens import Guide

ENGINE = "scripted"
NAN, INFINITY = float("nan"), float("inf")
USER = {"role": "user", "content": "Hello"}
REQUIRED: dict[type[GenerationRequest], dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [USER]},
    CompletionRequest: {"model": "m", "prompt": "Hello"},
}
BOTH = pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest])
BIG = "9" * 4300  # the longest number that Python reads


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps(REQUIRED[ChatRequest] | fields).encode(), ENGINE)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.parse(json.dumps(REQUIRED[CompletionRequest] | fields).encode(), ENGINE)


def parse(schema: type[GenerationRequest], **fields: Any) -> GenerationRequest:
    return schema.parse(json.dumps(REQUIRED[schema] | fields).encode(), ENGINE)


def refused(schema: type[GenerationRequest], body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        schema.parse(body, ENGINE)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def refused_with(schema: type[GenerationRequest], **fields: Any) -> ApiError:
    return refused(schema, json.dumps(REQUIRED[schema] | fields).encode())


def body_with(schema: type[GenerationRequest], raw: bytes) -> bytes:
    """A good request's JSON with `raw` JSON text as one more member."""
    return json.dumps(REQUIRED[schema]).encode()[:-1] + b"," + raw + b"}"


ACCEPTED: list[tuple[str, Any]] = [
    ("model", ""),
    ("max_tokens", 1),
    ("max_tokens", 2**63 - 1),
    ("temperature", 0),
    ("temperature", 0.5),
    ("temperature", 2),
    ("top_p", 1e-9),
    ("top_p", 1),
    ("seed", -(2**63)),
    ("seed", 2**63 - 1),
    ("n", 1),
    ("n", MAX_CHOICES),
    ("stream", True),
    ("stream", False),
    ("user", "u"),
    ("metadata", {}),
    ("metadata", {"Any key": "value"}),
]
REFUSED: list[tuple[str, Any]] = [
    ("model", None),
    ("model", 1),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.0),
    ("max_tokens", "1"),
    ("max_tokens", True),
    ("max_tokens", 2**63),
    ("temperature", -0.001),
    ("temperature", 2.001),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", [1]),
    ("temperature", NAN),
    ("temperature", INFINITY),
    ("temperature", -INFINITY),
    ("top_p", 0),
    ("top_p", 1.001),
    ("top_p", "0.5"),
    ("top_p", NAN),
    ("top_p", INFINITY),
    ("seed", -(2**63) - 1),
    ("seed", 2**63),
    ("seed", 0.0),
    ("seed", "7"),
    ("seed", NAN),
    ("n", 0),
    ("n", MAX_CHOICES + 1),
    ("n", "2"),
    ("n", True),
    ("stop", 1),
    ("stop", {}),
    ("stop", ["a", 1]),
    ("stop", ["a", None]),
    ("stop", ["x"] * (MAX_STOP_STRINGS + 1)),
    ("stream", 1),
    ("stream", "true"),
    ("stream_options", True),
    ("stream_options", []),
    ("user", 1),
    ("metadata", "a"),
    ("metadata", []),
]
CHAT_ACCEPTED: list[tuple[str, Any]] = [
    ("max_completion_tokens", 1),
    ("max_completion_tokens", 2**63 - 1),
    ("logprobs", False),
    ("logprobs", True),
    ("top_logprobs", 0),
    ("parallel_tool_calls", True),
    ("service_tier", "auto"),
    ("safety_identifier", "s"),
    ("prompt_cache_key", "k"),
]
CHAT_REFUSED: list[tuple[str, Any]] = [
    ("max_completion_tokens", 0),
    ("max_completion_tokens", "5"),
    ("max_completion_tokens", 2**63),
    ("logprobs", 1),
    ("logprobs", "true"),
    ("top_logprobs", -1),
    ("top_logprobs", MAX_TOP_LOGPROBS + 1),
    ("top_logprobs", "5"),
    ("top_logprobs", 5.0),
    ("parallel_tool_calls", "no"),
    ("service_tier", 1),
    ("safety_identifier", 1),
    ("prompt_cache_key", 1),
    ("messages", []),
    ("messages", {}),
    ("messages", "Hello"),
    ("messages", None),
]
COMPLETION_ACCEPTED: list[tuple[str, Any]] = [
    ("echo", True),
    ("echo", False),
    ("logprobs", 0),
    ("logprobs", MAX_TOP_LOGPROBS),
]
COMPLETION_REFUSED: list[tuple[str, Any]] = [
    ("echo", 1),
    ("echo", "yes"),
    ("logprobs", True),
    ("logprobs", -1),
    ("logprobs", MAX_TOP_LOGPROBS + 1),
    ("logprobs", "1"),
]


def every(
    of_both: list[tuple[str, Any]], of_chat: list[tuple[str, Any]], of_completions: list[tuple[str, Any]]
) -> list[Any]:
    """Each case with its schema, under a name that says both."""
    schemas = [(ChatRequest, of_both + of_chat), (CompletionRequest, of_both + of_completions)]
    return [
        pytest.param(schema, field, value, id=f"{schema.__name__}-{field}-{str(value)[:30]}")
        for schema, cases in schemas
        for field, value in cases
    ]


@pytest.mark.parametrize(("schema", "field", "value"), every(ACCEPTED, CHAT_ACCEPTED, COMPLETION_ACCEPTED))
def test_accepted(schema: type[GenerationRequest], field: str, value: Any) -> None:
    assert getattr(parse(schema, **{field: value}), field) == value


@pytest.mark.parametrize(("schema", "field", "value"), every(REFUSED, CHAT_REFUSED, COMPLETION_REFUSED))
def test_refused_with_the_field_s_name(schema: type[GenerationRequest], field: str, value: Any) -> None:
    error = refused_with(schema, **{field: value})
    assert (error.param, error.code) == (field, "invalid_value")
    assert error.message.startswith(f"Invalid value for '{field}': ")


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (schema, field)
        for schema, required in REQUIRED.items()
        for field in schema.model_fields
        if field not in required
    ],
)
def test_null_is_as_good_as_nothing(schema: type[GenerationRequest], field: str) -> None:
    assert parse(schema, **{field: None}) == parse(schema)


@BOTH
@pytest.mark.parametrize("field", ["temperature", "top_p"])
@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
def test_only_numbers_are_numbers(schema: type[GenerationRequest], field: str, value: float) -> None:
    error = refused_with(schema, **{field: value})
    assert error.message == f"Invalid value for '{field}': Input should be a finite number."


@BOTH
def test_a_required_field_is_missed_by_name(schema: type[GenerationRequest]) -> None:
    for field in REQUIRED[schema]:
        rest = {name: value for name, value in REQUIRED[schema].items() if name != field}
        error = refused(schema, json.dumps(rest).encode())
        assert (error.param, error.code) == (field, "missing_parameter")


@BOTH
def test_an_unknown_field_is_refused_with_the_nearest_name(schema: type[GenerationRequest]) -> None:
    error = refused_with(schema, temprature=1)
    assert (error.param, error.code) == ("temprature", "unknown_parameter")
    assert error.message == "Unknown parameter 'temprature'; did you mean 'temperature'?"


@BOTH
@pytest.mark.parametrize("field", ["maxTokens", "top-p", "str"])
def test_an_unknown_field_is_refused_however_it_is_spelt(schema: type[GenerationRequest], field: str) -> None:
    error = refused_with(schema, **{field: 1})
    assert (error.param, error.code) == (field, "unknown_parameter")


@pytest.mark.parametrize(("schema", "foreign"), [(ChatRequest, "prompt"), (CompletionRequest, "messages")])
def test_the_other_endpoint_s_fields_are_unknown(schema: type[GenerationRequest], foreign: str) -> None:
    assert refused_with(schema, **{foreign: None}).code == "unknown_parameter"


# What an engine without penalties, tools and formats takes, because it asks for nothing, and what it refuses.
NEUTRAL: list[tuple[str, list[Any]]] = [
    ("frequency_penalty", [None, 0, 0.0]),
    ("presence_penalty", [None, 0, 0.0]),
    ("logit_bias", [None, {}]),
]
CHAT_NEUTRAL: list[tuple[str, list[Any]]] = [
    ("tools", [None, []]),
    ("tool_choice", [None, "none", "auto"]),
    ("functions", [None, []]),
    ("function_call", [None, "none", "auto"]),
    ("response_format", [None, {"type": "text"}]),
    ("modalities", [None, ["text"]]),
    ("audio", [None]),
    ("prediction", [None]),
    ("reasoning_effort", [None, "none"]),
    ("web_search_options", [None]),
    ("store", [None, False]),
]
COMPLETION_NEUTRAL: list[tuple[str, list[Any]]] = [("best_of", [None, 1]), ("suffix", [None, ""])]


def nested_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"allOf": [schema]}
    return schema


SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
UNSUPPORTED: list[tuple[str, list[Any]]] = [
    ("frequency_penalty", [0.1, -2]),
    ("presence_penalty", [0.1, 2]),
    ("logit_bias", [{"50256": -100}, [], 0]),
]
CHAT_UNSUPPORTED: list[tuple[str, list[Any]]] = [
    ("tools", [[{"type": "function", "function": {"name": "f"}}], {}]),
    ("tool_choice", ["required", {"type": "function", "function": {"name": "f"}}]),
    ("functions", [[{"name": "f"}]]),
    ("function_call", [{"name": "f"}]),
    ("response_format", [SCHEMA, {"type": "json_object"}]),
    ("modalities", [["text", "audio"], ["audio"], []]),
    ("audio", [{"voice": "alloy", "format": "wav"}, {}, False]),
    ("prediction", [{"type": "content", "content": "x"}]),
    ("reasoning_effort", ["low", "medium"]),
    ("web_search_options", [{}]),
    ("store", [True, "false"]),
]
COMPLETION_UNSUPPORTED: list[tuple[str, list[Any]]] = [("best_of", [2, 0, "1"]), ("suffix", ["end", " "])]


def flat(cases: list[tuple[str, list[Any]]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in cases for value in values]


@pytest.mark.parametrize(
    ("schema", "field", "value"), every(flat(NEUTRAL), flat(CHAT_NEUTRAL), flat(COMPLETION_NEUTRAL))
)
def test_an_unsupported_field_may_ask_for_nothing(schema: type[GenerationRequest], field: str, value: Any) -> None:
    parse(schema, **{field: value})


@pytest.mark.parametrize(
    ("schema", "field", "value"), every(flat(UNSUPPORTED), flat(CHAT_UNSUPPORTED), flat(COMPLETION_UNSUPPORTED))
)
def test_an_unsupported_field_is_refused_with_the_engine_s_name(
    schema: type[GenerationRequest], field: str, value: Any
) -> None:
    error = refused_with(schema, **{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert error.message == f"'{field}' is not supported by the scripted engine."


@BOTH
def test_every_unsupported_field_is_tried_here(schema: type[GenerationRequest]) -> None:
    own_neutral, own_unsupported = (
        (CHAT_NEUTRAL, CHAT_UNSUPPORTED) if schema is ChatRequest else (COMPLETION_NEUTRAL, COMPLETION_UNSUPPORTED)
    )
    assert dict(NEUTRAL + own_neutral).keys() == schema.without_effect.keys()
    assert dict(UNSUPPORTED + own_unsupported).keys() == schema.without_effect.keys()
    # A field of type Any that without_effect forgets would be ignored.
    untyped = {name for name, field in schema.model_fields.items() if field.annotation is Any}
    assert untyped == schema.without_effect.keys() - OPTIONAL


OPTIONAL = {"frequency_penalty", "presence_penalty", "response_format"}


@BOTH
@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty"])
def test_penalties_for_an_engine_that_has_them(schema: type[GenerationRequest], field: str) -> None:
    for value in (-2, 0, 1.5, 2, None):
        body = json.dumps(REQUIRED[schema] | {field: value}).encode()
        assert getattr(schema.parse(body, ENGINE, OPTIONAL), field) == value
    wrong: list[Any] = [-2.1, 2.01, "0", [], True]
    for bad in wrong:
        assert refused_with(schema, **{field: bad}).param == field


@pytest.mark.parametrize(
    ("wanted", "guide"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Guide("json_object")),
        (SCHEMA, Guide("json_schema", "{}")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}},
            Guide("json_schema", '{"type": "object"}'),
        ),
    ],
    ids=str,
)
def test_what_an_answer_is_held_to(wanted: Any, guide: Guide | None) -> None:
    body = json.dumps(REQUIRED[ChatRequest] | {"response_format": wanted}).encode()
    assert ChatRequest.parse(body, ENGINE, OPTIONAL).guide == guide


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {},
        {"type": "regex"},
        {"type": "text", "more": 1},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"description": "x" * 120_000}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"allOf": [{}] * MAX_SUBSCHEMAS}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"allOf": [True] * MAX_SUBSCHEMAS}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": nested_schema(90)}},
        {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
    ],
    ids=lambda value: str(value)[:80],
)
def test_a_wrong_response_format(wrong: Any) -> None:
    body = json.dumps(REQUIRED[ChatRequest] | {"response_format": wrong}).encode()
    with pytest.raises(ApiError) as caught:
        ChatRequest.parse(body, ENGINE, OPTIONAL)
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith("response_format")


@BOTH
@pytest.mark.parametrize(
    "raw",
    [
        b'"user": "\\ud800"',
        b'"user": "\\udc00"',
        b'"user": "\\ude00\\ud83d"',
        b'"user": "\xed\xa0\x80"',
        b'"user": "\xff"',
        b'"user": "\xc3',
        b'"\xff": 1',
        b'"user": "a\x00"',
        b'"user": ' + b"[" * 100_000,
        b'"metadata": ' + b'{"a":' * 100_000,
        b'"logit_bias": ' + b"[" * 100_000 + b"]" * 100_000,
        b'"seed": ' + b"9" * 100_000,
        b'"logit_bias": ' + b"9" * 100_000,
        b'"user": "u"}, {',
        b"",
    ],
    ids=lambda raw: raw.decode("latin-1")[:24],
)
def test_what_is_no_json_is_a_400_without_param(schema: type[GenerationRequest], raw: bytes) -> None:
    error = refused(schema, body_with(schema, raw))
    assert error.param is None
    assert error.message.startswith("The request body is not JSON: ")


@BOTH
@pytest.mark.parametrize("body", [b"", b" ", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"{'model': 1}"])
def test_a_body_that_is_no_json_at_all(schema: type[GenerationRequest], body: bytes) -> None:
    assert refused(schema, body).message.startswith("The request body is not JSON: ")


@BOTH
@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"{}"', b"NaN"])
def test_a_body_that_is_no_object(schema: type[GenerationRequest], body: bytes) -> None:
    error = refused(schema, body)
    assert (error.param, error.message) == (None, "Invalid value: Input should be an object.")


@BOTH
@pytest.mark.parametrize("field", ["max_tokens", "temperature", "top_p", "seed", "n"])
@pytest.mark.parametrize("number", [BIG, "-" + BIG[1:], "1e999", "1" + "0" * 400])
def test_a_huge_number_is_the_field_s_fault(schema: type[GenerationRequest], field: str, number: str) -> None:
    error = refused(schema, body_with(schema, f'"{field}": {number}'.encode()))
    assert (error.param, error.code) == (field, "invalid_value")


@BOTH
def test_escaped_surrogate_pairs_and_control_characters_are_text(schema: type[GenerationRequest]) -> None:
    request = schema.parse(body_with(schema, b'"user": "\\ud83d\\ude00\\u0000"'), ENGINE)
    assert request.user == "😀\0"


@BOTH
def test_unsupported_nesting_within_the_parser_s_limit(schema: type[GenerationRequest]) -> None:
    error = refused(schema, body_with(schema, b'"logit_bias": ' + b"[" * 150 + b"]" * 150))
    assert (error.param, error.code) == ("logit_bias", "unsupported_parameter")


@BOTH
@pytest.mark.parametrize(
    ("stop", "strings"),
    [
        ("END", ["END"]),
        (["END"], ["END"]),
        (["a", "b"], ["a", "b"]),
        ("", []),
        ([], []),
        (["", "a", ""], ["a"]),
        (None, []),
        (["x"] * MAX_STOP_STRINGS, ["x"] * MAX_STOP_STRINGS),
    ],
)
def test_stop_is_one_string_or_several(schema: type[GenerationRequest], stop: Any, strings: list[str]) -> None:
    assert parse(schema, stop=stop).stop == strings


@BOTH
@pytest.mark.parametrize("value", [1, None, ["a"]])
def test_a_bad_metadata_value_is_named(schema: type[GenerationRequest], value: Any) -> None:
    assert refused_with(schema, metadata={"run": value}).param == "metadata.run"


@BOTH
@pytest.mark.parametrize(
    ("options", "wanted"),
    [(None, False), ({}, False), ({"include_usage": None}, False), ({"include_usage": False}, False)]
    + [({"include_usage": True}, True)],
)
def test_the_usage_chunk_comes_only_when_asked_for(
    schema: type[GenerationRequest], options: dict[str, Any] | None, wanted: bool
) -> None:
    assert parse(schema, stream=True, stream_options=options).include_usage is wanted


@BOTH
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
def test_stream_options_need_a_stream(
    schema: type[GenerationRequest], stream: dict[str, Any], options: dict[str, Any]
) -> None:
    error = refused_with(schema, stream_options=options, **stream)
    assert (error.param, error.code) == ("stream_options", "invalid_value")
    assert error.message == "'stream_options' is only allowed when 'stream' is true."


@BOTH
@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"include_usage": 1}, "stream_options.include_usage", "invalid_value"),
        ({"include_usage": "true"}, "stream_options.include_usage", "invalid_value"),
        ({"usage": True}, "stream_options.usage", "unknown_parameter"),
    ],
)
def test_bad_stream_options_are_named(
    schema: type[GenerationRequest], options: dict[str, Any], param: str, code: str
) -> None:
    error = refused_with(schema, stream=True, stream_options=options)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_roles(role: str) -> None:
    message = chat(messages=[{"role": role, "content": "x", "name": "n"}]).messages[0]
    assert (message.role, message.content, message.name) == (role, "x", "n")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        ("Hello", "Hello"),
        ([], ""),
        ([{"type": "text", "text": "Hello"}], "Hello"),
        ([{"type": "text", "text": "Hel"}, {"type": "text", "text": ""}, {"type": "text", "text": "lo"}], "Hello"),
        ([{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}], "Hello"),
    ],
)
def test_content_is_a_string_or_text_parts(content: Any, text: str) -> None:
    assert chat(messages=[{"role": "user", "content": content}]).messages[0].content == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (1, "expected a string or an array of content parts."),
        ({"type": "text", "text": "x"}, "expected a string or an array of content parts."),
        (["x"], "content part 0 has no 'type'."),
        ([None], "content part 0 has no 'type'."),
        ([{"text": "x"}], "content part 0 has no 'type'."),
        ([{"type": 1}], "content part 0 has no 'type'."),
        ([{"type": "text"}], "content part 0 has no 'text' string."),
        ([{"type": "text", "text": None}], "content part 0 has no 'text' string."),
        (
            [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "content part 1 is of type 'image_url'; this engine takes only 'text'.",
        ),
    ],
)
def test_other_content_is_refused_with_the_message_s_index(content: Any, reason: str) -> None:
    error = refused_with(ChatRequest, messages=[USER, {"role": "user", "content": content}])
    assert (error.param, error.code) == ("messages[1].content", "invalid_value")
    assert error.message == f"Invalid value for 'messages[1].content': {reason}"


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"role": "user"}, "messages[1].content", "missing_parameter"),
        ({"role": "assistant", "content": None}, "messages[1].content", "missing_parameter"),
        ({"content": "x"}, "messages[1].role", "missing_parameter"),
        ({"role": "tool", "content": "x"}, "messages[1].role", "invalid_value"),
        ({"role": None, "content": "x"}, "messages[1].role", "invalid_value"),
        ({"role": "user", "content": "x", "name": 1}, "messages[1].name", "invalid_value"),
        ({"role": "user", "content": "x", "tool_calls": []}, "messages[1].tool_calls", "unknown_parameter"),
        ({"role": "user", "content": "x", "toolCalls": []}, "messages[1].toolCalls", "unknown_parameter"),
        ("x", "messages[1]", "invalid_value"),
        (None, "messages[1]", "invalid_value"),
    ],
)
def test_a_bad_message_is_named(message: Any, param: str, code: str) -> None:
    error = refused_with(ChatRequest, messages=[USER, message])
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": False}, {"logprobs": None}])
def test_top_logprobs_need_logprobs(logprobs: dict[str, Any]) -> None:
    error = refused_with(ChatRequest, top_logprobs=1, **logprobs)
    assert (error.param, error.code) == ("top_logprobs", "invalid_value")
    assert chat(top_logprobs=MAX_TOP_LOGPROBS, logprobs=True).top_logprobs == MAX_TOP_LOGPROBS


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hello", ["Hello"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([0], [[0]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [1]], ["a", [1]]),
        (["a"] * 256, ["a"] * 256),
        ([1] * 257, [[1] * 257]),
        ([int(BIG)], [[int(BIG)]]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_prompt_in_each_of_its_forms(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompt == prompts


@pytest.mark.parametrize(
    "prompt",
    [None, 1, True, {}, [], [[]], ["a", []], [1, "a"], [[1], 2], [[1, "a"]], [[[1]]], [-1], [[-1]], [True], [[False]]]
    + [[1.0], [None], ["a", None], ["a"] * 257],
    ids=lambda value: str(value)[:20],
)
def test_another_prompt_is_refused(prompt: Any) -> None:
    error = refused_with(CompletionRequest, prompt=prompt)
    assert (error.param, error.code) == ("prompt", "invalid_value")


def test_tools_that_must_not_be_called_ask_for_nothing() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}
    ChatRequest.parse(json.dumps({**body, "tool_choice": "none"}).encode(), "toy")
    with pytest.raises(ApiError, match="'tools' is not supported by the toy engine"):
        ChatRequest.parse(json.dumps({**body, "tool_choice": "auto"}).encode(), "toy")
