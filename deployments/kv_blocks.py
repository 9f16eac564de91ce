"""The KV-cache blocks of the timing model: who uses them, and a prefix cache of those that nobody does. Pure."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class BlockPool:
    """A fixed number of blocks. A block that was stored under a hash and that nobody uses can be hit until it is
    evicted, the least recently used first."""

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self._blank = list(range(blocks - 1, -1, -1))  # hold nothing that could be hit
        self._idle: OrderedDict[int, None] = OrderedDict()  # hold what could be hit, and have no users
        self._users = [0] * blocks
        self._by_hash: dict[int, int] = {}
        self._hashes: dict[int, int] = {}  # by block

    @property
    def used(self) -> int:
        """Blocks that somebody uses."""
        return self.total - len(self._blank) - len(self._idle)

    def cached(self, hashes: Sequence[int]) -> list[int]:
        """The blocks of the longest beginning of `hashes` that is in the cache."""
        found: list[int] = []
        for value in hashes:
            if (block := self._by_hash.get(value)) is None:
                break
            found.append(block)
        return found

    def take(self, new: int, hits: Sequence[int] = ()) -> list[int] | None:
        """Use `hits` and so many `new` blocks; None, and nothing has changed, where there aren't that many."""
        idle_hits = sum(not self._users[block] for block in hits)
        if new > len(self._blank) + len(self._idle) - idle_hits:
            return None
        for block in hits:
            self._idle.pop(block, None)
            self._users[block] += 1
        return [*hits, *(self._take_one() for _ in range(new))]

    def _take_one(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._by_hash[self._hashes.pop(block)]
        self._users[block] = 1
        return block

    def store(self, block: int, value: int) -> None:
        """Have a used block found under a hash from now on. Of two blocks with the same content one is enough."""
        if value not in self._by_hash and block not in self._hashes:
            self._by_hash[value] = block
            self._hashes[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Use them no more. The end of a sequence is evicted before its beginning, which more prompts share."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                if block in self._hashes:
                    self._idle[block] = None
                else:
                    self._blank.append(block)


def block_hashes(tokens: Sequence[int], block_size: int) -> Iterator[int]:
    """A hash for each full block of `tokens`, which depends on all tokens before it. The same in every process."""
    parent = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))  # Python salts no hash of integers
        yield parent
