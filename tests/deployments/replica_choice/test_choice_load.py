"""What is known of replicas' loads."""

from deployments.replica_choice.load import OTHERS_S, Loads


def test_own_requests_are_counted_to_the_last() -> None:
    loads = Loads()
    for _ in range(3):
        loads.add("a")
    loads.remove("a")
    assert loads.of(["a", "b"], 0) == [2, 0]
    loads.remove("a")
    loads.remove("a")
    assert loads.of(["a"], 0) == [0]


def test_what_others_have_is_believed_for_a_while() -> None:
    loads = Loads()
    loads.add("a")
    loads.reported("a", 5, now_s=10)
    assert loads.of(["a", "b"], 10) == [5, 0]
    loads.add("a")
    assert loads.of(["a"], 11) == [6]
    loads.remove("a")
    loads.remove("a")
    assert loads.of(["a"], 11) == [4]
    assert loads.of(["a"], 10 + OTHERS_S) == [0]


def test_the_last_report_holds() -> None:
    loads = Loads()
    loads.reported("a", 5, now_s=10)
    loads.reported("a", 2, now_s=10.1)
    assert loads.of(["a"], 10.2) == [2]
    loads.reported("a", 0, now_s=10.3)
    assert loads.of(["a"], 10.4) == [0]


def test_a_report_from_before_requests_that_are_on_their_way_takes_nothing_off() -> None:
    loads = Loads()
    for _ in range(10):
        loads.add("a")
    loads.reported("a", 1, now_s=0)
    assert loads.of(["a"], 0) == [10]


def test_a_replica_that_is_gone_takes_its_requests_with_it() -> None:
    loads = Loads()
    for name in "aab":
        loads.add(name)
    loads.reported("a", 9, now_s=0)
    loads.forget_all_but(["b"])
    assert loads.of(["a", "b"], 0) == [0, 1]
    loads.remove("a")  # its requests end late
    loads.add("a")
    assert loads.of(["a"], 0) == [1]
