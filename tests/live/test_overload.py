"""Ten times more requests than a pool can answer, on a real server."""

from benchmarks.overload.__main__ import measure
from benchmarks.overload.mix import MIX, SLOTS
from benchmarks.overload.server import LIMITS

NOISE_MS = 100.0  # of a busy machine


def test_chat_feels_little_of_an_overload_and_the_rest_is_turned_away_at_once() -> None:
    found = measure(LIMITS, calm_s=4, overload_s=6, seed=1)
    calm, overload = found["phases"]["calm"]["chat"], found["phases"]["overload"]
    assert set(overload) == {kind.name for kind in MIX}
    assert {kind: row["wrong"] + row["unanswered"] for kind, row in overload.items()} == dict.fromkeys(overload, 0)
    chat, offline = overload["chat"], overload["offline"]
    assert chat["answered"] == chat["offered"] > 20
    assert chat["ttft_ms_p50"] <= 1.5 * calm["ttft_ms_p50"] + NOISE_MS
    assert overload["batch"]["shed"] == 0
    assert 0 < offline["answered"] < offline["offered"] / 4
    assert offline["shed"] > offline["offered"] / 2
    assert offline["shed_ms_p50"] <= 50
    assert set(offline["shed_by"]) <= {
        "max_concurrent of pool 'overloaded'",
        "max_concurrent less headroom.offline of pool 'overloaded'",
    }
    assert _most_at_once(found["outcomes"]) <= SLOTS + 4  # a client learns a little later that one has ended
    assert found["ingress_rss_mb"]["most"] <= found["ingress_rss_mb"]["calm"] + 100


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
