"""How many requests each replica has, as far as one process can know. Pure: it is told the time."""

from collections.abc import Collection, Sequence

OTHERS_S = 2.0  # that a replica's report of other processes' requests is believed


class Loads:
    """Each replica's outstanding requests: this process's own, counted to the last one, and those of others, as the
    replica said when it last took a request of ours."""

    def __init__(self) -> None:
        self._own: dict[str, int] = {}
        self._others: dict[str, tuple[int, float]] = {}  # with the time until which it is believed

    def of(self, replicas: Sequence[str], now_s: float) -> list[int]:
        own = self._own
        if not self._others:
            return [own.get(replica, 0) for replica in replicas]
        return [own.get(replica, 0) + self._of_others(replica, now_s) for replica in replicas]

    def _of_others(self, replica: str, now_s: float) -> int:
        count, until_s = self._others.get(replica, (0, 0.0))
        if until_s > now_s:
            return count
        self._others.pop(replica, None)
        return 0

    def add(self, replica: str) -> None:
        self._own[replica] = self._own.get(replica, 0) + 1

    def remove(self, replica: str) -> None:
        """One of its requests has ended, in whichever way. Of a replica that was gone meanwhile, it counts no more."""
        if (count := self._own.get(replica, 0)) > 1:
            self._own[replica] = count - 1
        else:
            self._own.pop(replica, None)

    def reported(self, replica: str, total: int, now_s: float) -> None:
        """A replica says how many requests it has, of all processes."""
        if (others := total - self._own.get(replica, 0)) > 0:
            self._others[replica] = others, now_s + OTHERS_S
        else:
            self._others.pop(replica, None)

    def forget_all_but(self, replicas: Collection[str]) -> None:
        """The other replicas are gone, with their requests."""
        for known in (self._own, self._others):
            for replica in known.keys() - set(replicas):
                del known[replica]
