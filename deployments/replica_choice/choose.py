"""From replicas' loads, and what they have of a prompt, to one of them: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deployments.replica_choice.settings import PrefixSettings

# least_loaded: no prefix to speak of. prefix: the best of those by prefix and load. bound: the same, but one with more
# of the prompt was left out, for it has too many requests.
Reason = Literal["least_loaded", "prefix", "bound"]

LOAD_WEIGHT = 0.5  # of load above the mean, in units of it, against the share of the prompt that matches
FEW = 2  # requests that any replica may have: there is no balance to keep among so few


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, by its index, and why."""

    index: int
    reason: Reason


def least_loaded(loads: Sequence[int], turn: int) -> int:
    """The index of the least; of several, the one that `turn` falls on."""
    least = min(loads)
    tied = [index for index, load in enumerate(loads) if load == least]
    return tied[turn % len(tied)]


def by_prefix(loads: Sequence[int], matches: Sequence[int], blocks: int, turn: int, settings: PrefixSettings) -> Choice:
    """The replica with the highest score, of those that the request doesn't take beyond `max_imbalance`.

    `matches` are of a prompt of so many `blocks`. The score is the share of the prompt that matches, less
    `LOAD_WEIGHT * (load - mean) / max(FEW, mean)`, as in vLLM's production-stack: it has no unit, so one weight does
    for short and long prompts, and for small and large loads. Of several with the same score, `turn` falls on one.
    """
    most = max(matches)
    if not most or most < settings.min_match * blocks:
        return Choice(least_loaded(loads, turn), "least_loaded")
    total, count = sum(loads), len(loads)
    mean, bound = total / count, limit(loads, settings.max_imbalance) - 1
    weight = LOAD_WEIGHT / max(FEW, mean)
    allowed = [index for index, load in enumerate(loads) if load <= bound]
    scores = [matches[index] / blocks - weight * (loads[index] - mean) for index in allowed]
    best = max(scores)
    tied = [index for index, score in zip(allowed, scores, strict=True) if score == best]
    index = tied[turn % len(tied)]
    if len(allowed) == count or matches[index] == most:
        return Choice(index, "prefix")
    longer = (load for match, load in zip(matches, loads, strict=True) if match > matches[index])
    return Choice(index, "bound" if max(longer) > bound else "prefix")


def limit(loads: Sequence[int], max_imbalance: float) -> float:
    """Most requests that a replica may have once one more is there: `max_imbalance` times the mean that will be then.
    But a few are always allowed, and the least loaded may always take one."""
    return max(min(loads) + 1, FEW, max_imbalance * (sum(loads) + 1) / len(loads))
