"""What Triton's models are asked, and what is read of their answers."""

from typing import Any

import pytest

from deployments.openai_layer.tokens import Guide, Sampling
from deployments.triton_dialects import (
    REQUESTS,
    Text,
    error,
    finish_of,
    message_of,
    missing_inputs,
    penalties_of,
    stop,
    tokens_of,
)
from tests.fakes.triton import INPUTS, NEEDED

DIALECTS = pytest.mark.parametrize("dialect", ["ensemble", "llmapi"])


def body_of(dialect: Any, **fields: Any) -> dict[str, Any]:
    return REQUESTS[dialect]("Hi", Sampling(max_tokens=5, **fields))


@DIALECTS
def test_no_model_is_asked_for_what_it_has_not(dialect: str) -> None:
    guide = Guide("json_schema", "{}") if dialect == "ensemble" else None
    for temperature in (0.0, 0.7):
        body = body_of(dialect, temperature=temperature, frequency_penalty=1.0, presence_penalty=1.0, guide=guide)
        assert NEEDED[dialect] <= body.keys() <= INPUTS[dialect].keys()


@DIALECTS
def test_temperature_0_is_greedy_and_no_other_is(dialect: str) -> None:
    prefix = "" if dialect == "ensemble" else "sampling_param_"
    greedy, sampled = body_of(dialect, temperature=0.0), body_of(dialect, temperature=0.7, top_p=0.9)
    assert greedy[f"{prefix}top_k"] == 1 and f"{prefix}temperature" not in greedy
    assert (sampled[f"{prefix}temperature"], sampled[f"{prefix}top_p"]) == (0.7, 0.9)
    assert f"{prefix}top_k" not in sampled


@DIALECTS
def test_seeds_are_of_64_bits_and_differ_where_none_is_said(dialect: str) -> None:
    name = "seed" if dialect == "ensemble" else "sampling_param_seed"
    assert (body_of(dialect, seed=7)[name], body_of(dialect, seed=-1)[name]) == (7, 2**64 - 1)
    assert body_of(dialect)[name] != body_of(dialect)[name]


def test_what_stops_a_request() -> None:
    assert stop("llmapi") == {"text_input": "", "stop": True}
    step = stop("ensemble")
    assert step.pop("stop") is True and step.keys() == NEEDED["tensorrt_llm"]


@DIALECTS
def test_inputs_that_are_missing(dialect: Any) -> None:
    inputs = frozenset(INPUTS[dialect])
    assert missing_inputs(dialect, inputs, guided=dialect == "ensemble") == []
    for name in missing_inputs(dialect, frozenset(), guided=False):
        assert missing_inputs(dialect, inputs - {name}, guided=False) == [name]
    assert missing_inputs(dialect, inputs - {"return_num_output_tokens"}, guided=False) == []


def test_a_guide_needs_inputs_only_where_it_is_switched_on() -> None:
    inputs = frozenset(INPUTS["ensemble"]) - {"guided_decoding_guide_type", "guided_decoding_guide"}
    assert missing_inputs("ensemble", inputs, guided=False) == []
    assert missing_inputs("ensemble", inputs, guided=True) == ["guided_decoding_guide", "guided_decoding_guide_type"]


def test_penalties_that_a_model_takes() -> None:
    assert penalties_of("ensemble", frozenset(INPUTS["ensemble"])) == ("frequency_penalty", "presence_penalty")
    assert penalties_of("llmapi", frozenset({"sampling_param_presence_penalty"})) == ("presence_penalty",)
    assert penalties_of("llmapi", frozenset({"presence_penalty"})) == ()


def test_ends_and_counts() -> None:
    assert [finish_of({"finish_reason": told}) for told in ("None", "", "stop", "length")] == [
        None,
        None,
        "stop",
        "length",
    ]
    assert finish_of({}) is None
    with pytest.raises(RuntimeError, match="timeout"):
        finish_of({"finish_reason": "timeout"})
    assert [tokens_of(event) for event in ({}, {"num_output_tokens": 0}, {"num_output_tokens": [1, 2]})] == [
        None,
        0,
        None,
    ]


@pytest.mark.parametrize("accumulates", [False, True])
def test_characters_are_held_back_until_they_are_whole(accumulates: bool) -> None:
    text = Text(accumulates)
    events = ["a", "a\ufffd", "aé", "aé!"] if accumulates else ["a", "\ufffd", "", "!"]
    found = [text.feed({"text_output": event}) for event in events]
    assert found == (["a", "", "é", "!"] if accumulates else ["a", "", "", "\ufffd!"])
    assert text.flush() == ""


def test_what_never_becomes_whole_is_shown_at_the_end() -> None:
    text = Text(accumulates=True)
    assert [text.feed({"text_output": event}) for event in ("a", "a\ufffd")] == ["a", ""]
    assert (text.flush(), text.whole) == ("\ufffd", "a\ufffd")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "no"}', "no"),
        (b'data: {"error": "no"}\n\n', "no"),
        (b"<html>Bad Gateway</html>", "Bad Gateway"),
        (b"[]", "[]"),
        (b"", "it didn't say why"),
    ],
    ids=str,
)
def test_what_an_error_says(body: bytes, message: str) -> None:
    assert message_of(body) == message


@pytest.mark.parametrize(
    ("status", "message", "answered", "code"),
    [
        (500, "Executor failed", 500, "upstream_error"),
        (503, "Exceeds maximum queue size", 503, "upstream_error"),
        (404, "Request for unknown model", 502, "upstream_error"),
        (501, "not supported", 400, "invalid_value"),
        (400, "Unable to parse", 400, "invalid_value"),
        (500, "Prompt length (9) exceeds maximum input length (8)", 400, "context_length_exceeded"),
    ],
)
def test_errors_as_openai_s(status: int, message: str, answered: int, code: str) -> None:
    found = error(status, message)
    assert (found.status, found.code) == (answered, code)
    assert message in found.message
    assert found.type == ("server_error" if answered >= 500 else "invalid_request_error")


def test_of_a_traceback_a_client_sees_the_last_line() -> None:
    traceback = 'Traceback (most recent call last):\n  File "/models/1/model.py", line 7\nValueError: max_tokens > 0\n'
    assert error(500, traceback).message == "The Triton server failed: ValueError: max_tokens > 0"
    assert len(error(400, "x" * 10_000).message) < 300
