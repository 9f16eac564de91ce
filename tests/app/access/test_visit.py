"""A request of a key with limits: counted in once it is known what it asks, and settled when its answer has ended."""

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from app.access.keys import Key, Limits
from app.access.rates import Allowance
from app.access.visit import LimitedVisit, Visit, tokens_of
from app.routing.request import Request, read_request
from deployments.engine import Endpoint
from deployments.errors import ApiError

Message = MutableMapping[str, Any]
DEFAULT = 50
PROMPT = 3  # tokens of "0123456789", at four characters each


def request(endpoint: Endpoint = "completions", **fields: Any) -> Request:
    return read_request(endpoint, json.dumps({"model": "m", "prompt": "0123456789", **fields}).encode())


class Case:
    """A key's visits, on one clock."""

    def __init__(self, **limits: int) -> None:
        self.key = Key("ci", "ci", limits=Limits(**limits))
        self.now = 0
        self.allowance = Allowance(self.key, 0)
        self.sent: list[Message] = []

    def visit(self) -> LimitedVisit:
        return LimitedVisit(self.key, self.allowance, lambda: self.now)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def left(self) -> int:
        return int(self.allowance.headers(self.now)["x-ratelimit-remaining-tokens"])


async def answer(case: Case, visit: LimitedVisit, status: int, body: bytes) -> None:
    send = visit.listen(case.send)
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("endpoint", "fields", "tokens"),
    [
        ("completions", {"max_tokens": 20}, PROMPT + 20),
        ("completions", {"max_tokens": 20, "n": 3}, PROMPT + 60),
        ("completions", {"max_tokens": 0}, PROMPT),
        ("completions", {}, PROMPT + DEFAULT),
        ("responses", {"max_output_tokens": 8}, PROMPT + 8),
        ("embeddings", {"input": "01234567"}, PROMPT + 2),
        ("score", {}, PROMPT),
        ("rerank", {}, PROMPT),
        ("tokenize", {"max_tokens": 20}, 0),
        ("detokenize", {}, 0),
    ],
)
def test_what_a_request_may_take(endpoint: Endpoint, fields: dict[str, Any], tokens: int) -> None:
    assert tokens_of(request(endpoint, **fields), DEFAULT) == tokens


async def test_an_answer_settles_what_was_reserved() -> None:
    case = Case(tokens_per_minute=1000)
    visit = case.visit()
    headers = visit.enter(request(max_tokens=100), DEFAULT)
    assert headers["x-ratelimit-remaining-tokens"] == str(1000 - 103)
    await answer(case, visit, 200, b'{"usage": {"total_tokens": 42}}')
    assert (case.left, case.allowance.running) == (897, 1)
    visit.leave()
    assert (case.left, case.allowance.running) == (958, 0)
    visit.leave()
    assert (case.left, case.allowance.running) == (958, 0)


async def test_messages_pass_unchanged() -> None:
    case = Case(tokens_per_minute=1000)
    visit = case.visit()
    visit.enter(request(), DEFAULT)
    await answer(case, visit, 200, b"body")
    assert case.sent == [
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"body"},
    ]


async def test_an_error_gives_back_everything() -> None:
    case = Case(tokens_per_minute=1000)
    visit = case.visit()
    visit.enter(request(max_tokens=100), DEFAULT)
    await answer(case, visit, 503, b"{}")
    visit.leave()
    assert case.left == 1000


@pytest.mark.parametrize("begun", [False, True])
async def test_an_answer_that_tells_nothing_leaves_the_reservation(begun: bool) -> None:
    case = Case(tokens_per_minute=1000)
    visit = case.visit()
    visit.enter(request(max_tokens=100), DEFAULT)
    if begun:
        await answer(case, visit, 200, b"{}")
    visit.leave()
    assert (case.left, case.allowance.running) == (897, 0)


async def test_a_stream_is_counted_by_its_events() -> None:
    case = Case(tokens_per_minute=1000)
    visit = case.visit()
    visit.enter(request(max_tokens=100), DEFAULT)
    send = visit.listen(case.send)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(10):
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
    visit.leave()
    assert case.left == 1000 - PROMPT - 10


async def test_a_refusal_counts_nothing_and_settles_nothing() -> None:
    case = Case(tokens_per_minute=100, max_concurrent=1)
    first, second = case.visit(), case.visit()
    first.enter(request(max_tokens=10), DEFAULT)
    with pytest.raises(ApiError):
        second.enter(request(max_tokens=10), DEFAULT)
    await answer(case, second, 429, b"{}")
    second.leave()
    assert (case.left, case.allowance.running) == (87, 1)


async def test_where_tokens_are_not_limited_nothing_listens() -> None:
    case = Case(requests_per_minute=5)
    visit = case.visit()
    assert visit.listen(case.send) == case.send
    assert visit.enter(request(), DEFAULT)["x-ratelimit-remaining-requests"] == "4"
    visit.leave()
    assert case.allowance.running == 0


async def test_a_key_without_limits_costs_nothing() -> None:
    case = Case()
    visit = Visit(case.key)
    assert visit.listen(case.send) == case.send
    assert visit.enter(request(), DEFAULT) == {}
    visit.leave()
