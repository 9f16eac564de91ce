"""What is under way against what may be."""

import pytest

from app.admission.budget import Budget, Cost, Place, share_of, without
from app.admission.settings import LimitConfig


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_the_replicas_parts_add_up_to_the_limit(limit: int, replicas: int) -> None:
    parts = [share_of(limit, Place(rank, replicas)) or 0 for rank in range(replicas)]
    assert sum(parts) == max(limit, replicas)
    assert max(parts) - min(parts) <= 1
    assert share_of(None, Place(0, replicas)) is None


def test_requests_are_counted() -> None:
    budget = Budget(LimitConfig(max_concurrent=2))
    one = Cost(10)
    assert budget.lacks(one) is None
    budget.take(one)
    budget.take(one)
    assert (budget.lacks(one), budget.running, budget.tokens) == ("max_concurrent", 2, 20)
    budget.give_back(one)
    assert budget.lacks(one) is None


def test_tokens_are_counted() -> None:
    budget = Budget(LimitConfig(max_tokens_in_flight=100))
    budget.take(Cost(60))
    assert budget.lacks(Cost(40)) is None
    assert budget.lacks(Cost(41)) == "max_tokens_in_flight"
    assert [budget.too_large(Cost(tokens)) for tokens in (100, 101)] == [False, True]


def test_one_larger_than_a_replica_s_part_is_answered_alone() -> None:
    budget = Budget(LimitConfig(max_tokens_in_flight=100), Place(0, 4))
    large = Cost(90)
    assert (budget.lacks(large), budget.too_large(large)) == (None, False)
    budget.take(Cost(1))
    assert budget.lacks(large) == "max_tokens_in_flight"


def test_without_limits_everything_fits() -> None:
    budget = Budget(LimitConfig())
    for _ in range(1000):
        budget.take(Cost(10**9))
    assert budget.lacks(Cost(10**9)) is None
    assert not budget.limits and not budget.too_large(Cost(10**12))


def test_limits_change_while_requests_are_under_way() -> None:
    budget = Budget(LimitConfig(max_concurrent=8))
    for _ in range(4):
        budget.take(Cost(1))
    budget.set(LimitConfig(max_concurrent=8), Place(1, 2))
    assert budget.lacks(Cost(1)) == "max_concurrent"
    budget.set(LimitConfig(max_concurrent=10), Place(1, 2))
    assert budget.lacks(Cost(1)) is None


def test_some_leave_a_part_free() -> None:
    budget = Budget(LimitConfig(max_concurrent=10, max_tokens_in_flight=1000))
    for _ in range(5):
        assert budget.lacks(Cost(1), headroom=0.5) is None
        budget.take(Cost(1))
    assert budget.lacks(Cost(1), headroom=0.5) == "max_concurrent"
    assert budget.lacks(Cost(1), headroom=0.4) is None
    assert budget.lacks(Cost(596), headroom=0.4) == "max_tokens_in_flight"
    assert budget.lacks(Cost(995)) is None


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 256])
@pytest.mark.parametrize("headroom", [0.0, 0.2, 0.5, 1.0])
def test_however_much_is_left_free_one_may_run(limit: int, headroom: float) -> None:
    assert Budget(LimitConfig(max_concurrent=limit)).lacks(Cost(10), headroom) is None
    assert without(headroom, limit) == max(1, round(limit * (1 - headroom) + 1e-9))
