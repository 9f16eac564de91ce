"""From a run's outcome to figures. Pure."""

import statistics
from dataclasses import dataclass

from benchmarks.gateway.figures import quantile
from benchmarks.replica_choice.simulate import Outcome

ENOUGH = 8  # requests a replica, on average, from which on their balance is looked at


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one case. None: there was nothing to tell it from."""

    requests: int
    prefix_hit_rate: float  # share of prompt tokens
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    max_by_mean: float | None  # of replicas' loads, each averaged over the run
    max_by_mean_p50: float | None  # of their loads at one moment, where the mean is at least `ENOUGH`
    max_by_mean_p99: float | None
    mean_load: float  # of a replica
    requests_per_s: float
    tokens_per_s: float  # generated


def figures(outcome: Outcome) -> Figures:
    served = outcome.served
    ttft_ms = [(each.first_s - each.asked_s) * 1e3 for each in served]
    wall_s = max(each.ended_s for each in served) - min(each.asked_s for each in served)
    averages = [statistics.fmean(of_replica) for of_replica in zip(*outcome.loads, strict=True)]
    moments = [max(loads) / mean for loads in outcome.loads if (mean := statistics.fmean(loads)) >= ENOUGH]
    mean_load = statistics.fmean(averages)
    return Figures(
        requests=len(served),
        prefix_hit_rate=outcome.hit_tokens / outcome.prompt_tokens,
        ttft_ms_p50=quantile(ttft_ms, 0.5),
        ttft_ms_p99=quantile(ttft_ms, 0.99),
        max_by_mean=max(averages) / mean_load if mean_load else None,
        max_by_mean_p50=quantile(moments, 0.5),
        max_by_mean_p99=quantile(moments, 0.99),
        mean_load=mean_load,
        requests_per_s=len(served) / wall_s,
        tokens_per_s=sum(len(each.ask.answer) for each in served) / wall_s,
    )
