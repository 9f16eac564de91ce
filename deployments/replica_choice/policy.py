"""The policies: what production's routers and the simulation ask alike. They know no Serve and no clock."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from deployments.replica_choice.choose import Choice, by_prefix, least_loaded
from deployments.replica_choice.load import Loads
from deployments.replica_choice.memory import PrefixMemory
from deployments.replica_choice.settings import PrefixSettings


class Policy(ABC):
    """Chooses replicas, with the loads that one process knows of."""

    def __init__(self) -> None:
        self.loads = Loads()
        self._turn = 0

    @abstractmethod
    def choose(self, replicas: Sequence[str], blocks: Sequence[int], now_s: float) -> Choice:
        """One of `replicas`, at least one, for a prompt with these blocks. The request isn't yet in the loads."""

    def forget_all_but(self, replicas: Collection[str]) -> None:
        """The other replicas are gone."""
        self.loads.forget_all_but(replicas)

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn


class LeastOutstanding(Policy):
    """The replica with the fewest requests; of several, each in turn."""

    def choose(self, replicas: Sequence[str], blocks: Sequence[int], now_s: float) -> Choice:
        return Choice(least_loaded(self.loads.of(replicas, now_s), self._next_turn()), "least_loaded")


class ByPrefix(Policy):
    """The replica that most of the prompt was sent to before, unless it has too many requests."""

    def __init__(self, settings: PrefixSettings) -> None:
        super().__init__()
        self._settings = settings
        self.memory = PrefixMemory(settings.memory)

    def choose(self, replicas: Sequence[str], blocks: Sequence[int], now_s: float) -> Choice:
        loads = self.loads.of(replicas, now_s)
        if not blocks:
            return Choice(least_loaded(loads, self._next_turn()), "least_loaded")
        matches = self.memory.matches(blocks, replicas)
        # By the first block that is new, so that other processes, which know no more than this one, choose alike.
        turn = blocks[min(max(matches), len(blocks) - 1)]
        choice = by_prefix(loads, matches, len(blocks), turn, self._settings)
        # At once, for more of the same may come before the replica has this one.
        self.memory.remember(blocks, replicas[choice.index])
        return choice

    def forget_all_but(self, replicas: Collection[str]) -> None:
        super().forget_all_but(replicas)
        self.memory.forget_all_but(replicas)
