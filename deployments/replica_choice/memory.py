"""Which replicas have had which blocks of prompts, as far as is remembered. Pure."""

from collections import OrderedDict
from collections.abc import Collection, Sequence


class PrefixMemory:
    """A bounded number of blocks, each with the replicas that prompts with it were sent to. The least recently used
    blocks are forgotten. A replica may long have evicted what is remembered here."""

    def __init__(self, most: int) -> None:
        """`most` blocks, of all prompts and replicas together."""
        self._most = most
        self._holders: OrderedDict[int, int] = OrderedDict()  # by block, a bit for each replica
        self._bits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def matches(self, blocks: Sequence[int], replicas: Sequence[str]) -> list[int]:
        """How many of the first blocks each replica has had, without a gap."""
        bits = [self._bits.get(replica, 0) for replica in replicas]
        found = [0] * len(bits)
        going_on = _union(bits)
        holders = self._holders
        for count, block in enumerate(blocks):
            if not going_on:
                return found
            if ended := going_on & ~holders.get(block, 0):
                going_on ^= ended
                found = [count if bit & ended else before for bit, before in zip(bits, found, strict=True)]
        return [len(blocks) if bit & going_on else before for bit, before in zip(bits, found, strict=True)]

    def remember(self, blocks: Sequence[int], replica: str) -> None:
        """A prompt with these blocks goes to a replica."""
        if (bit := self._bits.get(replica)) is None:
            bit = self._bits[replica] = _free_bit(self._bits.values())
        holders = self._holders
        # Backwards: the beginnings, which more prompts share, are forgotten last.
        for block in reversed(blocks):
            holders[block] = holders.get(block, 0) | bit
            holders.move_to_end(block)
        while len(holders) > self._most:
            holders.popitem(last=False)

    def forget_all_but(self, replicas: Collection[str]) -> None:
        """The other replicas are gone. It takes as long as there are blocks, if one of them has had any."""
        gone = _union([self._bits.pop(replica) for replica in self._bits.keys() - set(replicas)])
        if gone:
            left = ((block, bits & ~gone) for block, bits in self._holders.items())
            self._holders = OrderedDict((block, bits) for block, bits in left if bits)


def _union(bits: Collection[int]) -> int:
    union = 0
    for bit in bits:
        union |= bit
    return union


def _free_bit(taken: Collection[int]) -> int:
    """The lowest that nobody has."""
    union = _union(taken)
    return ~union & (union + 1)
