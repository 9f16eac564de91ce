"""The policies, with loads and memory together."""

import random

from deployments.replica_choice.policy import ByPrefix, LeastOutstanding
from deployments.replica_choice.settings import PrefixSettings

REPLICAS = ["a", "b", "c", "d"]


def test_least_outstanding() -> None:
    policy = LeastOutstanding()
    for name in "abbd":
        policy.loads.add(name)
    assert policy.choose(REPLICAS, [1, 2, 3], 0).index == 2
    policy.loads.add("c")
    assert {policy.choose(REPLICAS, [], 0).index for _ in range(3)} == {0, 2, 3}


def test_a_conversation_stays_where_it_began_until_that_replica_is_gone() -> None:
    policy, prompt = ByPrefix(PrefixSettings()), list(range(20))
    first = policy.choose(REPLICAS, prompt[:10], 0)
    assert first.reason == "least_loaded"
    for end in (12, 15, 20):
        again = policy.choose(REPLICAS, prompt[:end], 0)
        assert (again.index, again.reason) == (first.index, "prefix")
    left = [name for index, name in enumerate(REPLICAS) if index != first.index]
    policy.forget_all_but(left)
    assert policy.choose(left, prompt, 0).reason == "least_loaded"


def test_more_of_the_same_at_once_see_each_other() -> None:
    """No replica has said a word yet: what was chosen just now counts."""
    policy = ByPrefix(PrefixSettings())
    chosen = []
    for _ in range(40):
        index = policy.choose(REPLICAS, [1, 2, 3, 4], 0).index
        policy.loads.add(REPLICAS[index])
        chosen.append(index)
    counts = [chosen.count(index) for index in range(4)]
    assert sum(counts) == 40 and min(counts) > 0 and max(counts) <= 13


def test_processes_that_know_no_more_choose_alike() -> None:
    chance = random.Random(3)
    for _ in range(50):
        prompt = [chance.getrandbits(64) for _ in range(10)]
        assert len({ByPrefix(PrefixSettings()).choose(REPLICAS, prompt, 0).index for _ in range(3)}) == 1


def test_prompts_without_blocks_are_spread() -> None:
    policy = ByPrefix(PrefixSettings())
    assert [policy.choose(REPLICAS, [], 0).index for _ in range(4)] == [1, 2, 3, 0]
    assert len(policy.memory) == 0


def test_memory_is_bounded() -> None:
    policy, chance = ByPrefix(PrefixSettings(memory=100)), random.Random(1)
    for _ in range(100):
        policy.choose(REPLICAS, [chance.getrandbits(64) for _ in range(20)], 0)
    assert len(policy.memory) == 100
