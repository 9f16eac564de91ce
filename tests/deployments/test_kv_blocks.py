from itertools import pairwise
from random import Random

import pytest

from deployments.kv_blocks import BlockPool, block_hashes


def hashes(tokens: list[int], size: int = 4) -> list[int]:
    return list(block_hashes(tokens, size))


def filled(pool: BlockPool, values: list[int]) -> list[int]:
    """Blocks that are used, and found under these hashes."""
    blocks = pool.take(len(values))
    assert blocks is not None
    for block, value in zip(blocks, values, strict=True):
        pool.store(block, value)
    return blocks


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(hashes(list(range(length)))) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_hash_depends_on_all_that_came_before() -> None:
    one, two = hashes([1, 2, 3, 4, 5, 6, 7, 8]), hashes([0, 2, 3, 4, 5, 6, 7, 8])
    assert one[0] != two[0]
    assert one[1] != two[1]
    assert hashes([1, 2, 3, 4, 5, 6, 7, 9])[0] == one[0]
    assert hashes([5, 6, 7, 8])[0] != one[1]


def test_hashes_are_the_same_in_every_process() -> None:
    assert hashes([1, 2, 3, 4]) == [hash((0, 1, 2, 3, 4))]


def test_blocks_are_taken_until_there_are_none() -> None:
    pool = BlockPool(3)
    assert len(set(pool.take(2) or ())) == 2
    assert pool.take(2) is None
    assert pool.used == 2
    assert len(pool.take(1) or ()) == 1
    assert pool.used == 3
    assert pool.take(0) == []


def test_a_released_block_can_be_hit() -> None:
    pool = BlockPool(4)
    blocks = filled(pool, [11, 12])
    pool.release(blocks)
    assert pool.used == 0
    assert pool.cached([11, 12, 13]) == blocks
    assert pool.take(1, blocks) is not None
    assert pool.used == 3


def test_a_hit_ends_where_the_first_block_is_missing() -> None:
    pool = BlockPool(4)
    blocks = filled(pool, [11, 12])
    assert pool.cached([11, 99, 12]) == blocks[:1]
    assert pool.cached([12]) == blocks[1:]
    assert pool.cached([99, 11]) == []


def test_idle_hits_are_not_counted_twice() -> None:
    pool = BlockPool(2)
    blocks = filled(pool, [11])
    pool.release(blocks)
    assert pool.take(2, blocks) is None  # the hit is one of the two that are free
    assert pool.used == 0
    assert len(pool.take(1, blocks) or ()) == 2


def test_a_shared_block_is_used_until_the_last_one_releases_it() -> None:
    pool = BlockPool(2)
    blocks = filled(pool, [11])
    assert pool.take(0, blocks) == blocks
    pool.release(blocks)
    assert pool.used == 1
    pool.release(blocks)
    assert pool.used == 0


def test_the_least_recently_used_block_goes_first_and_a_sequence_s_end_before_its_beginning() -> None:
    pool = BlockPool(4)
    old, young = filled(pool, [11, 12]), filled(pool, [21, 22])
    pool.release(old)
    pool.release(young)
    assert pool.take(1) == [old[1]]
    assert (pool.cached([11, 12]), pool.cached([21, 22])) == (old[:1], young)
    hit = pool.take(0, old[:1])
    assert hit is not None
    pool.release(hit)  # used again: the young ones go first now
    assert pool.take(2) == [young[1], young[0]]
    assert (pool.cached([11]), pool.cached([21])) == (old[:1], [])


def test_blank_blocks_are_taken_before_any_is_evicted() -> None:
    pool = BlockPool(2)
    blocks = filled(pool, [11])
    pool.release(blocks)
    assert pool.take(1) not in (None, blocks)
    assert pool.cached([11]) == blocks


def test_a_block_that_holds_what_another_does_is_not_kept() -> None:
    pool = BlockPool(2)
    first, second = filled(pool, [11]), filled(pool, [11])
    assert pool.cached([11]) == first
    pool.release(first)
    pool.release(second)
    assert pool.take(1) == second  # it was blank: nothing was evicted
    assert pool.cached([11]) == first


@pytest.mark.parametrize("seed", range(5))
def test_no_block_is_lost_or_given_twice(seed: int) -> None:
    random, pool = Random(seed), BlockPool(20)
    held: list[list[int]] = []
    for _ in range(2000):
        if held and random.random() < 0.5:
            pool.release(held.pop(random.randrange(len(held))))
        else:
            values = [random.randrange(3)] + [random.randrange(10) for _ in range(random.randrange(6))]
            chain = [hash(tuple(values[: end + 1])) for end in range(len(values))]
            hits = pool.cached(chain)
            blocks = pool.take(len(chain) - len(hits), hits)
            if blocks is None:
                continue
            assert blocks[: len(hits)] == hits
            assert not set(blocks[len(hits) :]) & {block for other in held for block in other}
            held.append(blocks)
            for block, value in zip(blocks, chain, strict=True):
                pool.store(block, value)
        assert pool.used == len({block for blocks in held for block in blocks})
    for blocks in held:
        pool.release(blocks)
    assert pool.used == 0
    everything = pool.take(20)
    assert everything is not None
    assert all(one < other for one, other in pairwise(sorted(everything)))
