"""Which pool is asked next."""

from app.resilience.attempts import Attempts


def test_one_after_the_other() -> None:
    attempts = Attempts(["a", "b", "c"], most=3)
    attempts.failed("a")
    assert (attempts.left, attempts.over) == (["b", "c"], False)
    attempts.passed_over("c")
    assert (attempts.left, attempts.over) == (["b"], False)
    attempts.failed("b")
    assert (attempts.left, attempts.over) == ([], True)


def test_so_many_failures_and_no_more() -> None:
    attempts = Attempts("abcd", most=2)
    attempts.failed("a")
    attempts.passed_over("b")  # a full one is none
    assert not attempts.over
    attempts.failed("c")
    assert (attempts.left, attempts.over) == (["d"], True)


def test_the_last_one_may_be_asked_again_once() -> None:
    attempts = Attempts("ab", most=5)
    attempts.failed("a", again=True)
    assert attempts.left == ["b"]  # there was another
    attempts.failed("b", again=True)
    assert (attempts.left, attempts.over) == (["b"], False)
    attempts.failed("b", again=True)
    assert attempts.over


def test_not_where_that_is_one_too_many() -> None:
    attempts = Attempts("a", most=1)
    attempts.failed("a", again=True)
    assert attempts.over
