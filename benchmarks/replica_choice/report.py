"""From the figures of all runs to one document and to a table. Pure functions."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.columns import aligned
from benchmarks.replica_choice.figures import Figures

DIGITS = 4  # behind the point, in the document
COLUMNS = {
    "prefix_hit_rate": ("prefix hits", "{:.1%}"),
    "ttft_ms_p50": ("TTFT ms p50", "{:.0f}"),
    "ttft_ms_p99": ("p99", "{:.0f}"),
    "max_by_mean": ("max/mean load", "{:.2f}"),
    "max_by_mean_p50": ("at a moment p50", "{:.2f}"),
    "max_by_mean_p99": ("p99", "{:.2f}"),
    "mean_load": ("mean load", "{:.1f}"),
    "requests_per_s": ("requests/s", "{:.2f}"),
    "tokens_per_s": ("tokens/s", "{:.0f}"),
}

Document = dict[str, dict[str, dict[str, Any]]]


def document(runs: Mapping[str, Mapping[str, Sequence[Figures]]]) -> Document:
    """Medians over the runs, by case and policy."""
    return {
        case: {policy: merged([asdict(run) for run in of_policy]) for policy, of_policy in policies.items()}
        for case, policies in runs.items()
    }


def merged(runs: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    there = {key: [value for run in runs if (value := run[key]) is not None] for key in runs[0]}
    return {key: round(statistics.median(values), DIGITS) if values else None for key, values in there.items()}


def table(found: Document) -> str:
    """A document for people."""
    return "\n\n".join(_case_table(case, policies) for case, policies in found.items())


def _case_table(case: str, policies: Mapping[str, Mapping[str, Any]]) -> str:
    cells = [[case, *(heading for heading, _ in COLUMNS.values())]]
    cells += [[f"  {name}", *_row(values)] for name, values in policies.items()]
    return "\n".join(aligned(cells))


def _row(values: Mapping[str, Any]) -> list[str]:
    return ["-" if values[key] is None else text.format(values[key]) for key, (_, text) in COLUMNS.items()]
