"""Which replicas have had which blocks of prompts, as far as is remembered. Pure."""

from collections import OrderedDict
from collections.abc import Collection, Sequence

SMALL_BITS = 60  # an integer of so many takes the least memory


class PrefixMemory:
    """A bounded number of blocks, each with the replicas that prompts with it were sent to. The least recently used
    blocks are forgotten. A replica may long have evicted what is remembered here."""

    def __init__(self, most: int) -> None:
        """`most` blocks, of all prompts and replicas together."""
        self._most = most
        self._holders: OrderedDict[int, int] = OrderedDict()  # by block, a bit for each replica
        self._bits: dict[str, int] = {}
        self._gone = 0  # bits of replicas that are gone

    def __len__(self) -> int:
        return len(self._holders)

    def matches(self, blocks: Sequence[int], replicas: Sequence[str]) -> list[int]:
        """How many of the first blocks each replica has had, without a gap."""
        bits = [self._bits.get(replica, 0) for replica in replicas]
        found = [0] * len(bits)
        going_on, held_by = _union(bits), self._holders.get
        for count, block in enumerate(blocks):
            if ended := going_on & ~held_by(block, 0):
                found = [count if bit & ended else before for bit, before in zip(bits, found, strict=True)]
                going_on ^= ended
                if not going_on:
                    return found
        return [len(blocks) if bit & going_on else before for bit, before in zip(bits, found, strict=True)]

    def remember(self, blocks: Sequence[int], replica: str) -> None:
        """A prompt with these blocks goes to a replica."""
        if (bit := self._bits.get(replica)) is None:
            bit = self._bits[replica] = self._new_bit()
        holders = self._holders
        held_by, refresh = holders.get, holders.move_to_end
        # Backwards: the beginnings, which more prompts share, are forgotten last.
        for block in reversed(blocks):
            holders[block] = held_by(block, 0) | bit
            refresh(block)
        while len(holders) > self._most:
            holders.popitem(last=False)

    def forget_all_but(self, replicas: Collection[str]) -> None:
        """The other replicas are gone."""
        for gone in self._bits.keys() - set(replicas):
            self._gone |= self._bits.pop(gone)

    def _new_bit(self) -> int:
        """The lowest that nobody has or had. Where that grows long, those of replicas that are gone are given again,
        once no block has them: that takes some tens of milliseconds, so it isn't done for each that goes."""
        taken = _union(self._bits.values()) | self._gone
        if taken.bit_length() >= SMALL_BITS and self._gone:
            left = ((block, bits & ~self._gone) for block, bits in self._holders.items())
            self._holders = OrderedDict((block, bits) for block, bits in left if bits)
            taken, self._gone = taken & ~self._gone, 0
        return ~taken & (taken + 1)


def _union(bits: Collection[int]) -> int:
    union = 0
    for bit in bits:
        union |= bit
    return union
