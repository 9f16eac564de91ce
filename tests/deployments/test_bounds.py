from types import SimpleNamespace
from typing import Any

import pytest

from deployments.bounds import check, check_tokens
from deployments.errors import ApiError

USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant"}]},
        {
            "n": 128,
            "max_tokens": 1,
            "temperature": 0,
            "top_p": 1,
            "seed": -(2**63),
            "top_logprobs": 20,
            "logprobs": True,
        },
        {"n": None, "temperature": None, "stream_options": None, "top_logprobs": 0, "unheard_of": 1},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"presence_penalty": -2, "frequency_penalty": 2.0, "temperature": 1.5},
    ],
)
def test_what_is_within(fields: dict[str, Any]) -> None:
    check(fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": 7}, "messages"),
        ({"messages": [USER, {"content": "a"}]}, "messages[1].role"),
        ({"messages": [USER, {"role": "user", "content": 7}]}, "messages[1].content"),
    ],
)
def test_what_is_beyond(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check(fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "a text"),
        ("prompt", ["texts", "too"]),
        ("prompt", [0, 99]),
        ("prompt", [[1], [2, 3]]),
        ("logit_bias", {"0": 1, "99": -100}),
        ("logit_bias", None),
        ("max_tokens", 1000),
    ],
)
def test_tokens_of_the_vocabulary(field: str, value: Any) -> None:
    check_tokens(SimpleNamespace(**{field: value}), 100)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", [1, 100]),
        ("prompt", [[1], [2, -1]]),
        ("input", [10**9]),
        ("tokens", [-1]),
        ("label_token_ids", [100]),
        ("logit_bias", {"100": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"a": 1}),
    ],
)
def test_tokens_outside_it(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_tokens(SimpleNamespace(**{field: value}), 100)
    assert (caught.value.status, caught.value.param) == (400, field)
