"""The order in which requests wait."""

import random
from collections import Counter
from typing import Any

from app.admission.waiting import PRIORITY, Waiting
from app.routing.request_type import TYPES


def everything(waiting: "Waiting[Any]") -> list[Any]:
    return [waiting.pop_first(lambda _: True, lambda _: True) for _ in range(len(waiting))]


def test_every_type_has_a_priority() -> None:
    assert set(PRIORITY) == set(TYPES)
    assert PRIORITY["chat"] < PRIORITY["batch"] < PRIORITY["offline"]


def test_chat_goes_before_batch_and_batch_before_offline() -> None:
    waiting: Waiting[str] = Waiting()
    for kind in ("offline", "batch", "chat", "offline", "multi_turn", "batch"):
        waiting.add(kind, kind, "k", 10)
    assert everything(waiting) == ["chat", "multi_turn", "batch", "batch", "offline", "offline"]


def test_of_one_key_the_first_goes_first() -> None:
    waiting: Waiting[int] = Waiting()
    for number, tokens in enumerate((500, 1, 30, 0)):
        waiting.add(number, "chat", "k", tokens)
    assert everything(waiting) == [0, 1, 2, 3]


def test_a_key_with_many_requests_holds_up_no_other() -> None:
    waiting: Waiting[str] = Waiting()
    for _ in range(100):
        waiting.add("many", "chat", "many", 10)
    waiting.add("few", "chat", "few", 10)
    assert everything(waiting).index("few") <= 1


def test_keys_get_as_many_tokens_as_each_other() -> None:
    waiting: Waiting[tuple[str, int]] = Waiting()
    sizes = {"large": 100, "small": 10}
    for key, tokens in sizes.items():
        for _ in range(1000):
            waiting.add((key, tokens), "chat", key, tokens)
    served = Counter[str]()
    for _ in range(550):
        item = waiting.pop_first(lambda _: True, lambda _: True)
        assert item is not None
        served[item[0]] += item[1]
    assert abs(served["large"] - served["small"]) <= 100


def test_who_comes_later_gets_no_credit_for_the_time_before() -> None:
    waiting: Waiting[str] = Waiting()
    for _ in range(10):
        waiting.add("early", "chat", "early", 10)
    assert [waiting.pop_first(lambda _: True, lambda _: True) for _ in range(5)] == ["early"] * 5
    for _ in range(10):
        waiting.add("late", "chat", "late", 10)
    assert Counter(everything(waiting)[:10]) == {"early": 5, "late": 5}


def test_one_that_does_not_fit_is_passed_over_unless_it_blocks() -> None:
    def filled() -> "Waiting[str]":
        waiting: Waiting[str] = Waiting()
        for item in ("a", "b", "c"):
            waiting.add(item, "chat", item, 10)
        return waiting

    assert filled().pop_first(lambda item: item != "a", lambda _: False) == "b"
    assert filled().pop_first(lambda item: item != "a", lambda item: item == "a") is None
    kept = filled()
    assert kept.pop_first(lambda _: False, lambda _: False) is None
    assert everything(kept) == ["a", "b", "c"]


def test_who_leaves_is_out_once() -> None:
    waiting: Waiting[str] = Waiting()
    leave = waiting.add("a", "chat", "k", 1)
    waiting.add("b", "chat", "k", 1)
    leave()
    leave()
    assert (len(waiting), everything(waiting)) == (1, ["b"])
    stay = waiting.add("c", "chat", "k", 1)
    assert everything(waiting) == ["c"]
    stay()
    assert len(waiting) == 0


def test_memory_is_bounded_by_who_waits() -> None:
    waiting: Waiting[int] = Waiting()
    chance = random.Random(0)
    leaves = [waiting.add(0, "chat", "stays", 1)]
    for number in range(5000):
        leave = waiting.add(number, chance.choice(TYPES), f"key-{number % 7}", chance.randrange(100))
        leaves.append(leave)
        leaves.pop(chance.randrange(len(leaves)))() if len(leaves) > 20 else None
        assert len(waiting._heap) <= 2 * len(waiting) + 17
    for leave in leaves:
        leave()
    assert (len(waiting), waiting._heap, waiting._ends) == (0, [], {})
