"""Limits of a key, with the time given: what is let in, what is said, and that shares add up."""

from collections.abc import Callable
from typing import Any

import pytest

from app.access.bucket import MINUTE, SECOND
from app.access.keys import Key, Limits
from app.access.rates import Allowance, Allowances
from app.admission.budget import Place
from deployments.errors import ApiError


def key(requests: int | None = None, tokens: int | None = None, concurrent: int | None = None) -> Key:
    return Key("ci", "ci", limits=Limits(requests, tokens, concurrent))


def refused(do: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        do()
    assert (raised.value.status, raised.value.type, raised.value.code) == (
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
    )
    return raised.value


# Requests


def test_requests_a_minute() -> None:
    allowance = Allowance(key(requests=2), 0)
    for _ in range(2):
        allowance.enter(0, 0)
        allowance.leave()
    error = refused(lambda: allowance.enter(0, 0))
    assert error.message == (
        "Rate limit reached: the key 'ci' may have 2 requests a minute, and 0 are left. Try again in 30 s."
    )
    assert error.headers == {
        "retry-after": "30",
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    refused(lambda: allowance.enter(0, 30 * SECOND - 1))
    allowance.enter(0, 30 * SECOND)


@pytest.mark.parametrize(
    ("passed", "said"), [(0, "30"), (1, "30"), (SECOND, "29"), (SECOND + 1, "29"), (29 * SECOND, "1")]
)
def test_retry_after_is_in_whole_seconds_and_enough(passed: int, said: str) -> None:
    allowance = Allowance(key(requests=2), 0)
    allowance.enter(0, 0)
    allowance.enter(0, 0)
    assert refused(lambda: allowance.enter(0, passed)).headers["retry-after"] == said
    allowance.enter(0, passed + int(said) * SECOND)


def test_retry_after_is_at_least_a_second() -> None:
    allowance = Allowance(key(requests=600), 0)
    for _ in range(600):
        allowance.enter(0, 0)
    assert refused(lambda: allowance.enter(0, 0)).headers["retry-after"] == "1"


# Tokens


def test_tokens_a_minute() -> None:
    allowance = Allowance(key(tokens=600), 0)
    assert allowance.enter(400, 0) == 400
    error = refused(lambda: allowance.enter(300, 0))
    assert error.message == (
        "Rate limit reached: the key 'ci' may have 600 tokens a minute; 200 are left, and this request counts for 300. "
        "Try again in 10 s."
    )
    assert error.headers == {
        "retry-after": "10",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "200",
        "x-ratelimit-reset-tokens": "40s",
    }
    allowance.enter(200, 0)


def test_what_an_answer_did_not_take_is_given_back() -> None:
    allowance = Allowance(key(tokens=600), 0)
    reserved = allowance.enter(500, 0)
    allowance.settle(reserved, 100, 0)
    assert allowance.headers(0)["x-ratelimit-remaining-tokens"] == "500"


def test_what_an_answer_took_beyond_is_owed() -> None:
    allowance = Allowance(key(tokens=600), 0)
    reserved = allowance.enter(500, 0)
    allowance.settle(reserved, 900, 0)
    assert allowance.headers(0) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }


def test_a_request_for_more_than_a_minutes_is_let_in_alone() -> None:
    allowance = Allowance(key(tokens=600), 0)
    assert allowance.enter(10**18, 0) == 600
    assert refused(lambda: allowance.enter(10**18, 0)).headers["retry-after"] == "60"
    allowance.enter(10**18, MINUTE)


def test_a_limit_that_is_not_there_counts_nothing() -> None:
    allowance = Allowance(key(requests=1), 0)
    assert not allowance.counts_tokens
    allowance.settle(allowance.enter(10**9, 0), 0, 0)
    assert "x-ratelimit-limit-tokens" not in allowance.headers(0)


def test_the_limit_with_the_longest_wait_is_named() -> None:
    allowance = Allowance(key(requests=1, tokens=60), 0)
    allowance.enter(30, 0)
    error = refused(lambda: allowance.enter(31, 0))
    assert "1 requests a minute" in error.message and error.headers["retry-after"] == "60"
    assert error.headers["x-ratelimit-remaining-tokens"] == "30"
    allowance = Allowance(key(requests=1, tokens=60), 0)
    allowance.settle(allowance.enter(30, 0), 120, 0)
    error = refused(lambda: allowance.enter(30, 0))
    assert "60 tokens a minute; 0 are left" in error.message and error.headers["retry-after"] == "90"


def test_a_request_that_is_refused_counts_nowhere() -> None:
    allowance = Allowance(key(requests=5, tokens=60, concurrent=5), 0)
    allowance.enter(50, 0)
    refused(lambda: allowance.enter(50, 0))
    assert allowance.running == 1
    assert allowance.headers(0)["x-ratelimit-remaining-requests"] == "4"
    assert allowance.headers(0)["x-ratelimit-remaining-tokens"] == "10"


# Requests under way


def test_requests_under_way() -> None:
    allowance = Allowance(key(concurrent=2), 0)
    allowance.enter(0, 0)
    allowance.enter(0, 0)
    error = refused(lambda: allowance.enter(0, 0))
    assert error.message == (
        "Rate limit reached: the key 'ci' may have 2 requests under way, and has them. Try again in 1 s."
    )
    assert error.headers == {"retry-after": "1"}
    allowance.leave()
    allowance.enter(0, 0)


# Several replicas


@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
@pytest.mark.parametrize("limit", [7, 8, 100, 999_983])
def test_the_shares_of_all_replicas_add_up_to_the_limit(replicas: int, limit: int) -> None:
    shares = [Allowance(key(limit, limit, limit), 0, Place(rank, replicas)) for rank in range(replicas)]
    for noun in ("requests", "tokens"):
        assert sum(int(each.headers(0)[f"x-ratelimit-remaining-{noun}"]) for each in shares) == limit
        assert {each.headers(0)[f"x-ratelimit-limit-{noun}"] for each in shares} == {str(limit)}
    admitted = 0
    for allowance in shares if limit < 1000 else ():
        for _ in range(limit):
            try:
                allowance.enter(1, 0)
            except ApiError:
                break
            admitted += 1
    assert admitted == (limit if limit < 1000 else 0)


def test_a_refusal_names_the_replicas_share() -> None:
    allowance = Allowance(key(requests=3), 0, Place(1, 2))
    allowance.enter(0, 0)
    assert (
        "may have 3 requests a minute, and 0 are left (this ingress replica's share is 1)."
        in refused(lambda: allowance.enter(0, 0)).message
    )


# All keys


def test_each_key_has_its_own() -> None:
    allowances = Allowances()
    mine = key(requests=1)
    other = Key("other", "ci", limits=Limits(1))
    allowances.of(mine, 0).enter(0, 0)
    allowances.of(other, 0).enter(0, 0)
    refused(lambda: allowances.of(mine, 0).enter(0, 0))


def test_other_limits_leave_what_is_used_up() -> None:
    allowances = Allowances()
    before = allowances.of(key(requests=10, concurrent=1), 0)
    before.enter(0, 0)
    after = allowances.of(key(requests=20, tokens=5, concurrent=1), 0)
    assert after is before and after.counts_tokens
    assert after.headers(0)["x-ratelimit-limit-requests"] == "20"
    assert after.headers(0)["x-ratelimit-remaining-requests"] == "9"
    assert "requests under way" in refused(lambda: after.enter(0, 0)).message


def test_more_replicas() -> None:
    allowances = Allowances()
    allowances.of(key(requests=10), 0).enter(0, 0)
    allowances.place = Place(0, 5)
    assert allowances.of(key(requests=10), 0).headers(0)["x-ratelimit-remaining-requests"] == "2"


def test_keys_that_are_gone_are_forgotten() -> None:
    allowances = Allowances()
    for name in ("a", "b"):
        allowances.of(Key(name, name, limits=Limits(1)), 0).enter(0, 0)
    allowances.keep(frozenset({"b", "c"}))
    allowances.of(Key("a", "a", limits=Limits(1)), 0).enter(0, 0)
    refused(lambda: allowances.of(Key("b", "b", limits=Limits(1)), 0).enter(0, 0))
