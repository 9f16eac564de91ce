"""Which type a request is of."""

import json
from typing import Any

import pytest

from app.routing.request import Request, read_request
from app.routing.request_type import TYPES, Seen, classify
from app.routing.settings import RequestType, RequestTypes
from deployments.engine import Endpoint
from deployments.errors import ApiError

TURN = {"role": "user", "content": "hi"}
LONG = "x" * 4 * 4096
SHARED = "x" * 4 * 512


def request(endpoint: Endpoint = "chat/completions", **fields: Any) -> Request:
    return read_request(endpoint, json.dumps({"model": "m", **fields}).encode())


def kind(asked: Request, said: str | None = None, *, seen: bool = False, **types: Any) -> tuple[RequestType, str]:
    return classify(asked, said, RequestTypes(**types), lambda _: seen)


@pytest.mark.parametrize("said", TYPES)
def test_a_request_says_its_type(said: RequestType) -> None:
    assert kind(request(), said) == (said, "header x-request-type")
    assert kind(request(metadata={"request_type": said})) == (said, "metadata.request_type")


def test_the_header_comes_before_the_field_and_the_field_before_the_tier() -> None:
    assert kind(request(metadata={"request_type": "chat"}, service_tier="flex"), "offline")[0] == "offline"
    assert kind(request(metadata={"request_type": "chat"}, service_tier="flex"))[0] == "chat"
    assert kind(request(service_tier="flex")) == ("batch", "service_tier flex")
    assert kind(request("embeddings", service_tier="auto"))[0] == "embedding"


def test_a_type_that_there_is_not() -> None:
    for asked, said, param in (
        (request(), "bulk", "x-request-type"),
        (request(metadata={"request_type": "bulk"}), None, "metadata.request_type"),
    ):
        with pytest.raises(ApiError) as caught:
            kind(asked, said)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert "no request type 'bulk'; there are: chat, multi_turn, batch, offline, embedding" in caught.value.message


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (request("embeddings", input=LONG), ("embedding", "endpoint embeddings")),
        (request("rerank", query="a"), ("embedding", "endpoint rerank")),
        (request(messages=[TURN] * 4, stream=True), ("chat", "streamed")),
        (request(messages=[TURN] * 4), ("chat", "short")),
        (request(messages=[TURN] * 5), ("multi_turn", "5 messages")),
        (request("completions", prompt=LONG[4:]), ("chat", "short")),
        (request("completions", prompt=LONG), ("multi_turn", "about 4096 prompt tokens")),
        (request(max_tokens=1023), ("chat", "short")),
        (request(max_tokens=1024), ("batch", "not streamed, 1024 tokens at most")),
        (request(max_tokens=1024, stream=True), ("chat", "streamed")),
        (request(messages=[TURN] * 5, max_tokens=1024), ("multi_turn", "5 messages")),
        (request(metadata={"request_type": 5}, service_tier="auto"), ("chat", "short")),
    ],
)
def test_the_shape_of_a_request(asked: Request, expected: tuple[RequestType, str]) -> None:
    assert kind(asked) == expected


def test_a_prefix_that_was_seen_makes_multi_turn() -> None:
    assert kind(request(prompt=SHARED), seen=True) == ("multi_turn", "a prefix seen before")
    assert kind(request(prompt=SHARED), seen=False)[0] == "chat"
    assert kind(request(prompt=SHARED[4:]), seen=True)[0] == "chat"


def test_thresholds_are_settings() -> None:
    assert kind(request(messages=[TURN] * 2), multi_turn_messages=2)[0] == "multi_turn"
    assert kind(request(prompt="x" * 40), multi_turn_prompt_tokens=10)[0] == "multi_turn"
    assert kind(request(prompt="x" * 64), seen=True, shared_prefix_tokens=16)[0] == "multi_turn"
    assert kind(request(max_tokens=10), batch_max_tokens=10)[0] == "batch"


def test_what_was_seen_is_remembered_up_to_a_bound() -> None:
    seen = Seen(most=2)
    assert [seen(text) for text in "abab"] == [False, False, True, True]
    assert [seen(text) for text in "cba"] == [False, True, False]  # c took the place of a, a that of c
    assert len(seen._digests) == 2


def test_requests_with_one_beginning_are_told_by_seen() -> None:
    seen, types = Seen(), RequestTypes()
    asked = [request(prompt=SHARED + tail) for tail in ("a", "b")]
    assert [classify(each, None, types, seen)[0] for each in asked] == ["chat", "multi_turn"]
