"""When a pool is left alone, and how it comes back."""

import random

import pytest

from app.resilience.breaker import MOST_TIMES, Breaker, Breakers, Trial
from app.resilience.settings import BreakerConfig

CONFIG = BreakerConfig(window=8, min_failures=3, open_s=10)


@pytest.fixture
def breaker() -> Breaker:
    return Breaker("p", CONFIG)


def trial(breaker: Breaker, now_s: float) -> Trial:
    found = breaker.begin(now_s)
    assert found is not None
    return found


def ask(breaker: Breaker, now_s: float, outcomes: str) -> None:
    """A request for each letter: `+` succeeds, `-` fails."""
    for outcome in outcomes:
        if outcome == "+":
            trial(breaker, now_s).succeeded(now_s)
        else:
            trial(breaker, now_s).failed(now_s)


@pytest.mark.parametrize(
    ("outcomes", "opens"),
    [("--", False), ("---", True), ("+-+-+-", True), ("++++--", False), ("+++++---", False), ("+++++---" + "-", True)],
)
def test_half_of_the_last_answers_have_to_be_failures_and_so_many(breaker: Breaker, outcomes: str, opens: bool) -> None:
    ask(breaker, 0, outcomes)
    assert breaker.lets_in(1) != opens
    assert (breaker.begin(1) is None) == opens


def test_one_request_tries_it_after_a_while(breaker: Breaker, caplog: pytest.LogCaptureFixture) -> None:
    ask(breaker, 0, "---")
    assert not breaker.lets_in(9.9)
    probe = trial(breaker, 10)
    assert not breaker.lets_in(10) and breaker.begin(10) is None  # the others wait for what it finds
    probe.succeeded(11)
    assert breaker.lets_in(11)
    ask(breaker, 11, "--")
    assert breaker.lets_in(11)  # what was before is forgotten


def test_it_is_left_alone_for_twice_as_long_each_time(breaker: Breaker) -> None:
    ask(breaker, 0, "---")
    now_s, waits = 0.0, []
    for _ in range(7):
        wait_s = next(seconds for seconds in range(1, 1000) if breaker.lets_in(now_s + seconds))
        waits.append(wait_s)
        now_s += wait_s
        trial(breaker, now_s).failed(now_s)
    assert waits == [10, 20, 40, 80, 160, 160, 160] and MOST_TIMES == 16


def test_a_probe_that_tells_nothing_makes_room_for_another(breaker: Breaker) -> None:
    ask(breaker, 0, "---")
    probe = trial(breaker, 10)
    probe.end()
    assert breaker.lets_in(10)
    trial(breaker, 10).succeeded(10)
    probe.end()
    assert breaker.lets_in(10)


def test_what_was_under_way_says_nothing_new(breaker: Breaker) -> None:
    before = [trial(breaker, 0) for _ in range(10)]
    ask(breaker, 0, "---")
    before[0].succeeded(1)
    before[1].failed(9)
    assert not breaker.lets_in(9.9) and breaker.lets_in(10)
    probe = trial(breaker, 10)
    before[2].end()
    before[3].succeeded(10)
    assert not breaker.lets_in(10)  # that wasn't the probe
    probe.succeeded(10)
    assert breaker.lets_in(10)


def test_an_answer_may_fail_after_it_has_begun(breaker: Breaker) -> None:
    for _ in range(3):
        under_way = trial(breaker, 0)
        under_way.succeeded(0)
        under_way.failed(5)
        under_way.end()
    assert not breaker.lets_in(5)
    probe = trial(breaker, 15)
    probe.succeeded(15)
    probe.failed(16)  # counts as one failure of those that come
    assert breaker.lets_in(16)


def test_settings_change_live(breaker: Breaker) -> None:
    ask(breaker, 0, "++++++--")
    breaker.set(BreakerConfig(window=2, min_failures=3))
    ask(breaker, 0, "-")
    assert breaker.lets_in(0)  # of two answers three can't fail
    breaker.set(BreakerConfig(window=2, min_failures=2))
    ask(breaker, 0, "-")
    assert not breaker.lets_in(0)


def test_each_pool_has_its_own() -> None:
    breakers = Breakers(CONFIG)
    assert breakers.lets_in("a", 0)
    ask(breakers.of("a"), 0, "---")
    assert not breakers.lets_in("a", 1) and breakers.lets_in("b", 1)
    assert breakers.of("a") is breakers.of("a")
    breakers.set(BreakerConfig(window=1, min_failures=1))
    ask(breakers.of("b"), 0, "-")
    assert not breakers.lets_in("b", 1)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_pool_that_answers_again_is_asked_again(seed: int) -> None:
    chance, breaker, now_s = random.Random(seed), Breaker("p", CONFIG), 0.0
    under_way: list[Trial] = []
    for _ in range(500):
        now_s += chance.random() * 5
        if (begun := breaker.begin(now_s)) is not None:
            under_way.append(begun)
        if under_way and chance.random() < 0.7:
            one = under_way.pop(chance.randrange(len(under_way)))
            match chance.randrange(3):
                case 0:
                    one.succeeded(now_s)
                case 1:
                    one.failed(now_s)
                case _:
                    one.end()
    for one in under_way:
        one.end()
    now_s += CONFIG.open_s * MOST_TIMES
    ask(breaker, now_s, "+")
    assert breaker.lets_in(now_s)


def test_whole_answers_that_run_out_of_time_are_failures_where_nothing_else_is_answered(breaker: Breaker) -> None:
    for _ in range(3):
        trial(breaker, 0).ran_out(60)
    assert not breaker.lets_in(61)
    trial(breaker, 70).ran_out(130)  # nothing else is sent while one request tries it
    assert not breaker.lets_in(149) and breaker.lets_in(150)


def test_an_answer_too_long_for_its_time_says_nothing_of_a_pool_that_answers(breaker: Breaker) -> None:
    long = [trial(breaker, 0) for _ in range(10)]
    ask(breaker, 30, "+")
    for each in long:
        each.ran_out(60)
    assert breaker.lets_in(60)
