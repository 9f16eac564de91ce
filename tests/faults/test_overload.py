"""Ten times more requests than a pool can answer, on a real server: `test_faults_alone` has one ingress replica."""

from benchmarks.overload.__main__ import measure
from benchmarks.overload.mix import SLOTS
from benchmarks.overload.server import LIMITS


def test_two_ingress_replicas_keep_to_one_limit() -> None:
    found = measure(LIMITS, calm_s=3, overload_s=5, seed=1, ingresses=2)
    overload = found["phases"]["overload"]
    assert {kind: row["wrong"] + row["unanswered"] for kind, row in overload.items()} == dict.fromkeys(overload, 0)
    # Half of the limit each: more than that shows that both have taken part.
    assert SLOTS // 2 < _most_at_once(found["outcomes"]) <= SLOTS + 4


def _most_at_once(outcomes: list[dict[str, float]]) -> int:
    """Requests whose tokens came, at one time."""
    changes = sorted(
        change for one in outcomes if one["first_s"] for change in ((one["first_s"], 1), (one["ended_s"], -1))
    )
    most = now = 0
    for _, change in changes:
        now += int(change)
        most = max(most, now)
    return most
