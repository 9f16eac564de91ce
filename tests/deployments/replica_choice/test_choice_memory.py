"""What is remembered of replicas' blocks, and how much."""

import random

import pytest

from deployments.replica_choice.memory import SMALL_BITS, PrefixMemory


def test_a_replica_matches_as_far_as_it_has_had_the_beginning() -> None:
    memory = PrefixMemory(100)
    memory.remember([1, 2, 3, 4], "a")
    memory.remember([1, 2, 9], "b")
    memory.remember([2, 3], "c")
    assert memory.matches([1, 2, 3, 5], ["a", "b", "c", "new"]) == [3, 2, 0, 0]
    assert memory.matches([1, 2, 3, 4], ["new", "a"]) == [0, 4]
    assert memory.matches([], ["a"]) == [0]
    assert memory.matches([7], ["a", "b"]) == [0, 0]


def test_replicas_that_are_not_asked_about_make_no_difference() -> None:
    memory = PrefixMemory(100)
    memory.remember([1, 2, 3], "a")
    memory.remember([1], "b")
    assert memory.matches([1, 2, 3], ["b"]) == [1]


def test_the_least_recently_used_are_forgotten_ends_first() -> None:
    memory = PrefixMemory(5)
    memory.remember([1, 2, 3], "a")
    memory.remember([10, 11], "a")
    memory.remember([1, 2, 3], "a")  # used again
    memory.remember([20, 21, 22], "a")
    assert len(memory) == 5
    assert memory.matches([10], ["a"]) == [0]
    assert memory.matches([1, 2, 3], ["a"]) == [2]
    assert memory.matches([20, 21, 22], ["a"]) == [3]


def test_it_never_holds_more_than_it_may() -> None:
    memory, chance = PrefixMemory(1000), random.Random(1)
    for _ in range(500):
        memory.remember(
            [chance.getrandbits(64) for _ in range(chance.randint(1, 100))], f"replica{chance.randrange(9)}"
        )
        assert len(memory) <= 1000
    memory.remember(list(range(5000)), "a")  # more than it may hold: the beginning stays
    assert len(memory) == 1000 and memory.matches(list(range(5000)), ["a"]) == [1000]


def test_a_replica_that_is_gone_is_forgotten() -> None:
    memory = PrefixMemory(100)
    memory.remember([1, 2], "a")
    memory.remember([1], "b")
    memory.forget_all_but(["b", "never seen"])
    assert memory.matches([1, 2], ["a", "b"]) == [0, 1]
    memory.remember([5], "a")  # one that comes back begins anew
    assert memory.matches([1, 2], ["a", "b"]) == [0, 1]


def test_a_new_replica_inherits_nothing_and_however_many_have_been_there_masks_stay_small() -> None:
    memory = PrefixMemory(100)
    for generation in range(10 * SMALL_BITS):
        assert memory.matches([1, 2], [f"{generation}", "kept"]) == [0, 1 if generation else 0]
        memory.remember([1, 2], f"{generation}")
        memory.remember([1], "kept")
        memory.forget_all_but(["kept"])
        assert max(memory._holders.values()) < 2 ** (SMALL_BITS + 1)


def test_more_replicas_than_a_small_mask_has_bits() -> None:
    memory, names = PrefixMemory(1000), [f"replica{index}" for index in range(3 * SMALL_BITS)]
    for index, name in enumerate(names):
        memory.remember([1, 2, 3][: index % 4], name)
    assert memory.matches([1, 2, 3], names) == [index % 4 for index in range(3 * SMALL_BITS)]


@pytest.mark.parametrize("seed", range(5))
def test_it_says_what_a_plain_account_of_all_says(seed: int) -> None:
    chance, memory = random.Random(seed), PrefixMemory(10**6)
    had: dict[str, set[int]] = {name: set() for name in "abcdefgh"}
    for _ in range(200):
        prompt, name = [chance.randrange(30) for _ in range(chance.randint(1, 12))], chance.choice("abcdefgh")
        expected = []
        for blocks in had.values():
            count = 0
            while count < len(prompt) and prompt[count] in blocks:
                count += 1
            expected.append(count)
        assert memory.matches(prompt, list(had)) == expected
        memory.remember(prompt, name)
        had[name] |= set(prompt)
