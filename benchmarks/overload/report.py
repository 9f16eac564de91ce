"""From figures to a table. Pure functions."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.columns import aligned

COLUMNS = {
    "offered": ("offered", "{:d}"),
    "answered": ("answered", "{:d}"),
    "shed": ("429", "{:d}"),
    "queue_timeouts": ("504", "{:d}"),
    "unanswered": ("gave up", "{:d}"),
    "wrong": ("wrong", "{:d}"),
    "queued_ms_p50": ("queued ms p50", "{:.0f}"),
    "queued_ms_p99": ("p99", "{:.0f}"),
    "ttft_ms_p50": ("TTFT ms p50", "{:.0f}"),
    "ttft_ms_p95": ("p95", "{:.0f}"),
    "ttft_ms_p99": ("p99", "{:.0f}"),
    "shed_ms_p50": ("429 after ms p50", "{:.1f}"),
    "shed_ms_p99": ("p99", "{:.1f}"),
}

Document = Mapping[str, Mapping[str, Any]]


def table(found: Document) -> str:
    """A document for people: a block for each row."""
    return "\n\n".join(_row_table(name, row) for name, row in found.items())


def _row_table(name: str, row: Mapping[str, Any]) -> str:
    cells = [[name, *(heading for heading, _ in COLUMNS.values())]]
    cells += [
        [f"  {phase}: {kind}", *(_cell(values[key], text) for key, (_, text) in COLUMNS.items())]
        for phase, kinds in row["phases"].items()
        for kind, values in kinds.items()
    ]
    lines = aligned(cells)
    shed = Counter[str]()
    for kinds in row["phases"].values():
        for kind in kinds.values():
            shed.update(kind["shed_by"])
    lines += [f"  429 by {limit}: {count}" for limit, count in shed.most_common()]
    memory = row["ingress_rss_mb"]
    lines.append(f"  the pool was busy at {row['used']:.0%} of the overload")
    lines.append(f"  the ingress had {memory['calm']:.0f} MB in the calm, {memory['most']:.0f} MB at most")
    return "\n".join(lines)


def _cell(value: float | None, text: str) -> str:
    return "-" if value is None else text.format(value)
