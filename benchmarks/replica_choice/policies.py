"""The policies that are compared: production's own, and two to compare them with."""

import random
from collections.abc import Callable, Sequence

from deployments.replica_choice.choose import Choice
from deployments.replica_choice.policy import ByPrefix, LeastOutstanding, Policy
from deployments.replica_choice.settings import PrefixSettings


class Random(Policy):
    """Any."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def choose(self, replicas: Sequence[str], blocks: Sequence[int], now_s: float) -> Choice:
        return Choice(self._chance.randrange(len(replicas)), "least_loaded")


class PowerOfTwo(Policy):
    """The one with fewer requests of any two, as Serve's own router: its count of them is what a replica said when it
    last took a request, and what it sent and got back since."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def choose(self, replicas: Sequence[str], blocks: Sequence[int], now_s: float) -> Choice:
        loads = self.loads.of(replicas, now_s)
        pair = self._chance.sample(range(len(replicas)), min(2, len(replicas)))
        return Choice(min(pair, key=loads.__getitem__), "least_loaded")


POLICIES: dict[str, Callable[[], Policy]] = {
    "random": Random,
    "power_of_two": PowerOfTwo,
    "least_outstanding": LeastOutstanding,
    "prefix": lambda: ByPrefix(PrefixSettings()),
}
