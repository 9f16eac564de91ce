"""A bucket of so many a minute, with the time given."""

import random

import pytest

from app.access.bucket import MINUTE, SECOND, Bucket, duration


def test_a_bucket_begins_full_and_comes_back_evenly() -> None:
    bucket = Bucket(6, 0)
    assert (bucket.remaining(0), bucket.wait(6, 0), bucket.full_in(0)) == (6, 0, 0)
    bucket.take(6, 0)
    assert (bucket.remaining(0), bucket.full_in(0)) == (0, MINUTE)
    assert [bucket.wait(amount, 0) for amount in (1, 2, 6)] == [10 * SECOND, 20 * SECOND, MINUTE]
    assert (bucket.remaining(10 * SECOND - 1), bucket.remaining(10 * SECOND)) == (0, 1)
    assert bucket.remaining(100 * MINUTE) == 6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, 10 * SECOND)
    bucket.take(60, 10 * SECOND)
    assert bucket.remaining(0) == 0
    assert bucket.remaining(11 * SECOND) == 1


@pytest.mark.parametrize("per_minute", [1, 3, 7, 60, 1000, 999_983, 10**9])
def test_after_the_wait_there_is_exactly_enough(per_minute: int) -> None:
    chance = random.Random(per_minute)
    bucket, now, taken = Bucket(per_minute, 0), 0, 0
    for _ in range(300):
        amount = chance.randint(1, per_minute)
        wait = bucket.wait(amount, now)
        if wait:
            assert bucket.wait(amount, now + wait - 1) > 0
            now += wait
        assert bucket.wait(amount, now) == 0
        bucket.take(amount, now)
        taken += amount
        now += chance.randint(0, SECOND)
    assert taken * MINUTE <= per_minute * (MINUTE + now)


def test_a_bucket_is_never_more_than_full() -> None:
    bucket = Bucket(5, 0)
    bucket.take(-10, 0)
    assert (bucket.remaining(0), bucket.full_in(0)) == (5, 0)


def test_a_debt_comes_back_first() -> None:
    bucket = Bucket(60, 0)
    bucket.take(90, 0)
    assert (bucket.remaining(0), bucket.wait(1, 0), bucket.full_in(0)) == (0, 31 * SECOND, 90 * SECOND)


def test_another_rate() -> None:
    bucket = Bucket(60, 0)
    bucket.take(30, 0)
    bucket.set(10, 0)
    assert bucket.remaining(0) == 10
    bucket.set(120, 0)
    assert (bucket.remaining(0), bucket.remaining(SECOND)) == (10, 12)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (120_000_000, "120ms"),
        (999_000_001, "1s"),
        (1_500_000_000, "1.5s"),
        (59_999_000_000, "59.999s"),
        (60 * SECOND, "1m0s"),
        (72 * SECOND, "1m12s"),
        (360 * SECOND, "6m0s"),
        (60_500_000_000, "1m0.5s"),
    ],
)
def test_a_duration(nanoseconds: int, text: str) -> None:
    assert duration(nanoseconds) == text
