"""Which replica is chosen, and why."""

import random

import pytest

from deployments.replica_choice.choose import Choice, by_prefix, least_loaded, limit
from deployments.replica_choice.settings import PrefixSettings

SETTINGS = PrefixSettings()


def choose(loads: list[int], matches: list[int], blocks: int = 100, turn: int = 0) -> Choice:
    return by_prefix(loads, matches, blocks, turn, SETTINGS)


def test_the_least_loaded_take_turns() -> None:
    assert least_loaded([3, 1, 2], 7) == 1
    assert [least_loaded([1, 0, 0, 5, 0], turn) for turn in range(4)] == [1, 2, 4, 1]


@pytest.mark.parametrize(
    ("loads", "matches", "expected"),
    [
        pytest.param([0, 0, 0], [0, 90, 0], Choice(1, "prefix"), id="on an idle pool the prefix decides"),
        pytest.param([0, 1, 0], [0, 90, 0], Choice(1, "prefix"), id="one request is no load"),
        pytest.param([0, 2, 0], [0, 90, 0], Choice(0, "bound"), id="two on a pool that is else idle are"),
        pytest.param([5, 6, 5], [0, 90, 0], Choice(1, "prefix"), id="a little more load is worth a prefix"),
        pytest.param([5, 7, 5], [0, 90, 0], Choice(0, "bound"), id="never beyond the bound"),
        pytest.param([100, 124, 100], [0, 100, 0], Choice(1, "prefix"), id="large loads: within the bound"),
        pytest.param([100, 150, 100], [0, 100, 0], Choice(0, "bound"), id="large loads: beyond it"),
        pytest.param([10, 11, 9], [0, 9, 0], Choice(2, "least_loaded"), id="less than min_match is no prefix"),
        pytest.param([10, 10, 10], [0, 10, 0], Choice(1, "prefix"), id="min_match is enough"),
        pytest.param([23, 23, 14], [30, 0, 0], Choice(0, "prefix"), id="a share is weighed against load"),
        pytest.param([23, 23, 14], [12, 0, 0], Choice(2, "prefix"), id="and may be too small for it"),
        pytest.param([4, 4, 4], [50, 60, 60], Choice(1, "prefix"), id="the longest match"),
        pytest.param([4, 5, 4], [60, 60, 0], Choice(0, "prefix"), id="of as long ones the less loaded"),
        pytest.param([3, 3, 3], [0, 0, 0], Choice(0, "least_loaded"), id="nothing is known"),
        pytest.param([7], [50], Choice(0, "prefix"), id="there is but one"),
    ],
)
def test_prefix_and_load(loads: list[int], matches: list[int], expected: Choice) -> None:
    assert choose(loads, matches) == expected


def test_of_the_same_score_turn_falls_on_one() -> None:
    chosen = [choose([4, 4, 4], [0, 60, 60], turn=turn).index for turn in range(4)]
    assert chosen == [1, 2, 1, 2]


def test_the_bound_of_a_few_and_of_many() -> None:
    assert limit([0, 0, 0], 1.25) == 2
    assert limit([3, 3, 3], 1.25) == pytest.approx(1.25 * 10 / 3)
    assert limit([8, 8, 8], 1.0) == 9  # the least loaded may always take one
    assert limit([100, 0], 5) == pytest.approx(5 * 101 / 2)


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_takes_a_replica_beyond_the_bound(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        loads = [chance.randrange(60) for _ in range(chance.randint(1, 9))]
        matches = [chance.randrange(101) for _ in loads]
        chosen = choose(loads, matches, turn=chance.getrandbits(64)).index
        mean = (sum(loads) + 1) / len(loads)
        assert loads[chosen] == min(loads) or loads[chosen] + 1 <= max(2, 1.25 * mean)


def test_one_prefix_of_all_requests_doesn_t_send_them_all_to_one_replica() -> None:
    loads, counts = [0] * 4, [0] * 4
    for _ in range(400):  # none of them ends
        chosen = choose(loads, [100, 0, 0, 0]).index
        loads[chosen] += 1
        counts[chosen] += 1
    assert counts[0] == max(counts) and max(counts) <= 1.25 * 100
